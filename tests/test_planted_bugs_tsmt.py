"""Verification on the host rejects bugs in the kernels whose C is small and whose k every thread shares.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, Shape, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.tsmt import TsmtConfig
from tsm2_tune.generator.families.tsmt_mma import TsmtMmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

SHAPE = (16, 16, 1024)

# A thread's tile of C, of which a warp has several teams, one team, or half of one.
ONE = TsmtConfig(128, 16, 16, 8, 8, step=4, stages=2, splits=1, min_blocks=1)
FLAT = TsmtConfig(128, 16, 16, 8, 8, step=4, stages=2, splits=16, min_blocks=1)
GROUPS = TsmtConfig(128, 32, 16, 8, 8, step=2, stages=2, splits=80, min_blocks=1)
UNEVEN = TsmtConfig(128, 16, 16, 4, 8, step=2, stages=1, splits=132, min_blocks=1)  # its last group has 4 splits
ALONE = TsmtConfig(128, 8, 8, 8, 8, step=2, stages=1, splits=16, min_blocks=1)
LARGE = TsmtConfig(128, 64, 64, 8, 8, step=1, stages=4, splits=16, min_blocks=1)
SMALL = TsmtConfig(128, 2, 2, 2, 2, step=4, stages=1, splits=16, min_blocks=1)  # fewer sums than teams in a warp
MMA_ONE = TsmtMmaConfig(128, 16, 16, 1, 2, step=8, stages=2, splits=1, min_blocks=1)
MMA_FLAT = TsmtMmaConfig(128, 32, 16, 1, 2, step=8, stages=3, splits=16, min_blocks=1)
MMA_GROUPS = TsmtMmaConfig(128, 16, 32, 1, 4, step=16, stages=2, splits=80, min_blocks=2)
MMA_UNEVEN = TsmtMmaConfig(128, 32, 32, 2, 2, step=8, stages=2, splits=132, min_blocks=1)
MMA_NARROW = TsmtMmaConfig(128, 8, 8, 1, 1, step=16, stages=2, splits=16, min_blocks=1)
MMA_LARGE = TsmtMmaConfig(256, 64, 64, 2, 4, step=8, stages=2, splits=16, min_blocks=1)


def mma(name: str, config: TsmtMmaConfig, original: str, planted: str, *, op: str = "tn") -> Bug:
    return Bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


def tsmt(name: str, config: TsmtConfig, original: str, planted: str, *, dtype: str = "f32", op: str = "tn") -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


MEMBERS = "splits - group * group_splits < group_splits ? splits - group * group_splits : group_splits"
REST = "(splits - whole_chunks % splits + split) % splits + whole_chunks"
ADDRESS = "(reinterpret_cast<unsigned long long>(X) | ld * sizeof(scalar))"

RESET = "before < last ? before + 1 : 0"
SPLITTING_BUGS = (
    tsmt("a group's sums left out", GROUPS, "tile_elements, groups, put)", "tile_elements, groups - 1, put)"),
    tsmt("a group's sums added twice", GROUPS, "loaded[s].element[e]", "loaded[s ? s - 1 : 0].element[e]"),
    tsmt("a group's sums over another's", UNEVEN, "(splits + group) *", "(splits + group / 2) *"),
    tsmt("a group's sums over a split's", UNEVEN, "(splits + group) *", "(splits + group - 1) *"),
    tsmt("a group's counter not reset", UNEVEN, RESET, "before < last || last == 15 ? before + 1 : 0"),
    tsmt("the groups' own counter not reset", UNEVEN, RESET, "before < last || last == 8 ? before + 1 : 0"),
    tsmt("as many members in the last group", UNEVEN, MEMBERS, "group_splits"),
    tsmt("a member too few in every group", GROUPS, MEMBERS, "group_splits - 1"),
    tsmt("a group too few", GROUPS, "last_of(counter, groups)", "last_of(counter, groups - 1)"),
    tsmt("a group counted behind the last counter", GROUPS, "counter + 1 + group", "counter + 2 + group"),
    tsmt("every group in the first's sums", GROUPS, "add_up(sums + group * group_splits", "add_up(sums + 0 * group"),
    tsmt("tiles that share counters", GROUPS, "tile_of_C * (1 + groups)", "tile_of_C"),
    tsmt("one counter for every tile", FLAT, "last_of(counters + tile_of_C", "last_of(counters"),
    tsmt("tiles that share sums", FLAT, "partials + tile_of_C *", "partials + 0 *"),
    tsmt("a tile's groups over the next one's splits", UNEVEN, "(long long)((splits + groups)",
        "(long long)((splits)"),
    tsmt("every split's sums in the first's place", FLAT, "sums + split * tile_elements", "sums + 0 * tile_elements"),
    tsmt("the last block but one adds up", FLAT, "before == count - 1", "before == count - 2"),
    tsmt("every block adds up", FLAT, "return before == count - 1", "return true"),
    tsmt("half of a tile's sums not added up", LARGE, "turn * threads + threadIdx.x",
        "2 * turn * threads + threadIdx.x"),
    tsmt("an adder's last sums left out", UNEVEN, "(count - adder + adders - 1) / adders", "count / adders"),
    tsmt("an adder left out", FLAT, "adder < adders;", "adder < adders - 1;"),
    tsmt("every adder in the first's sums", FLAT, "from + place, adders",
        "from + v % vectors_of_tile * width, adders"),
    tsmt("every sum added by each adder", FLAT, "from + place, adders * tile_elements",
        "from + place, tile_elements"),
    tsmt("no barrier before the adders' sums are read", FLAT,
        "        __syncthreads();\n        for_each(tile_elements", "        for_each(tile_elements"),
    tsmt("sums read past the workspace", UNEVEN, "first + s < count ? first + s : count - 1", "first + s"),
    tsmt("splits that are not their blocks'", FLAT, "tiles == 1 ? blockIdx.x : blockIdx.x / tiles", "blockIdx.x"),
    mma("as many members in the last group", MMA_UNEVEN, MEMBERS, "group_splits"),
    mma("a group's counter not reset", MMA_UNEVEN, RESET, "before < last || last == 15 ? before + 1 : 0"),
    mma("a group's sums left out", MMA_GROUPS, "tile_elements, groups, put)", "tile_elements, groups - 1, put)"),
)  # fmt: skip

SWEEPING_BUGS = (
    tsmt("the rest of k left out", FLAT, "sweep(Flag<false>(), rest, chunks);", ""),
    tsmt("the rest of k taken by every split", FLAT, f"rest = {REST}", "rest = whole_chunks"),
    tsmt("a chunk before the rest taken twice", FLAT, f"rest = {REST}", f"rest = {REST} - 1"),
    tsmt("the rest of k left out where nothing is a vector", FLAT, "sweep(Flag<false>(), split, chunks)",
        "sweep(Flag<false>(), split, whole_chunks)"),
    tsmt("the next chunk is the neighbour's", FLAT, "next += splits;", "next += 1;"),
    tsmt("the next chunk is the neighbour's, of many splits", GROUPS, "next += splits;", "next += 1;"),
    tsmt("chunks counted one by one", FLAT, "current += splits;", "current += 1;"),
    tsmt("chunks of many splits counted one by one", GROUPS, "current += splits;", "current += 1;"),
    tsmt("every split begins at the first chunk", FLAT, "Flag<true>(), split, whole", "Flag<true>(), 0, whole"),
    tsmt("the ring not advanced", FLAT, "load_next(a[g], b[g]);\n                __syncwarp", "__syncwarp"),
    tsmt("a chunk too many", FLAT, "if (next >= end)", "if (next > end)"),
    tsmt("a chunk multiplied again", FLAT, "if (current < end)", "if (true)"),
    tsmt("neighbouring threads at the same k", FLAT, "threadIdx.x / team *", "threadIdx.x / team / 2 *"),
    tsmt("a product too many", FLAT, "l + q < k ? X[line * ld", "l + q <= k ? X[line * ld"),
    tsmt("a product too many along the lines", FLAT, "q * apart < k ? X", "q * apart <= k ? X", op="ntt"),
    tsmt("neighbouring lanes at the same k along the lines", FLAT, "threadIdx.x / team *", "threadIdx.x / team / 2 *",
        op="ntt"),
    tsmt("whole products of other lanes", FLAT, "(l + q * apart) * ld + from", "(l + q) * ld + from", op="ntt"),
    tsmt("products of other lanes at the end of k", FLAT, "X[(l + q * apart) * ld + line]", "X[(l + q) * ld + line]",
        op="ntt"),
    tsmt("the lines past the last not the last", FLAT, ": last - 1", ": last", op="ntt"),
    tsmt("the lines past the last not clamped", FLAT, "first + r < last ? first + r : last - 1", "first + r"),
    tsmt("the vectors past the last not clamped", FLAT, "first + lines <= last ? first : last - lines", "first",
        op="ntt"),
    tsmt("a vector too early past the last", FLAT, ": last - lines;", ": last - lines / 2;", op="ntt"),
    tsmt("half of a vector twice", FLAT, "+ v));", "+ v / 2));", op="ntt"),
    tsmt("half of a narrow vector twice", GROUPS, "to[2 * v + 1] = bits.y;", "to[2 * v + 1] = bits.x;"),
    mma("the rest of k left out", MMA_FLAT, "sweep(Flag<false>(), rest, chunks);", ""),
    mma("the rest of k left out of pairs along m", MMA_FLAT, "sweep(Flag<false>(), rest, chunks);", "", op="ntt"),
    mma("the rest of k taken by every split", MMA_FLAT, f"rest = {REST}", "rest = whole_chunks"),
    mma("a chunk before the rest taken twice", MMA_FLAT, f"rest = {REST}", f"rest = {REST} - 1", op="ntt"),
    mma("the next chunk is the neighbour's, of many splits", MMA_GROUPS, "next += splits;", "next += 1;"),
    mma("chunks of many splits counted one by one", MMA_GROUPS, "current += splits;", "current += 1;"),
    mma("the ring not advanced", MMA_FLAT, "load_next(a[s], b[s]);\n                __syncwarp", "__syncwarp"),
    mma("every warp at the same k", MMA_ONE, "warp / team * step + 2 * t", "2 * t"),
    mma("a product too many", MMA_FLAT, "p < k, p + 1 < k", "p < k, p < k"),
    mma("a product too many along the rows", MMA_FLAT, "p < k, p < k && i + 1 < m", "true, i + 1 < m", op="ntt"),
    mma("the rows past the last not the last", MMA_FLAT, "wanted < m ? wanted : m - 1", "wanted < m ? wanted : m"),
    mma("pairs of rows past the last not clamped", MMA_FLAT, "i = wanted < last ? wanted : last",
        "i = wanted", op="ntt"),
    mma("whole pairs of rows past the last not clamped", MMA_FLAT, "i = wanted < last",
        "i = whole || wanted < last", op="ntt"),
    mma("the last pair of rows one too late", MMA_FLAT, "whole ? m - 2 : m - 1", "m - 1", op="ntt"),
    mma("the last pair of columns one too late", MMA_FLAT, "whole ? n - 2 : n - 1", "n - 1", op="nt"),
    mma("the columns past the last not the last", MMA_FLAT, "(j < n ? j : n - 1)", "j"),
)  # fmt: skip

# Not among them: that `length % elements` and m % 2 are not looked at. On the host every operand ends where a page
# does, so that where a line's length is odd, an even leading dimension never comes with an aligned address.
ALIGNED_BUGS = (
    tsmt("vectors that are not aligned", FLAT, "return aligned &&", "return"),
    tsmt("vectors along m and n that are not aligned", FLAT, "return aligned &&", "return", op="ntt"),
    tsmt("leading dimensions not looked at", FLAT, ADDRESS, "(reinterpret_cast<unsigned long long>(X))"),
    tsmt("leading dimensions along m and n not looked at", FLAT, ADDRESS,
        "(reinterpret_cast<unsigned long long>(X))", op="nt"),
    tsmt("addresses not looked at", FLAT, ADDRESS, "(ld * sizeof(scalar))", dtype="f64"),
    tsmt("addresses of narrow vectors not looked at", UNEVEN, ADDRESS, "(ld * sizeof(scalar))"),
    tsmt("vectors of both where those of one are aligned", FLAT, "&& fits(B,", "|| fits(B,", op="nn"),
    mma("pairs that are not aligned", MMA_FLAT, "% 16 == 0", "% 8 == 0"),
    mma("pairs along m and n that are not aligned", MMA_FLAT, "% 16 == 0", "% 8 == 0", op="ntt"),
    mma("leading dimensions not looked at", MMA_FLAT, "| ld * sizeof(double)", ""),
    mma("leading dimensions along m and n not looked at", MMA_FLAT, "| ld * sizeof(double)", "", op="nt"),
    mma("addresses not looked at", MMA_FLAT, "reinterpret_cast<unsigned long long>(X) | ", ""),
    mma("pairs of both where those of one are aligned", MMA_FLAT, "&& aligned(B", "|| aligned(B", op="nn"),
)  # fmt: skip

ADDING_BUGS = (
    tsmt("the last distance of the shuffle left out", FLAT, "distance * teams_of_warp < 32",
        "distance * teams_of_warp < 64"),
    tsmt("the first distance of the shuffle left out", FLAT, "<sums_of_thread, 16>", "<sums_of_thread, 8>"),
    tsmt("members of a team added up", FLAT, "distance * teams_of_warp < 32", "distance * teams_of_warp < 16"),
    tsmt("the half that is kept given away", FLAT, "given = upper ? sum[s] : sum[count / 2 + s]",
        "given = upper ? sum[count / 2 + s] : sum[s]"),
    tsmt("the first half always kept", FLAT, "sum[s] = upper ? sum[count / 2 + s] : sum[s];", ""),
    tsmt("the second half in the first's place", FLAT, "upper ? first + count / 2 : first", "first"),
    tsmt("one sum not added up over the warp", SMALL, "sum[s] += __shfl_xor_sync(0xFFFFFFFFu, sum[s], distance);",
        ""),
    tsmt("a lane's last sum left out", FLAT, "s < kept;", "s < kept - 1;"),
    tsmt("columns of a thread's tile taken for rows", FLAT, "r = (kept_first + s) % rows",
        "r = (kept_first + s) / rows"),
    tsmt("every warp's sums in the first's place", FLAT, "threadIdx.x / 32 / warps_of_team *", "0 *"),
    tsmt("two warps' sums in one place", ONE, "threadIdx.x / 32 / warps_of_team *", "threadIdx.x / 64 *"),
    tsmt("warps of one team apart", LARGE, "threadIdx.x / 32 / warps_of_team *", "threadIdx.x / 32 *"),
    tsmt("no barrier before the sums are read", ONE, "__syncthreads();", ""),
    tsmt("a warp's sums left out", FLAT, "s < sums_of_tile;", "s < sums_of_tile - 1;"),
    tsmt("a warp's sums added twice", ONE, "left[s * tile_elements", "left[(s ? s - 1 : 0) * tile_elements"),
    tsmt("rows of C taken for columns", FLAT, "% team % team_rows * rows", "% team / team_rows * rows"),
    tsmt("the sums of C transposed", ALONE, "(column + c) * tile_rows + row + r",
        "(row + r) * tile_rows + column + c"),
    tsmt("every tile of C in its first rows", FLAT, "(tile_of_C - across * tiles_down) *", "0 *"),
    tsmt("every tile of C in its first columns", FLAT, "tiles == tiles_down ? 0 : tile_of_C / tiles_down", "0"),
    tsmt("tiles of C across taken for tiles down", FLAT, "(m + tile_rows - 1)", "(n + tile_rows - 1)"),
    tsmt("C written past n", FLAT, "if (i < m && j < n)", "if (i < m)"),
    tsmt("C written past m", FLAT, "if (i < m && j < n)", "if (j < n)", op="ttt"),
    tsmt("alpha left out", FLAT, "alpha * sum : alpha * sum +", "sum : sum +"),
    tsmt("beta left out", FLAT, "+ beta * sum_t(element)", "+ sum_t(element)"),
    tsmt("C read though beta is 0", FLAT, "beta == 0 ? alpha * sum : alpha", "alpha"),
    tsmt("alpha for each split too", FLAT, "e, total_of_block(e)); });",
        "e, alpha * total_of_block(e)); });"),
    tsmt("a row-major C written along its columns", FLAT, "C[i * ldc + j]", "C[i + j * ldc]", op="ntt"),
    tsmt("factors of lower precision", FLAT, "a[r][q] * b[c][q]", "a[r][q] * float(b[c][q])", dtype="f64"),
    mma("every warp's sums in the first's place", MMA_ONE, "left + warp / team *", "left + 0 *"),
    mma("no barrier before the sums are read", MMA_ONE, "__syncthreads();", ""),
    mma("a warp's sums left out", MMA_FLAT, "s < sums_of_tile;", "s < sums_of_tile - 1;"),
    mma("alpha left out", MMA_FLAT, "alpha * sum : alpha * sum +", "sum : sum +"),
    mma("beta left out", MMA_FLAT, "+ beta * sum_t(element)", "+ sum_t(element)"),
)  # fmt: skip

FRAGMENT_BUGS = (
    mma("a column of an octet in another's place", MMA_FLAT, "return 8 * octet + slot;",
        "return 8 * octet + slot / 2;"),
    mma("columns of octets side by side", MMA_FLAT, "octet / 2 * 16 + 2 * slot + octet % 2", "8 * octet + slot",
        op="ntt"),
    mma("columns of two octets swapped", MMA_FLAT, "octet / 2 * 16 + 2 * slot + octet % 2",
        "octet / 2 * 16 + 2 * slot + 1 - octet % 2", op="ntt"),
    mma("columns of C swapped", MMA_FLAT, "2 * t + e % 2)", "2 * t + 1 - e % 2)"),
    mma("rows of C swapped", MMA_FLAT, "* s + e / 2,", "* s + 1 - e / 2,"),
    mma("products of A in another order than of B", MMA_FLAT, "a[d][s][r] = bits.x;\n                "
        "a[d][s][lane_rows + r] = bits.y;",
        "a[d][s][r] = bits.y;\n                a[d][s][lane_rows + r] = bits.x;"),
    mma("products of B in another order than of A", MMA_FLAT, "b[d][o][half] = bits.x;",
        "b[d][o][1 - half] = bits.x;", op="ntt"),
    mma("pairs of A across the fragment", MMA_FLAT, "a[d][s][2 * half] = bits.x;", "a[d][s][half] = bits.x;",
        op="ntt"),
    mma("every load's first eight products twice", MMA_GROUPS, "a[s][d][i], b[s][d][o]", "a[s][0][i], b[s][d][o]"),
    mma("every strip of rows the first", MMA_UNEVEN, "a[s][d][i], b", "a[s][d][0], b"),
    mma("every octet of columns the first", MMA_FLAT, "b[s][d][o])", "b[s][d][0])"),
    mma("every warp in the first strips of rows", MMA_FLAT, "warp % team % team_rows *", "0 *"),
    mma("every warp in the first octets of columns", MMA_LARGE, "warp % team / team_rows * (8", "0 * (8"),
    mma("operands of lower precision", MMA_FLAT, "b[d][o][0] = bits.x;", "b[d][o][0] = float(bits.x);"),
)  # fmt: skip

NARROW_BUGS = (
    mma("rows of a narrow tile past the last not the last", MMA_NARROW, "wanted < m ? wanted : m - 1",
        "wanted < m ? wanted : m"),
    mma("rows past the last of a narrow tile not clamped", MMA_NARROW, "i = wanted < last ? wanted : last",
        "i = wanted", op="ntt"),
    mma("columns past the last of a narrow tile not clamped", MMA_NARROW, "j = wanted < n ? wanted : n - 1",
        "j = wanted", op="ntt"),
    mma("products of A in another order than of B, narrow", MMA_NARROW, "a[d][s][half] =", "a[d][s][1 - half] =",
        op="ntt"),
    mma("products of B in another order than of A, narrow", MMA_NARROW, "b[d][0][half] =", "b[d][0][1 - half] =",
        op="ntt"),
    mma("narrow products past k", MMA_NARROW, "inside ? *at : 0", "*at", op="ntt"),
    mma("rows of a narrow tile in pairs", MMA_NARROW, "lane_rows * g", "2 * g"),
    mma("every narrow load's first eight products twice", MMA_NARROW, "a[s][d][i], b[s][d][o]",
        "a[s][0][i], b[s][d][o]"),
    mma("columns of a narrow C swapped", MMA_NARROW, "2 * t + e % 2)", "2 * t + 1 - e % 2)"),
)  # fmt: skip

# Tiles whose sums are smaller than a vector of 16 bytes.
TINY = tuple(
    TsmtConfig(128, *tile, *tile, step=4, stages=1, splits=splits, min_blocks=1)
    for tile, splits in (((1, 1), 16), ((2, 1), 80), ((1, 2), 16))
)
RIGHT = (
    *((ONE, dtype, op) for dtype, op in (("f32", "tn"), ("f64", "nt"))),
    *((FLAT, dtype, op) for dtype in ("f32", "f64") for op in ("tn", "ntt", "nn")),
    *((GROUPS, dtype, op) for dtype, op in (("f32", "nt"), ("f32", "ttt"), ("f64", "tn"))),
    *((SMALL, dtype, "tn") for dtype in ("f32", "f64")),
    (UNEVEN, "f64", "tt"),
    *((config, "f32", op) for config, op in ((ALONE, "ttt"), (LARGE, "ntt"))),
    *((config, "f64", op) for config, op in ((ALONE, "ntt"), (LARGE, "tn"))),
    *((MMA_FLAT, "f64", op) for op in ("tn", "ntt", "nt", "nn", "tt", "ttt")),
    *((MMA_GROUPS, "f64", op) for op in ("tn", "ntt", "nn")),
    *((MMA_NARROW, "f64", op) for op in ("tn", "ntt", "nn", "tt")),
    *((config, "f64", "tn") for config in (MMA_ONE, MMA_UNEVEN, MMA_LARGE)),
)  # fmt: skip


@pytest.mark.parametrize("shape", [(5, 11, 1027), (19, 9, 2600)], ids=str)
@pytest.mark.parametrize(("config", "dtype", "op"), RIGHT, ids=lambda one: getattr(one, "text", one))
def test_the_template_itself_is_right(
    try_kernel: TryKernel, config: KernelConfig, dtype: str, op: str, shape: Shape
) -> None:
    result = try_kernel(config, Problem(*shape, dtype, op), lambda text: text, probes=shape[0] < 16)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("config", TINY, ids=lambda config: config.text)
def test_tiles_smaller_than_a_vector_are_right(try_kernel: TryKernel, config: KernelConfig, dtype: str) -> None:
    result = try_kernel(config, Problem(3, 3, 4099, dtype, "tn"), lambda text: text, probes=True)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize(
    "bug",
    [*SPLITTING_BUGS, *SWEEPING_BUGS, *ALIGNED_BUGS, *ADDING_BUGS, *FRAGMENT_BUGS, *NARROW_BUGS],
    ids=lambda bug: bug.name,
)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
