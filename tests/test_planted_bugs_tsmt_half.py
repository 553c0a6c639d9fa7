"""Verification on the host rejects bugs in the kernels of transposed products in 16-bit floats and TF32.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.tsmt_few import TsmtFewConfig
from tsm2_tune.generator.families.tsmt_half import TsmtHalfConfig
from tsm2_tune.generator.families.tsmt_tf32 import TsmtTf32Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

SHAPE = (16, 16, 1024)
FEW_SHAPE = (4, 4, 1024)

# What comes next waits in registers, or is copied on; a warp for a tile, and two.
BLOCK = TsmtHalfConfig(128, 32, 32, 2, 4, chunk=128, stages=2, splits=2)
COPIES = TsmtHalfConfig(128, 16, 16, 1, 2, chunk=64, stages=3, splits=16)
GROUPS = TsmtHalfConfig(64, 16, 32, 1, 2, chunk=32, stages=4, splits=80)
LONG = TsmtHalfConfig(32, 16, 16, 1, 2, chunk=512, stages=2, splits=2)  # a run takes two rounds
TF32 = TsmtTf32Config(128, 32, 32, 2, 2, chunk=64, stages=2, splits=1)

FEW = TsmtFewConfig(128, 4, 4, piece=4, stages=2, splits=16, min_blocks=1)
WIDE = TsmtFewConfig(64, 8, 2, piece=8, stages=2, splits=20, min_blocks=1)
ODD = TsmtFewConfig(128, 3, 6, piece=8, stages=1, splits=1, min_blocks=1)


def half(
    name: str, config: TsmtHalfConfig, original: str, planted: str, *, op: str = "tn", dtype: str = "bf16"
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


def tf32(name: str, original: str, planted: str, *, op: str = "tn", dtype: str = "tf32") -> Bug:
    return Bug(f"{name} ({dtype})", TF32, original, planted, dtype=dtype, op=op)


def few(name: str, config: TsmtFewConfig, original: str, planted: str, *, op: str = "tn", dtype: str = "bf16") -> Bug:
    return Bug(f"{name} (few)", config, original, planted, dtype=dtype, op=op)


PLACES = "(place == 0 ? stages - 1 : place - 1)"

# Not among them: that addresses are looked at beside leading dimensions. On the host every operand ends where a page
# does, so that an aligned leading dimension of one comes with another's that is not, where an address is not aligned.
COPYING_BUGS = (
    half("a product too many", BLOCK, "to_end = k - product", "to_end = k - product + 1"),
    half("a product too many across k", BLOCK, "to_end > 0 ? count", "to_end >= 0 ? count", op="ntt"),
    half("a product too few", COPIES, "to_end = k - product", "to_end = k - product - 1"),
    half("lines past the last read", BLOCK, "line < count &&", ""),
    half("lines past the last read across k", BLOCK, "line < count &&", "", op="ntt"),
    half("the last line not read", BLOCK, "line < count &&", "line + 1 < count &&"),
    half("a vector past the last line", COPIES, "? count - line : 0", "? count - line + 1 : 0", op="ntt"),
    half("a run too few in a round", BLOCK, "return i * threads / of_run;", "return i;"),
    half("half a run twice", LONG, "i * threads % of_run * width", "0 * i"),
    half("every run the first", COPIES, "run(threadIdx.x / of_run)", "run(0)"),
    half("the first line of another tile", BLOCK, "along_k ? first + run : l + run", "along_k ? run : l + run"),
    half("the first product again", GROUPS, "(along_k ? l : first)", "(along_k ? 0 : first)"),
    half("the first product again across k", GROUPS, "along_k ? first + run : l + run", "along_k ? first + run : run",
        op="ntt"),
    half("runs of B as those of A", BLOCK, "of_b.template fetch<true>(next_b", "of_a.template fetch<true>(next_b"),
    half("vectors that are not aligned", BLOCK, "% 16 == 0;", "% 2 == 0;"),
    half("vectors across k that are not aligned", BLOCK, "% 16 == 0;", "% 2 == 0;", op="ntt"),
    half("leading dimensions not looked at", BLOCK, "(X) | ld * sizeof(scalar))", "(X))"),
    half("leading dimensions across k not looked at", BLOCK, "(X) | ld * sizeof(scalar))", "(X))", op="ntt"),
    half("vectors of both where those of one are aligned", BLOCK, "of_a.fits() && of_b.fits()", "of_a.fits()",
        op="nn"),
    half("vectors of both where those of the other are aligned", BLOCK, "of_a.fits() && of_b.fits()", "of_b.fits()",
        op="tt"),
    half("16 bytes that are not whole", COPIES, "gathered<bits_t>(from, 1, inside)",
        "gathered<bits_t>(from, 1, width)"),
)  # fmt: skip

# Not among them: that the rings are no longer read where the sums take their place. On the host a block's warps take
# turns, and the last of them reads before the first of them writes.
RING_BUGS = (
    half("the chunk before the last not awaited", COPIES, "await_copies<stages - 2>();",
        "await_copies<stages - 1>();"),
    half("copies not closed", COPIES, "next += splits;\n        close_copies();", "next += splits;"),
    half("the place that is read is overwritten", GROUPS, f"ring + {PLACES} * place", "ring + place * place"),
    half("one place for every chunk", COPIES, "place = place + 1 == stages ? 0 : place + 1;", ""),
    half("a place too few", GROUPS, "s < stages - 1; ++s", "s < stages - 2; ++s"),
    half("B in the place of A", BLOCK, "of_b.put(staged + Of_A::elements", "of_b.put(staged + 0 * Of_A::elements"),
    half("no barrier where a chunk is whole", BLOCK, "__syncthreads();  // the chunk", "// the chunk"),
    half("no barrier where copies have arrived", GROUPS, "__syncthreads();  // every", "// every"),
    half("the last chunk left out", BLOCK, "current < chunks; current", "current < chunks - 1; current"),
    half("the next chunk is the neighbour's", BLOCK, "next += splits;", "next += 1;"),
    half("every split begins at the first chunk", COPIES, "next = split;", "next = 0;"),
    half("a chunk of each split left out", GROUPS, "current += splits)", "current += 2 * splits)"),
    half("an incomplete chunk taken for whole", BLOCK, "? k / chunk : 0", "? chunks : 0"),
)  # fmt: skip

PRODUCT_BUGS = (
    half("half of a chunk", BLOCK, "step < chunk; step", "step < chunk / 2; step"),
    half("every team the same products", BLOCK, "step + threadIdx.x / team * depth", "step"),
    half("lines of A exchanged", BLOCK, "of_A ? part % 2 : part / 2", "of_A ? 1 - part % 2 : part / 2"),
    half("products of A exchanged", BLOCK, "of_A ? part / 2 : part % 2", "of_A ? 1 - part / 2 : part % 2"),
    half("products of B exchanged", BLOCK, "of_A ? part / 2 : part % 2", "of_A ? part / 2 : 1 - part % 2", op="ntt"),
    half("octets of B exchanged", BLOCK, "of_A ? part % 2 : part / 2", "of_A ? part % 2 : 1 - part / 2", op="ntt"),
    half("a strip twice", BLOCK, "row + 16 * s, l)", "row, l)"),
    half("two octets twice", BLOCK, "column + 8 * o, l)", "column, l)"),
    half("an octet twice", BLOCK, "b[o / 2] + o % 2 * 2", "b[o / 2]"),
    half("a pair of products of B twice", BLOCK, "y[0], y[1]", "y[0], y[0]"),
    half("rows of C exchanged", BLOCK, "8 * (e / 2) + g] =", "8 * (1 - e / 2) + g] ="),
    half("columns of C exchanged", BLOCK, "2 * t + e % 2) * tile_rows", "2 * t + 1 - e % 2) * tile_rows"),
    half("warps side by side in one place", GROUPS, "column = member / team_rows * (8 * octets)", "column = 0"),
    half("two teams' sums in one place", BLOCK, "left + warp / (team / 32) *", "left + warp / (team / 32) / 2 *"),
    half("no barrier before the sums are read", COPIES,
        "__syncthreads();\n    const auto for_each", "const auto for_each"),
    half("sums rounded before the last", BLOCK, "= sum[s][o][e];", "= sum_t(scalar(sum[s][o][e]));"),
    half("every split's sums in the first's place", BLOCK, "sums + split * tile_elements",
        "sums + 0 * tile_elements"),
    half("a group's sums left out", GROUPS, "tile_elements, groups, put)", "tile_elements, groups - 1, put)"),
)  # fmt: skip

TF32_BUGS = (
    tf32("lines of A exchanged", "of_A ? part % 2 : part / 2", "of_A ? 1 - part % 2 : part / 2"),
    tf32("products of A in another order than of B", "of_A ? part / 2 : part % 2", "of_A ? 1 - part / 2 : part % 2",
        op="ntt"),
    tf32("half of the products along k", "along_k ? l : first) + at", "along_k ? l : first) + at / 2"),
    tf32("no rest", "= rest_of(of[e / 4][e % 4]);", "= 0;", dtype="3xtf32"),
    tf32("what is kept of A taken for the rest", "*x = rest_a[s]", "*x = a[s]", dtype="3xtf32"),
    tf32("what is kept of B taken for the rest", "*y = rest_b[o / 2]", "*y = b[o / 2]", dtype="3xtf32"),
    tf32("the rests multiplied", "*x = rest_a[s], *y = b[o / 2]", "*x = rest_a[s], *y = rest_b[o / 2]",
        dtype="3xtf32"),
)  # fmt: skip

REST = "(splits - whole_chunks % splits + split) % splits + whole_chunks"

FEW_BUGS = (
    few("a product too many", FEW, "gathered<vector_t>(at, 1, k - l)", "gathered<vector_t>(at, 1, k - l + 1)"),
    few("a product too many across k", FEW, "l + q < k ?", "l + q <= k ?", op="ntt"),
    few("lines past the last not clamped", FEW, "first + r < count ? first + r : count - 1", "first + r"),
    few("lines past the last not clamped across k", FEW, "first + r < count ? first + r : count - 1", "first + r",
        op="ntt"),
    few("the second tile is the first", FEW, "? first + r : count - 1", "? r : count - 1"),
    few("lower and upper halves exchanged", FEW, "half ? bits & 0xFFFF0000u : bits << 16",
        "half ? bits << 16 : bits & 0xFFFF0000u", op="nn"),
    few("the lower half twice", WIDE, "half ? bits >> 16 : bits", "bits", dtype="f16"),
    few("pairs of products exchanged", WIDE, "word(vectors[line], q / 2)", "word(vectors[line], 3 - q / 2)", op="nn"),
    few("lines and products exchanged", FEW, "e = q * tile_rows + line", "e = line * piece + q", op="nn"),
    few("a vector twice", WIDE, "(X + l * tile_rows) + v)", "(X + l * tile_rows))", op="ntt"),
    few("the edge's lines exchanged", ODD, "r = (v * of_vector + e) % tile_rows;",
        "r = tile_rows - 1 - (v * of_vector + e) % tile_rows;", op="nn"),
    few("the upper half not in its place", FEW, "bits << 16 : bits;", "bits : bits;", op="ntt"),
    few("a leading dimension that is not the lines'", FEW, "ld == tile_rows && count == tile_rows",
        "count == tile_rows", op="nn"),
    few("as many lines as a leading dimension has room for", FEW, "ld == tile_columns && count == tile_columns",
        "ld >= tile_columns", op="ntt"),
    few("addresses not looked at", FEW, "aligned && ld ==", "ld ==", op="ntt"),
    few("vectors that are not aligned", FEW, "% sizeof(vector_t) == 0;", "% 2 == 0;"),
    few("leading dimensions not looked at", FEW, "(X) | ld * sizeof(scalar))", "(X))"),
    few("vectors of both where those of one are aligned", FEW, "Part_A::fits(A, lda, m) && Part_B::fits(B, ldb, n)",
        "Part_A::fits(A, lda, m)", op="tt"),
    few("neighbouring threads at the same k", FEW, "threadIdx.x * piece", "threadIdx.x / 2 * piece"),
    few("the rest of k left out", FEW, "sweep(Flag<false>(), rest, chunks);", ""),
    few("the rest of k taken by every split", FEW, f"rest = {REST}", "rest = whole_chunks"),
    few("nothing where no load is whole", FEW, "sweep(Flag<false>(), split, chunks);", ""),
    few("the next chunk is the neighbour's", FEW, "next += splits;", "next += 1;"),
    few("a chunk too many", FEW, "if (next >= end)", "if (next > end)"),
    few("a chunk multiplied again", FEW, "if (current < end)", "if (true)"),
    few("a product of a piece left out", FEW, "q < piece; ++q", "q < piece - 1; ++q"),
    few("a column of C twice", FEW, "b.element(c, q)", "b.element(c / 2, q)"),
    few("the half that is kept given away", FEW, "given = upper ? sum[s] : sum[count / 2 + s]",
        "given = upper ? sum[count / 2 + s] : sum[s]"),
    few("the first half always kept", FEW, "sum[s] = upper ? sum[count / 2 + s] : sum[s];", ""),
    few("the second half in the first's place", FEW, "to + (upper ? count / 2 : 0)", "to"),
    few("sums of few lanes", ODD, "d > 0; d /= 2", "d > 1; d /= 2"),
    few("every warp's sums in one place", FEW, "left + threadIdx.x / 32 * tile_elements", "left"),
    few("no barrier before the sums are read", FEW,
        "__syncthreads();\n    const auto for_each", "const auto for_each"),
    few("a group's sums left out", WIDE, "last_of(counters + tile_of_C, splits)",
        "last_of(counters + tile_of_C, splits - 1)"),
)  # fmt: skip

HALF_BUGS = (*COPYING_BUGS, *RING_BUGS, *PRODUCT_BUGS, *TF32_BUGS)

RIGHT: tuple[tuple[KernelConfig, str, str], ...] = (
    (BLOCK, "tn", "bf16"), (BLOCK, "tt", "f16"), (COPIES, "ntt", "f16"), (GROUPS, "nn", "bf16"),
    (LONG, "ntt", "bf16"), (TF32, "tn", "tf32"), (TF32, "ntt", "3xtf32"), (TF32, "nn", "3xtf32"),
    (FEW, "tn", "bf16"), (FEW, "ntt", "f16"), (WIDE, "nn", "f16"), (WIDE, "ntt", "bf16"), (ODD, "tt", "bf16"),
)  # fmt: skip


@pytest.mark.parametrize("planted", HALF_BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)


@pytest.mark.parametrize("planted", FEW_BUGS, ids=lambda one: one.name)
def test_a_bug_planted_where_columns_are_few_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, FEW_SHAPE, probes=True)


@pytest.mark.parametrize(("config", "op", "dtype"), RIGHT, ids=lambda one: getattr(one, "text", str(one)))
def test_the_same_kernels_are_accepted_without_the_bug(
    try_kernel: TryKernel, config: KernelConfig, op: str, dtype: str
) -> None:
    shape = FEW_SHAPE if isinstance(config, TsmtFewConfig) else SHAPE
    result = try_kernel(config, Problem(*shape, dtype, op), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail
