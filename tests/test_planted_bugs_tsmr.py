"""Verification on the host rejects bugs in the kernels that split k and know several storage orders.

Each is planted in a configuration that is tuned for a shape of whole blocks, groups and shares of k, as a user's may
be: what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.tsmr import TsmrConfig
from tsm2_tune.generator.families.tsmr_mma import TsmrMmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

SHAPE = (512, 16, 96)

ONE = TsmrConfig(64, 1, 2, 8, 4, splits=1, row_tiles=1, min_blocks=1)
TILES = TsmrConfig(64, 1, 2, 8, 4, splits=1, row_tiles=2, min_blocks=1)
SPLIT = TsmrConfig(64, 1, 2, 8, 4, splits=3, row_tiles=1, min_blocks=1)
MMA_ONE = TsmrMmaConfig(64, 2, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)
MMA_TILES = TsmrMmaConfig(64, 1, 8, 32, 4, splits=1, row_tiles=2, min_blocks=1)
MMA_SPLIT = TsmrMmaConfig(64, 1, 8, 16, 2, splits=3, row_tiles=1, min_blocks=1)


def mma(name: str, config: TsmrMmaConfig, original: str, planted: str, *, op: str = "nn") -> Bug:
    return Bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


SPLITTING_BUGS = (
    Bug("the sums of one split left out", SPLIT, "sum.element[e] +=", "sum.element[e] += first + s == 1 ? 0 :"),
    Bug("the sums of one split added twice", SPLIT, "loaded[s].element[e]", "loaded[s ? s - 1 : 0].element[e]"),
    Bug("a counter not reset", SPLIT, "before < last ? before + 1 : 0", "before + 1"),
    Bug("the last block but one adds up", SPLIT, "before == count - 1", "before == count - 2"),
    Bug("every block adds up", SPLIT, "return before == count - 1", "return true"),
    Bug("one counter for every tile", SPLIT, "last_of(counters + tile_of_C", "last_of(counters"),
    Bug("an empty share leaves no sums", SPLIT, "block_row = from; block", "block_row = groups ? from : to; block"),
    Bug("beta applied for each split", SPLIT, "sum.element[v], beta)", "sum.element[v], splits * beta)"),
    Bug("alpha applied for each split too", SPLIT, "exchanged>(sum, 1, sums", "exchanged>(sum, alpha, sums"),
    Bug("sums of a split over those of another", SPLIT, "split * tiles + tile_of_C", "split + tile_of_C"),
    Bug("sums left where C has the tile", SPLIT, "block_rows, row - block_row", "block_rows, row"),
    Bug("C written past m", SPLIT, "if (row < m)", "if (true)"),
    Bug("the last column not added up", SPLIT, "? n - first : columns)", "? n - first : columns - 1)"),
    Bug("shares overlap", SPLIT, "? split * share", "? split * (share - prefetch)"),
    mma("shares that end within a load", MMA_SPLIT, "(splits * prefetch) * prefetch", "(splits * prefetch) * step",
        op="ttt"),
    mma("shares that are not rounded", MMA_SPLIT, "(k + splits * prefetch - 1) / (splits * prefetch) * prefetch",
        "(k + splits - 1) / splits", op="tn"),
    mma("an empty share leaves no sums", MMA_SPLIT, "block_row = from; bl", "block_row = groups ? from : to; bl"),
    mma("sums left where C has the tile", MMA_SPLIT, "row - block_row, 0", "row, 0"),
)  # fmt: skip

STREAMING_BUGS = (
    Bug("the next tile of B is this one", ONE, "? tile + depth : begin;", "? tile : begin;"),
    Bug("the first tile of B not staged again", TILES, "? tile + depth : begin;", "? tile + depth : end;"),
    mma("the first tile of B not staged again", MMA_TILES, "? tile + depth : begin;", "? tile + depth : end;"),
    Bug("no barrier where a tile of B is staged", ONE, "__syncthreads();  // this", "// this"),
    mma("no barrier where a tile of B is staged", MMA_ONE, "__syncthreads();  // this", "// this"),
    Bug("no other buffer for the next tile of B", ONE, "(buffer ^ 1)", "buffer"),
    Bug("the buffers of B not exchanged", ONE, "buffer ^= !resident;", ""),
    Bug("B kept where it does not fit", ONE, "<= 2 * tile_depth", "<= 3 * tile_depth"),
    Bug("the same B for all columns", ONE, "first + c))", "c))"),
    Bug("a row of B too many", ONE, "tile + l < end", "tile + l <= end"),
    Bug("a column of B too many", ONE, "first + c < n)\n            copy", "first + c <= n)\n            copy"),
    Bug("the ring of A not advanced", ONE, "load_next(g);\n                        __syncwarp", "__syncwarp"),
    Bug("a group of A left out", ONE, "at += step *", "at += prefetch *"),
    Bug("the next rows of A not begun", TILES, "begin_tile();\n            }", "}"),
    Bug("the first group of A again at the edge", ONE, "m, next_column, end", "m, begin, end"),
    Bug("a column of A too many", ONE, "column + q < end", "column + q <= end"),
    Bug("A read as vectors that are not aligned", ONE, "const bool aligned =", "const bool aligned = true ||"),
    Bug("A's address not looked at", ONE, "(reinterpret_cast<unsigned long long>(A) | lda", "(lda"),
    Bug("A's leading dimension not looked at", ONE, "(A) | lda * sizeof(scalar))", "(A))"),
    Bug("A read past m", ONE, "aligned && i + width <= m &&", "aligned &&"),
    Bug("C written past m", ONE, "whole && aligned_C &&", "aligned_C &&"),
    Bug("C written as vectors that are not aligned", ONE, "whole && aligned_C &&", "whole &&"),
    Bug("part-filled blocks left out", ONE, "if (rest < m)", "if (rest + block_rows <= m)"),
    Bug("a part-filled block taken for a whole one", TILES, "+ next_tile;\n    if", "+ 2 * next_tile;\n    if"),
    Bug("a part-filled share taken for a whole one", ONE, "aligned && (end - begin) % prefetch == 0", "aligned"),
    Bug("every tile of C in its first rows", ONE, "tile_of_C / tiles_across *", "tile_of_C / tiles *"),
    Bug("every tile of C in its first columns", ONE, "first = tile_of_C %", "first = 0 *"),
    mma("every tile of C in its first rows", MMA_SPLIT, "tile_of_C / tiles_across *", "tile_of_C / tiles *"),
    Bug("every other block of rows left out", TILES, "to; block_row += next_tile", "to; block_row += 2 * next_tile"),
    Bug("rows of C swapped in a vector", ONE, "(e ^ exchanged)][c];", "(e ^ !exchanged)][c];"),
    Bug("a row-major B read along its columns", ONE, "l * ldb + j", "l + j * ldb", op="nt"),
    Bug("a row-major C written along its columns", ONE, "i * ldc + j", "i + j * ldc", op="nnt"),
    Bug("factors of lower precision", ONE, "element[r % width] * b", "element[r % width] * float(b)", dtype="f64"),
)  # fmt: skip

FRAGMENT_BUGS = (
    mma("rows of B in another order than columns of A", MMA_ONE, "t = l % 4, half = l / 4 % 2",
        "t = l % 8 / 2, half = l % 2"),
    mma("rows of B in another order than columns of a row-major A", MMA_ONE, "t = l % 8 / 2, half = l % 2",
        "t = l % 4, half = l / 4 % 2", op="ttt"),
    mma("columns of C swapped", MMA_ONE, "threadIdx.x % 4 * 2 + e", "threadIdx.x % 4 * 2 + 1 - e"),
    mma("rows of C swapped", MMA_ONE, "sum[s][o][e], sum[s][o][2 + e]", "sum[s][o][2 + e], sum[s][o][e]"),
    mma("rows of A swapped at the edge", MMA_ONE, "bits.y = at[1]", "bits.y = at[0]"),
    mma("every octet of columns in the first", MMA_ONE, "first + 8 * o", "first + 0 * o"),
    mma("every strip of rows in the first", MMA_ONE, "put(row + 16 * s", "put(row"),
    mma("every octet of B the first", MMA_ONE, "(d * octets + o) * 32", "(d * octets) * 32"),
    mma("half of a group's columns twice", MMA_ONE, "a.of[d][s], b)", "a.of[d / 2][s], b)"),
    mma("a row of C too many", MMA_ONE, "if (i + 1 < m)", "if (i < m)"),
    mma("a row of A too many", MMA_ONE, "second = i + 1 < m", "second = i < m"),
    mma("a column of a row-major A too many", MMA_ONE, "l + 1 < end", "l < end", op="tn"),
    mma("a row-major A read along its columns", MMA_ONE, "A + i * lda + l", "A + i + l * lda", op="ttt"),
    mma("a row-major A as vectors that are not aligned", MMA_ONE, "aligned =", "aligned = true ||", op="tn"),
    mma("a row-major A's address not looked at", MMA_ONE, "(reinterpret_cast<unsigned long long>(A) | lda", "(lda",
        op="ttt"),
    mma("a row-major A's leading dimension not looked at", MMA_ONE, "(A) | lda * sizeof(scalar))", "(A))", op="ttt"),
    mma("a row-major A's rows loaded as columns", MMA_ONE, "(16 * s + half) * lda + 8 * d",
        "16 * s + half + 8 * d * lda", op="ttt"),
    mma("a row-major A's pieces in the order of a column-major one", MMA_ONE,
        "s(p / (2 * depths)), half(p / depths % 2)", "s(p / 2 % strips), half(p % 2)", op="tn"),
    mma("operands of lower precision", MMA_ONE, "{bits.x, bits.y}", "{float(bits.x), bits.y}"),
)  # fmt: skip

ALIGNED_BUGS = (
    Bug("alpha left out of vectors", ONE, "store_vectors<0>(sum, alpha, C", "store_vectors<0>(sum, 1, C"),
    Bug("C's leading dimension taken for m in vectors", ONE, "sum, alpha, C, ldc", "sum, alpha, C, m"),
    Bug("beta left out of vectors", ONE, "aligned_C && beta == 0", "aligned_C"),
    Bug("A's leading dimension taken for m in a group", ONE, "load_a(a[g], at, lda)", "load_a(a[g], at, m)"),
    Bug("A's leading dimension taken for m between groups", ONE, "(long long)lda", "(long long)m"),
    mma("alpha left out of vectors", MMA_ONE, "(alpha * upper, alpha * lower)", "(upper, lower)"),
    mma("C's leading dimension taken for m in vectors", MMA_ONE, "C + i + j * ldc)", "C + i + j * m)"),
    mma("a row-major A's leading dimension taken for k", MMA_ONE, "load_a(a[g], at, lda)", "load_a(a[g], at, k)",
        op="tn"),
)  # fmt: skip

# Every storage order that the families know, each in both dtypes where both are theirs.
RIGHT = (
    *((config, "f32", op) for config, op in ((ONE, "nn"), (TILES, "nt"), (SPLIT, "nnt"), (SPLIT, "ntt"))),
    *((config, "f64", op) for config, op in ((ONE, "ntt"), (TILES, "nnt"), (SPLIT, "nn"), (SPLIT, "nt"))),
    (TsmrConfig(64, 2, 3, 16, 4, splits=20, row_tiles=1, min_blocks=4), "f32", "nn"),
    (TsmrConfig(128, 2, 1, 4, 2, splits=1, row_tiles=4, min_blocks=1), "f64", "nn"),
    *(
        (config, "f64", op)
        for config, op in ((MMA_ONE, "nn"), (MMA_TILES, "nt"), (MMA_SPLIT, "nnt"), (MMA_SPLIT, "ntt"))
    ),
    *(
        (config, "f64", op)
        for config, op in ((MMA_ONE, "ttt"), (MMA_TILES, "tn"), (MMA_SPLIT, "tt"), (MMA_SPLIT, "tnt"))
    ),
    (TsmrMmaConfig(128, 4, 32, 16, 2, splits=8, row_tiles=1, min_blocks=1), "f64", "nn"),
    (TsmrMmaConfig(128, 1, 64, 32, 4, splits=1, row_tiles=4, min_blocks=1), "f64", "ttt"),
)


@pytest.mark.parametrize("shape", [(181, 5, 67), (1032, 18, 610)], ids=str)
@pytest.mark.parametrize(("config", "dtype", "op"), RIGHT, ids=lambda one: getattr(one, "text", one))
def test_the_template_itself_is_right(
    try_kernel: TryKernel, config: KernelConfig, dtype: str, op: str, shape: tuple[int, int, int]
) -> None:
    result = try_kernel(config, Problem(*shape, dtype, op), lambda text: text, probes=shape[0] < 1000)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize(
    "bug", [*SPLITTING_BUGS, *STREAMING_BUGS, *FRAGMENT_BUGS, *ALIGNED_BUGS], ids=lambda bug: bug.name
)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
