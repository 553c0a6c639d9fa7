"""The staged kernels on the host where C is large both ways: every case of BLAS, and the walk over tiles in bands."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.conftest import TryKernel
from tests.staged_kernels import SPLIT_DMMA
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.staged import StagedDmmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seeds import first_choices
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Outcome

pytestmark = pytest.mark.slow

EACH = [(dtype, "nn") for dtype in FMA_DTYPES]
OTHERS = [("f64", "tnt"), ("f64", "ntt"), ("f32", "ttt"), ("c64", "jxt")]


def shape_of(dtype: str, op: str = "nn") -> tuple[int, int, int]:
    """Two bands or three, the last of them one row of tiles high; columns of tiles; part-filled at every end."""
    config = SPLIT_DMMA[dtype]
    down, across = (7, 2) if dtype == "f64" else (5, 4)
    m, n = down * config.block_m - 3, across * config.block_n - 5
    return m, m if "x" in op else n, 2 * config.block_k + 1


# Fewer tiles than blocks: k has two panels, and of its tail each other block has a turn and a stretch.
PANELS = StagedDmmaConfig(
    128, 128, 64, 32, 16, 3, 1, splits=13, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
)
IN_PANELS = (318, 32, 2552)
IN_TURNS = (1725, 32, 64)  # two tiles for each block, and one for stretches: more than the workspace has slots for
CASES = [(SPLIT_DMMA[dtype], Problem(*shape_of(dtype, op), dtype, op)) for dtype, op in EACH + OTHERS]
CASES += [(PANELS, Problem(*shape, "f64")) for shape in (IN_PANELS, IN_TURNS)]


@pytest.mark.parametrize(("config", "problem"), CASES, ids=[problem.text for _, problem in CASES])
def test_products_of_many_tiles_and_of_panels_are_right(
    try_kernel: TryKernel, config: KernelConfig, problem: Problem
) -> None:
    result = try_kernel(config, problem, str)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("dtype", FMA_DTYPES)
def test_first_choices_are_probed_in_several_bands_and_fill_them(dtype: str) -> None:
    problem, family = Problem(4096, 4096, 4096, dtype), family_named(SPLIT_DMMA[dtype].family)
    found = first_choices(search_space(problem, PROFILES["h200"], families=[family.name]), candidate_times_us)
    assert len(found) > 2
    for config in found:
        down, across = int(config.tunables["block_m"]), int(config.tunables["block_n"])
        band_rows = max(round(math.sqrt(int(config.tunables["splits"]) * across / down)), 1) * down
        assert any(m > band_rows and n > across for m, n, _ in family.probe_shapes(config, problem)), config.text
    if dtype != "c64":  # of few tiles each block has one first, so that none waits or adds partial sums
        problem = Problem(512, 512, 512, dtype)
        first = first_choices(search_space(problem, PROFILES["h200"], families=[family.name]), candidate_times_us)[0]
        tiles, splits = family.launch(first, problem).tiles(512, 512), int(first.tunables["splits"])
        assert 0.9 * splits < tiles <= splits


@pytest.mark.parametrize("op", ["nn", "ttt"])
def test_with_a_short_k_nearly_every_block_has_a_whole_tile(try_kernel: TryKernel, op: str) -> None:
    problem, config = Problem(954, 29, 300, "f64", op), replace(PANELS, splits=16)
    assert try_kernel(config, problem, crash_where_sums_meet, False).outcome is Outcome.OK
    assert try_kernel(config, replace(problem, m=800), crash_where_sums_meet, False).outcome is Outcome.CRASHED


def crash_where_sums_meet(text: str) -> str:
    assert "if (!alone) {" in text
    return text.replace("if (!alone) {", "if (!alone) { __builtin_trap();")
