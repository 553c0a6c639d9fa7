"""Verification on the host rejects bugs in the kernels of 16-bit floats and TF32.

Each is planted in a configuration that is tuned for a shape of whole blocks, groups and shares of k, as a user's may
be: what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.tsmr_half import TsmrHalfConfig
from tsm2_tune.generator.families.tsmr_tf32 import TsmrTf32Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

SHAPE = (256, 16, 128)

ONE = TsmrHalfConfig(64, 4, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)
ALONE = TsmrHalfConfig(64, 8, 8, 16, 1, splits=1, row_tiles=2, min_blocks=1)
TILES = TsmrHalfConfig(64, 2, 32, 64, 2, splits=1, row_tiles=2, min_blocks=1)
SPLIT = TsmrHalfConfig(64, 4, 16, 64, 2, splits=3, row_tiles=1, min_blocks=1)

TF32 = TsmrTf32Config(64, 8, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, op: str = "nn", dtype: str = "bf16") -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


SPLITTING_BUGS = (
    bug("the sums of one split left out", SPLIT, "sum.element[e] +=", "sum.element[e] += first + s == 1 ? 0 :"),
    bug("a counter not reset", SPLIT, "before < last ? before + 1 : 0", "before + 1"),
    bug("every block adds up", SPLIT, "return before == count - 1", "return true"),
    bug("an empty share leaves no sums", SPLIT, "block_row = from; block", "block_row = passes ? from : to; block"),
    bug("sums of a split over those of another", SPLIT, "split * tiles + tile_of_C", "split + tile_of_C"),
    bug("a lane's sums over another's", SPLIT, "+ threadIdx.x, sum", "+ threadIdx.x / 2, sum"),
    bug("a patch of the splits left out", SPLIT, "first_patch < patches; first", "first_patch < 1; first"),
    bug("alpha applied for each split too", SPLIT, "sum_bits_of(sum[v])", "sum_bits_of({ alpha * 1 })"),
    bug("shares that are not rounded", SPLIT, "(k + splits * prefetch - 1) / (splits * prefetch) * prefetch",
        "(k + splits - 1) / splits", op="tn"),
    bug("C written past m by the splits", SPLIT, "m - i : 0;", "m - i + 1 : 0;"),
)  # fmt: skip

STREAMING_BUGS = (
    bug("the ring not advanced", ONE, "load_next(g);\n                        __syncwarp", "__syncwarp"),
    bug("the ring advanced in a wrong place", ONE, "load_next(g);\n         ", "load_next(0);\n         "),
    bug("the only group not loaded again", ALONE, "load_next(g);\n                        __sync", "__sync"),
    bug("the last group not loaded", ONE, "if (left-- <= 0)", "if (left-- <= 1)"),
    bug("the next rows of A not begun", TILES, "begin_tile();\n            }", "}"),
    bug("rows of A begun too early", TILES, ">= passes * (ring * step)", ">= end - begin"),
    bug("a rest of the columns taken for a whole group", ONE, "next_column + step <= end)", "next_column < end)"),
    bug("a column of A too many", ONE, "inside || l < end", "inside || l <= end"),
    bug("a column of A too few", ALONE, "inside || l < end", "inside || l + 1 < end"),
    bug("a column of A too many at the edge", ONE, "l < end ? m - i", "l <= end ? m - i"),
    bug("A read past m", ONE, "l < end ? m - i : 0, aligned", "l < end ? m - i + 1 : 0, aligned"),
    bug("A read past m along its rows", TILES, "i < m ? end - l : 0, aligned", "end - l, aligned", op="ttt"),
    bug("A read past k along its rows", TILES, "i < m ? end - l", "i < m ? end - l + 1", op="ttt"),
    bug("A read as vectors that are not aligned", ONE, "lda * sizeof(scalar)) % 16 == 0", "lda) % 2 < 2"),
    bug("A's leading dimension not looked at", ONE, "(A) | lda * sizeof(scalar))", "(A))"),
    bug("B's address not looked at", ONE, "(B) | ldb * sizeof(scalar)) % sizeof(chunk_t)",
        "(B) * 0 | ldb * sizeof(scalar)) % sizeof(chunk_t)"),
    bug("C's leading dimension not looked at", ONE, "(C) | ldc * sizeof(scalar)) % sizeof(run_t)",
        "(C)) % sizeof(run_t)"),
)  # fmt: skip

PRODUCT_BUGS = (
    bug("two rows of A exchanged", ONE, "upper = __byte_perm(c0, c1, 0x5410)", "upper = __byte_perm(c0, c1, 0x7632)"),
    bug("two columns of A exchanged", ONE, "(c0, c1, 0x5410)", "(c1, c0, 0x5410)"),
    bug("two columns twice", ONE, "word(c[2 * w + 2], p)", "word(c[2 * w], p)"),
    bug("a row of A twice", TILES, "lower = part[r + 1]", "lower = part[r]", op="ttt"),
    bug("the second half of a run left out", TILES, "w < run_words; w += 2", "w < 2; w += 2", op="ttt"),
    bug("runs of B in another order than A's", ONE, "g * 4 + r % 4;", "g * 4 + (r + 1) % 4;"),
    bug("octets of B exchanged", ONE, "octet = octet_of(c),", "octet = octet_of(c) ^ 1,"),
    bug("octets of B as where C lies along m", TILES, "octet = octet_of(c),", "octet = c / 8,", op="ttt"),
    bug("a row of B too many", ONE, "left = first + c < n ? end - l", "left = first + c < n ? end - l + 1"),
    bug("a column of B too many", ONE, "first + c < n ? end - l", "first + c <= n ? end - l"),
    bug("the same B for all columns", ONE, "at_B(B, ldb, l, first + c)", "at_B(B, ldb, l, c)"),
    bug("pairs of a row-major B not aligned", TILES, "% sizeof(piece_of_B_t) == 0", "% 1 == 0", op="ttt"),
    bug("a column of a row-major B too many", TILES, "l < end ? n - (first + c)", "l < end ? n - (first + c) + 1",
        op="ttt"),
    bug("a row of a row-major B too many", TILES, "l < end ? n", "l <= end ? n", op="ttt"),
    bug("rows of a row-major B in another order than columns of A", TILES, "row = l / run % 4 * 2 + l % 2",
        "row = l / run % 4 + l % 2 * 4", op="ttt"),
    bug("words of a row-major B exchanged", TILES, "w = l % run / 2", "w = l % run / 2 ^ 1", op="ttt"),
    bug("matrices of a row-major B over each other", TILES, "run_words + w) * octets + octet) * 8",
        "run_words + w) * octets + octet / 2) * 8", op="ttt"),
    bug("the place of a matrix' row not found again", TILES, "(lane_row ^ o % 8)", "lane_row", op="ttt"),
    bug("f32: rows of a row-major B exchanged", TF32, "l / run % 4) * run + l % run", "l % 4) * run + l / 4 % run",
        dtype="tf32", op="ttt"),
    bug("no barrier where a tile of B is staged", ONE, "__syncthreads();  // this", "// this"),
    bug("no other buffer for the next tile of B", ONE, "(buffer ^ 1)", "buffer"),
)  # fmt: skip

# Not among them: that A's, B's or C's last row or column is looked at where vectors are aligned. On the host every
# operand ends where a page does, so that where a line's length is no vector's, its leading dimension is not either.
STORING_BUGS = (
    bug("C rounded down", ONE, "(whole + 0x7FFFu + last) >> 16", "whole >> 16"),
    bug("C read where beta is 0", ONE, "beta == 0 ? value[e] : value[e] +", "value[e] +"),
    bug("C not read", ONE, "beta == 0 ? value[e] :", "true ? value[e] :"),
    bug("C overwritten in whole runs", ONE, "aligned && beta == 0 && inside", "aligned && inside"),
    bug("a column of C too many", ONE, "j + line < n", "j + line <= n"),
    bug("a row of C too many", TILES, "i + rows_down(line) < m", "i + rows_down(line) <= m", op="ttt"),
    bug("two columns of C exchanged", ONE, "e % 2 * 2 + line", "e % 2 * 2 + 1 - line"),
    bug("patches over each other", ONE, "patch % octets * 2", "patch % octets"),
    bug("alpha left out", ONE, "alpha * sum[e / 2]", "sum[e / 2]"),
)  # fmt: skip

TF32_BUGS = (
    bug("f32: two columns of A twice", TF32, "upper_next = word(c[w + 1], p)", "upper_next = word(c[w], p)",
        dtype="tf32"),
    bug("f32: a row of A twice", TF32, "lower = word(c[w], p + 1)", "lower = word(c[w], p)", dtype="tf32"),
    bug("f32: pieces of A exchanged", TF32, "part[r / piece_rows]", "part[1 - r / piece_rows]", dtype="tf32"),
    bug("f32: the rest of A left out", TF32, "rest_of(upper), rest_of(lower)", "0, 0", dtype="3xtf32"),
    bug("f32: the rest of B left out", TF32, "rest_of(b), rest_of(b_next)", "0, 0", dtype="3xtf32"),
    bug("f32: what is kept taken for the rest", TF32, "rest_of(b), rest_of(b_next)", "kept, kept_next",
        dtype="3xtf32"),
    bug("f32: no product of what is kept", TF32, "(sum, a[0], a[1], a[2], a[3], kept, kept_next);",
        "(sum, 0, 0, 0, 0, kept, kept_next);", dtype="3xtf32"),
)  # fmt: skip

BUGS = (*SPLITTING_BUGS, *STREAMING_BUGS, *PRODUCT_BUGS, *STORING_BUGS, *TF32_BUGS)

RIGHT: tuple[tuple[KernelConfig, str, str], ...] = (
    (ONE, "nn", "bf16"), (ALONE, "nt", "f16"), (TILES, "ttt", "bf16"), (SPLIT, "tn", "bf16"), (SPLIT, "ntt", "bf16"),
    (TF32, "nn", "3xtf32"), (TF32, "ttt", "tf32"),
)  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)


@pytest.mark.parametrize(("config", "op", "dtype"), RIGHT, ids=lambda one: getattr(one, "text", str(one)))
def test_the_same_kernels_are_accepted_without_the_bug(
    try_kernel: TryKernel, config: KernelConfig, op: str, dtype: str
) -> None:
    result = try_kernel(config, Problem(*SHAPE, dtype, op), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail
