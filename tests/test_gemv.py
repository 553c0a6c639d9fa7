"""Matrix times vector on the host: every decomposition is right in every type and order, wrong kernels are found."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, GemvConfig, step
from tsm2_tune.generator.problem import Problem

pytestmark = pytest.mark.host

H200 = PROFILES["h200"]
BOTH = GemvConfig(128, 8, 4, 2, 2, 3)


def test_each_corner_is_of_the_decomposition_that_it_is_called_by() -> None:
    for op in ("nn", "ttt"):
        problem = Problem(20480, 1, 20480, "f32", op)
        for name in DECOMPOSITIONS:
            found = family_named("gemv").corner(name, problem, H200)  # type: ignore[attr-defined]
            assert found
            assert {config.decomposition for config in found} == {name}


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "c128"])
@pytest.mark.parametrize("op", ["nn", "tn"])
@pytest.mark.parametrize(("m", "k"), [(10**7, 32), (10**6, 100), (10**4, 3), (100, 1000)])
def test_no_first_choice_has_lanes_or_loads_that_are_past_a_row(m: int, k: int, op: str, dtype: str) -> None:
    problem = Problem(m, 1, k, dtype, op)
    for name in DECOMPOSITIONS:
        for config in family_named("gemv").corner(name, problem, H200):  # type: ignore[attr-defined]
            once = step(config, problem)
            assert config.lanes == 1 or once < 2 * k, config.text
            assert config.prefetch == 1 or config.prefetch // 2 * once < k, config.text


def bug(
    name: str, original: str, planted: str, *, config: GemvConfig = BOTH, dtype: str = "f32", op: str = "nn"
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


BUGS = (
    bug("the last tile not moved up", "first_row : m < block_m ? 0 : m - block_m", "first_row : first_row"),
    bug("B as vectors that are not aligned", "aligned(ptr_b(B, ldb, 0, first_column), 0, width)", "true", op="tn"),
    bug("shares that are not rounded", "/ (splits * step) * step", "/ (splits * step) * step - 1", op="tn"),
    bug("a turn left out", "l += ring * step)", "l += 2 * ring * step)"),
    bug("half of the lanes not added up", "distance < lanes_of_warp;", "distance < lanes_of_warp / 2;"),
    bug("the sums of one adder alone", "total += block_sums[adder * elements + e]", "total = block_sums[e]"),
    bug("a counter not reset", "atomic_inc_acq_rel(counter, count - 1)", "atomic_add_acq_rel(counter, 1)"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (131, 1, 129), probes=True)
