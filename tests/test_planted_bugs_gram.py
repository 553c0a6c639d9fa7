"""Verification on the host rejects bugs in the kernels that compute half of a matrix's transpose times itself.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, Shape, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.gram import GramConfig
from tsm2_tune.generator.families.gram_mma import GramMmaConfig
from tsm2_tune.generator.families.tsmt import TsmtConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

# Teams of two threads, of eight, and of a warp; rings of a block and of a warp.
SMALL = GramConfig(128, 128, 16, 128, 2, 0, splits=2, min_blocks=1, lines=8, step=2)
MIDDLE = GramConfig(128, 128, 32, 64, 3, 1, splits=2, min_blocks=1, lines=8, step=4)
LARGE = GramConfig(128, 32, 64, 16, 2, 0, splits=1, min_blocks=1, lines=8, step=1)
MMA_SMALL = GramMmaConfig(128, 32, 16, 16, 3, 1, splits=2, min_blocks=1, warps=1)
MMA_MIDDLE = GramMmaConfig(128, 128, 32, 64, 2, 0, splits=1, min_blocks=1, warps=1)
MMA_LARGE = GramMmaConfig(128, 128, 64, 32, 2, 0, splits=1, min_blocks=1, warps=2)
THREAD = TsmtConfig(128, 8, 8, 8, 8, 2, 2, splits=4, min_blocks=1)
FOUR = TsmtConfig(128, 4, 4, 4, 4, 4, 1, splits=1, min_blocks=1)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, dtype: str = "f32", op: str = "tx") -> Bug:
    size = int(config.tunables.get("tile") or config.tunables["tile_rows"])
    return Bug(name, config, original, planted, dtype=dtype, op=op, shape=(size, size, 1024))


def mma(name: str, config: GramMmaConfig, original: str, planted: str, *, op: str = "tx") -> Bug:
    return bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


MIRROR = "store_C(C, ldc, j, i, alpha, value, beta);"

SHARING_BUGS = (
    bug("a group with its neighbour twice", SMALL, "left_group + 1 - (member - in_squares) % 2", "left_group + 1"),
    bug("squares that overlap", MIDDLE, "member % 4 / 2;", "member % 2;"),
    bug("every square the first", LARGE, "int left_pair = member / 4,", "int left_pair = 0,"),
    bug("columns of a group taken for another's", MIDDLE, "column = line_of(c, right_group)",
        "column = line_of(c, left_group)"),
    bug("rows in another order", LARGE, "row = line_of(r, left_group)", "row = line_of(lines - 1 - r, left_group)",
        op="nxt"),
    bug("a group of the second factor read as of the first", SMALL, "place_of(right_group,", "place_of(left_group,"),
    bug("every product of a step the first", SMALL, "(l + q) * pitch", "l * pitch", op="nxt"),
    bug("steps left out", LARGE, "l += chunk_step", "l += 2 * chunk_step"),
    bug("every team at the same k", SMALL, "place_of(left_group, k_lane * step)", "place_of(left_group, 0)"),
    bug("sums of a warp's teams left out", SMALL, "distance = members;", "distance = 32;"),
    bug("an odd group times itself left out", LARGE, "half_sum[r][c] += a[r][q]", "half_sum[r][c] += 0 * a[r][q]"),
    bug("an odd group's columns times themselves left out", MIDDLE, "r <= c; ++r", "r < c; ++r"),
    bug("an odd group taken for another", LARGE, "place_of(2 * half + 1,", "place_of(2 * half,"),
    bug("halves at the same k", MIDDLE, "half_k_lane * half_products)", "0)"),
    bug("steps of halves left out", LARGE, "l += half_step", "l += 2 * half_step"),
    bug("halves of a warp left out", SMALL, "distance = halves_of_warp;", "distance = 32;"),
    bug("halves over the others' sums", SMALL, "*of_halves = mine + members", "*of_halves = mine + 0 * members"),
    mma("every team at the same k", MMA_MIDDLE, "k_lane * 8; l", "0; l"),
    mma("steps left out", MMA_MIDDLE, "l += chunk_step", "l += 2 * chunk_step", op="nxt"),
    mma("both warps have the first's strips", MMA_LARGE, "if (member == 0)", "if (member >= 0)"),
    mma("a strip of neither warp", MMA_LARGE, "strip == strips - 1 - warp", "strip == strips"),
    mma("products of an octet in another order", MMA_MIDDLE, "from[2 + o % 2]", "from[3 - o % 2]"),
    mma("an octet taken for its neighbour", MMA_SMALL, "{ from[o % 2], from[2 + o % 2] }",
        "{ from[1 - o % 2], from[3 - o % 2] }", op="nxt"),
    mma("rows of C in another order", MMA_LARGE, "row_of(strip, lane / 4, part / 2)",
        "row_of(strip, lane / 4, 1 - part / 2)"),
    mma("columns of C in another order", MMA_SMALL, "lane % 4 * 2 + part % 2", "lane % 4 * 2 + 1 - part % 2"),
    mma("a strip's sums over another's", MMA_MIDDLE, "mine[((octets_before(s) + o", "mine[((o"),
)  # fmt: skip

MIRRORING_BUGS = (
    bug("no mirror image", SMALL, MIRROR, ";"),
    bug("the mirror image scaled by another beta", LARGE, MIRROR, MIRROR.replace("beta", "alpha")),
    bug("the diagonal twice", MIDDLE, "if (row != column)", "if (true)"),
    bug("an element and its mirror image twice", SMALL, "return left_group != right_group || r <= c;",
        "return true;"),
    bug("a mirror image for each element of a group", SMALL, "|| r <= c;", "|| r < c;"),
    mma("no mirror image", MMA_LARGE, MIRROR, ";"),
    mma("an element and its mirror image twice", MMA_SMALL, "return row <= column;", "return true;"),
    mma("no diagonal", MMA_MIDDLE, "return row <= column;", "return row < column;"),
    bug("no mirror image (thread)", THREAD, MIRROR, ";"),
    bug("a mirror image not conjugated", THREAD, "conjugate(value)", "value", dtype="c64", op="cx"),
    bug("a mirror image conjugated twice", THREAD, "alpha, conjugate(value), beta",
        "conjugate(alpha), conjugate(value), beta", dtype="c64", op="jxt"),
)  # fmt: skip

TILE_BUGS = (
    bug("a tile beside the diagonal taken for one on it", SMALL, "if (first_row == first_column)", "if (true)"),
    bug("both parts of X in one place", MIDDLE, "stage_edge(ring + place_elements, first_column",
        "stage_edge(ring, first_column"),
    bug("the rows' part of X twice", LARGE, "first_column, current);", "first_row, current);"),
    bug("parts of X not awaited", SMALL, "await_copies<0>();\n            meet();", "meet();"),
    bug("no barrier before parts of X are read", MIDDLE, "meet();\n            multiply(Flag<false>",
        "multiply(Flag<false>"),
    bug("no barrier after parts of X are read", SMALL, "ring + place_elements);\n            meet();",
        "ring + place_elements);"),
    bug("halves of a tile beside the diagonal as on it", MIDDLE, "decltype(once)::value ? a[c][q] : b[c][q]",
        "a[c][q]"),
    mma("a tile beside the diagonal taken for one on it", MMA_SMALL, "if (first_row == first_column)", "if (true)"),
    mma("octets of a tile's own rows", MMA_LARGE, "load(other, staged_b", "load(other, staged_a"),
    bug("a tile beside the diagonal taken for one on it (thread)", THREAD, "first_row == first_column;", "true;",
        dtype="c64", op="cx"),
)  # fmt: skip

EDGE = "stage_at_the_edge<tile, pitch, along_k, width>(staged, A, lda, first, m, current * chunk, k);"

RING_BUGS = (
    bug("an edge left out", SMALL, EDGE, ""),
    bug("the whole chunks one too many", MIDDLE, "<= m ? k / chunk : 0", "<= m ? chunks : 0"),
    bug("a tile that is not full taken for full", LARGE, "vectors && first_row + tile <= m", "vectors"),
    bug("vectors that are not aligned", MIDDLE, "vectors && first_row", "first_row"),
    bug("leading dimensions not looked at", SMALL, "(A) | lda * sizeof(scalar))", "(A))", op="nxt"),
    bug("the first products again", LARGE, "from += along_k", "from += 0 * along_k"),
    bug("a chunk not fetched", SMALL, "fetch_next();\n            meet();", "meet();"),
    bug("an edge not awaited", SMALL, "await_copies<0>();\n            }", "}"),
    bug("copies not awaited", MIDDLE, "await_copies<stages - 2>();", ""),
    bug("no barrier before a chunk is read", MIDDLE, "meet();  //", "//"),
    bug("no barrier of a warp before a chunk is read", LARGE, "meet();  //", "//"),
    bug("the place that is read refilled", MIDDLE, "place == 0 ? stages - 1 : place - 1", "place"),
    bug("one place of the ring", MIDDLE, "place = place + 1 == stages ? 0 : place + 1;", ""),
    bug("rings that share memory", LARGE, "left + threadIdx.x / sharers * (stages", "left + 0 * (stages"),
    bug("every ring begins at the first chunk", LARGE, "begin = split * rings_of_block + threadIdx.x / sharers",
        "begin = split * rings_of_block"),
    bug("every split begins at the first chunk", SMALL, "begin = split * rings_of_block", "begin = 0"),
    bug("chunks counted one by one", LARGE, "current += rings", "current += 1"),
    bug("the rest of k left out", MIDDLE, "chunks = (k + chunk - 1) / chunk", "chunks = k / chunk"),
    mma("sums over rings that are read", MMA_SMALL, "__syncthreads();  // the rings are", "//"),
)  # fmt: skip

THREAD_BUGS = (
    bug("no diagonal", THREAD, "r < c + 1; ++r", "r < c; ++r"),
    bug("sums in another's place", FOUR, "sum[c * (c + 1) / 2 + r] +=", "sum[c * (c - 1) / 2 + r] +="),
    bug("an odd number of sums halved", THREAD, "even < teams_of_warp ? even : teams_of_warp", "teams_of_warp"),
    bug("sums that are none", FOUR, "return e < sums_of_thread;", "return true;"),
    bug("rows taken for columns", FOUR, "row -= column + 1;", "row -= column;"),
    bug("the second factor not loaded", THREAD, "? a[g] : b[g]", "? b[g] : b[g]"),
)  # fmt: skip

ALL = [*SHARING_BUGS, *MIRRORING_BUGS, *TILE_BUGS, *RING_BUGS, *THREAD_BUGS]


@pytest.mark.parametrize("config", dict.fromkeys(one.config for one in ALL), ids=lambda config: config.text)
@pytest.mark.parametrize("op", ["tx", "nxt"])
def test_without_a_bug_it_is_right(try_kernel: TryKernel, config: KernelConfig, op: str) -> None:
    size = int(config.tunables.get("tile") or config.tunables["tile_rows"])
    dtype = "f64" if isinstance(config, GramMmaConfig) else "f32"
    result = try_kernel(config, Problem(size, size, 1024, dtype, op), str, True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("planted", ALL, ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert planted.shape is not None
    shape: Shape = planted.shape
    assert_rejected(try_kernel, planted, shape, probes=True)
