"""Products of complex numbers on the host: every family that computes them is right, and wrong ones are found."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.gemv import GemvConfig
from tsm2_tune.generator.families.ism2 import Ism2Config
from tsm2_tune.generator.families.staged_zmma import StagedZmmaConfig
from tsm2_tune.generator.families.tsm2 import Tsm2Config
from tsm2_tune.generator.families.tsmm import TsmmConfig
from tsm2_tune.generator.families.tsmm_held import TsmmHeldConfig
from tsm2_tune.generator.families.tsmm_mma import TsmmMmaConfig
from tsm2_tune.generator.families.tsmm_rows import TsmmRowsConfig
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.families.tsmr_rows import TsmrRowsConfig
from tsm2_tune.generator.families.tsmr_zmma import TsmrZmmaConfig
from tsm2_tune.generator.families.tsmt import TsmtConfig
from tsm2_tune.generator.families.tsmt_zmma import TsmtZmmaConfig
from tsm2_tune.generator.problem import DTYPES, Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

ROWS = TsmrConfig(64, 1, 3, 8, 4, splits=3, row_tiles=1, min_blocks=1)
TILES = TsmrConfig(64, 2, 4, 8, 2, splits=1, row_tiles=2, min_blocks=1)
RESULT = TsmtConfig(128, 8, 4, 4, 4, 2, 2, splits=16, min_blocks=1)
PAIR = TsmtConfig(128, 2, 1, 2, 1, 1, 4, splits=16, min_blocks=1)
ONE = TsmtConfig(128, 1, 1, 1, 1, 4, 1, splits=80, min_blocks=1)  # a tile smaller than a vector, and groups of splits
ZMMA = TsmtZmmaConfig(128, 16, 16, 2, 2, 8, 2, splits=16, min_blocks=1)
ZMMA_TEAM = TsmtZmmaConfig(128, 16, 16, 1, 2, 16, 1, splits=80, min_blocks=1)
ROWS_ZMMA = TsmrZmmaConfig(64, 1, 8, 16, 2, splits=3, row_tiles=1, min_blocks=1)
TILES_ZMMA = TsmrZmmaConfig(64, 2, 16, 32, 4, splits=1, row_tiles=2, min_blocks=1)
STAGED = StagedZmmaConfig(128, 128, 32, 32, 32, 3, 2, splits=16, min_blocks=1, strips=2, octets=2, ahead=1)
STAGED_TEAMS = StagedZmmaConfig(128, 128, 16, 16, 32, 2, 0, splits=2, min_blocks=1, strips=2, octets=2, ahead=0)
STAGED_LARGE = StagedZmmaConfig(128, 128, 64, 64, 16, 3, 1, splits=1, min_blocks=1, strips=4, octets=4, ahead=0)
CASES: tuple[tuple[KernelConfig, tuple[str, ...]], ...] = (
    (Tsm2Config("v0", 64, 1, 1), ("nn",)),
    (Tsm2Config("v1", 64, 3, 1), ("nn",)),
    (Tsm2Config("v2", 64, 4, 4), ("nn",)),
    (Tsm2Config("v3", 64, 4, 4), ("nn",)),
    (GemvConfig(128, 8, 4, 1, 2, splits=3), ("nn", "jc", "ctt", "cj")),
    (Ism2Config(1, 64, 4, 8, 2), ("nn",)),
    (Ism2Config(2, 64, 4, 4, 2), ("nn",)),
    (TsmmConfig(64, 16, 2, 4, 8, 2), ("nn",)),
    (TsmmMmaConfig(64, 2, 16, 32, 16, 3, 2, splits=2), ("nn", "jc", "ctt", "njt")),
    (TsmmMmaConfig(64, 2, 64, 16, 16, 2, 1, splits=2), ("nn", "jc")),
    (TsmmHeldConfig(64, 16, 8, 2, 8), ("nn",)),
    (TsmmRowsConfig(128, 16, 4, 1, 2, 4, 4, row_tiles=2, min_blocks=1), ("ttt", "cj", "tct")),
    (TsmrRowsConfig(64, 16, 32, 2, 4, 1, 2, splits=3, strips=3, min_blocks=3), ("ttt", "cj", "tct")),
    (TsmrRowsConfig(64, 16, 64, 2, 4, 1, 2, splits=2, strips=3, min_blocks=3), ("tn", "cct")),
    (ROWS, ("nn", "jc", "njt")),
    (TILES, ("nct", "jn")),
    (RESULT, ("cn", "jtt", "nc", "tjt")),
    (PAIR, ("cj",)),
    (ONE, ("cn", "jtt")),
    (ROWS_ZMMA, ("nn", "ttt", "jc", "cjt")),
    (TILES_ZMMA, ("nt", "nnt", "tn")),
    (ZMMA, ("cn", "jtt", "nc", "nnt")),
    (ZMMA_TEAM, ("tt", "cj")),
    (STAGED, ("cn", "jtt", "nc", "tt")),
    (STAGED_TEAMS, ("nn", "cj", "ttt")),
    (STAGED_LARGE, ("jn", "nct")),
)
KERNELS = [
    (
        config,
        Problem(8, 4, 260, dtype, op) if config.family[:4] in ("tsmt", "stag") else Problem(129, 7, 67, dtype, op),
    )
    for config, ops in CASES
    for op in ops
    for dtype in FAMILIES[config.family].dtypes
    if DTYPES[dtype].is_complex
]


def test_every_family_of_complex_products_is_here() -> None:
    complex_families = {
        name
        for name, family in FAMILIES.items()
        if any(
            family.supports(Problem(8, 8, 8, dtype, op))
            for dtype in ("c64", "c128")
            for op in ("nn", "cn", "jtt", "ttt")
        )
    }
    assert complex_families == {config.family for config, _ in CASES}


@pytest.mark.parametrize(("config", "problem"), KERNELS, ids=[f"{c.text}-{p.dtype_name}-{p.op}" for c, p in KERNELS])
def test_complex_products_are_right_at_the_edges_too(
    try_kernel: TryKernel, config: KernelConfig, problem: Problem
) -> None:
    result = try_kernel(config, problem, lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


def test_narrow_loads_move_one_number_of_c64(try_kernel: TryKernel) -> None:
    result = try_kernel(TsmmConfig(64, 8, 2, 4, 4, 1), Problem(300, 5, 9, "c64"), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


BUGS = (
    Bug("B conjugated though it is not asked for", TILES, "= staged_rows[q * pitch + c];",
        "= conjugate(staged_rows[q * pitch + c]);", dtype="c64", op="nn"),
    Bug("the imaginary part not shuffled", RESULT, "__shfl_xor_sync(mask, x.im, lane_mask)", "x.im",
        dtype="c64", op="cn", shape=(8, 4, 260)),
    Bug("a real beta of a complex one", ROWS, "beta * sum_t(element)", "scalar(beta.re) * element", dtype="c128"),
    *(Bug(name, ZMMA, original, planted, dtype="c128", op="cn", shape=(16, 8, 300)) for name, original, planted in (
        ("parts of A exchanged (zmma)", "left_factor, x.re, x.im", "left_factor, x.im, x.re"),
    )),
    Bug("unaligned numbers of c64 read as vectors (zmma)", ZMMA, "bool vectors =", "bool vectors = true ||",
        dtype="c64", op="cn", shape=(16, 8, 300)),
    *(Bug(name, ROWS_ZMMA, original, planted, dtype="c128", op="jn", shape=(64, 8, 96))
      for name, original, planted in (
        ("rows of B exchanged (rows)", "half = l / 4 % 2", "half = 1 - l / 4 % 2"),
    )),
    *(Bug(name, TILES_ZMMA, original, planted, dtype="c128", shape=(64, 8, 96)) for name, original, planted in (
    )),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_bug_in_complex_arithmetic_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (512, 16, 96), probes=True)
