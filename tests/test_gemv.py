"""Matrix times vector: each first choice is of its decomposition, with loads that a row has."""

from __future__ import annotations

import pytest

from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, step
from tsm2_tune.generator.problem import Problem

H200 = PROFILES["h200"]


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
