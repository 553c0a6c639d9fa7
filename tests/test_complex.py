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
    Bug("A not conjugated", ROWS, "conjugate(a.of[q]", "(a.of[q]", dtype="c64", op="jc"),
    Bug("B not conjugated", ROWS, "conjugate(staged", "(staged", dtype="c128", op="jc"),
    Bug("B conjugated though it is not asked for", TILES, "= staged_rows[q * pitch + c];",
        "= conjugate(staged_rows[q * pitch + c]);", dtype="c64", op="nn"),
    Bug("A not conjugated (tsmt)", RESULT, "conjugate(a[r][q])", "a[r][q]", dtype="c128", op="cn", shape=(8, 4, 260)),
    Bug("the other factor conjugated (tsmt)", RESULT, "conjugate(a[r][q]) * b[c][q]", "a[r][q] * conjugate(b[c][q])",
        dtype="c64", op="cn", shape=(8, 4, 260)),
    Bug("the imaginary part not shuffled", RESULT, "__shfl_xor_sync(mask, x.im, lane_mask)", "x.im",
        dtype="c64", op="cn", shape=(8, 4, 260)),
    Bug("alpha taken as real", ROWS, "alpha * sum :", "scalar(alpha.re) * sum :", dtype="c64"),
    Bug("a real beta of a complex one", ROWS, "beta * sum_t(element)", "scalar(beta.re) * element", dtype="c128"),
    Bug("only the imaginary part of beta looked at", ROWS, "return a.re == b && a.im == 0;", "return a.im == 0;",
        dtype="c64"),
    Bug("a purely imaginary beta taken for 0", ROWS, "return a.re == b && a.im == 0;", "return a.re == b;",
        dtype="c64"),
    *(Bug(name, ZMMA, original, planted, dtype="c128", op="cn", shape=(16, 8, 300)) for name, original, planted in (
        ("parts of A exchanged (zmma)", "left_factor, x.re, x.im", "left_factor, x.im, x.re"),
        ("an imaginary part of B left out (zmma)", "{y.re, y.im}", "{y.re, 0}"),
        ("A not conjugated (zmma)", "flipped(im, none)", "flipped(im, sign)"),
        ("the imaginary part of another sign (zmma)", "-sum[2 + e]", "sum[2 + e]"),
        ("a row of the tensor core for another (zmma)", "+ row + 8 * s + g]", "+ row + 8 * s + (g ^ 1)]"),
        ("two columns exchanged (zmma)", "2 * t + e) * tile_rows", "2 * t + 1 - e) * tile_rows"),
        ("k read past its end (zmma)", "if (whole || half * apart < left)", "if (true)"),
        ("a row too many (zmma)", "line + 8 * e < lines ? line + 8 * e : lines - 1", "line + 8 * e"),
        ("the rest of k left out (zmma)", "sweep(Flag<false>(), rest, chunks);", ""),
        ("the rest of k taken twice (zmma)", "(splits - whole % splits + split) % splits + whole", "whole"),
        ("a stage not loaded anew (zmma)", "load_next(a[s], b[s]);\n                __syncwarp();", "__syncwarp();"),
        ("the sums of one warp alone (zmma)", "left + warp / team * tile_elements", "left"),
        ("no barrier before the sums are added up (zmma)",
         "__syncthreads();\n    const auto for_each", "const auto for_each"),
    )),
    Bug("unaligned numbers of c64 read as vectors (zmma)", ZMMA, "bool vectors =", "bool vectors = true ||",
        dtype="c64", op="cn", shape=(16, 8, 300)),
    Bug("one of a pair twice (zmma)", ZMMA, "both.element[1] }", "both.element[0] }",
        dtype="c64", op="cn", shape=(16, 8, 300)),
    *(Bug(name, ROWS_ZMMA, original, planted, dtype="c128", op="jn", shape=(64, 8, 96))
      for name, original, planted in (
        ("parts of A exchanged (rows)", "left_factors[s][v], x.re, x.im", "left_factors[s][v], x.im, x.re"),
        ("parts of B exchanged (rows)", "{y.re, y.im}", "{y.im, y.re}"),
        ("a row of B for another (rows)", "* 2 + half) * 32]", "* 2) * 32]"),
        ("A not conjugated (rows)", "flipped(re, sign)", "flipped(re, none)"),
        ("no sums left of a split (rows)", "bits_of(values)", "bits_of(vector{})"),
        ("a row too many (rows)", "i + v < m && l < end ?", "l < end ?"),
        ("a column of A too many (rows)", "i + width <= m && l < end)", "i + width <= m)"),
        ("B not cleared past its end (rows)", "*to = 0;", ";"),
        ("rows of B exchanged (rows)", "half = l / 4 % 2", "half = 1 - l / 4 % 2"),
    )),
    *(Bug(name, TILES_ZMMA, original, planted, dtype="c128", shape=(64, 8, 96)) for name, original, planted in (
        ("C written past m (rows)", "if (whole && aligned_C", "if (aligned_C"),
        ("columns of C too many (rows)", "if (j < n)", "if (true)"),
        ("C stored without alpha (rows)", "= alpha * values.element[v]", "= values.element[v]"),
        ("the second row tile left out (rows)", "put(row + strip_rows * s", "put(row"),
    )),
    Bug("an imaginary part stored twice", RESULT, "float2(x.re, x.im)", "float2(x.im, x.im)", dtype="c64", op="cn",
        shape=(8, 4, 260)),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_bug_in_complex_arithmetic_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, (512, 16, 96), probes=True)
