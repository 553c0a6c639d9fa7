"""Verification on the host rejects bugs in the kernels whose lanes lie along the rows of a row-major A.

Each is planted in a configuration that is tuned for whole tiles, strips and shares of k, as a user's may be: what
finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.tsmm_rows import TsmmRowsConfig
from tsm2_tune.generator.families.tsmr_rows import TsmrRowsConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

TALL_SHAPE = (512, 16, 16)
LARGE_SHAPE = (192, 8, 1536)

TALL = TsmmRowsConfig(128, 16, 4, 1, 1, 16, 4, row_tiles=2, min_blocks=1)
TEAMS = TsmmRowsConfig(128, 16, 2, 2, 2, 8, 4, row_tiles=1, min_blocks=1)
WIDE = TsmmRowsConfig(128, 16, 2, 1, 8, 8, 2, row_tiles=2, min_blocks=1)  # a block's tiles follow one another
SPREAD = TsmmRowsConfig(128, 16, 1, 2, 2, 8, 4, row_tiles=1, min_blocks=1)
FEW = TsmmRowsConfig(128, 8, 8, 1, 1, 4, 2, row_tiles=2, min_blocks=1)  # fewer columns than lanes
JOINED = TsmmRowsConfig(128, 16, 1, 1, 1, 2, 8, row_tiles=2, min_blocks=1, joined=2)  # rows of a vector
SPLIT = TsmrRowsConfig(128, 16, 32, 4, 8, 1, 2, splits=3, strips=6, min_blocks=3)
MANY = TsmrRowsConfig(128, 16, 32, 4, 8, 1, 2, splits=3, strips=40, min_blocks=3)  # more sums than threads
GROUPS = TsmrRowsConfig(128, 16, 8, 2, 4, 2, 2, splits=1, strips=6, min_blocks=3)
ACROSS = TsmrRowsConfig(128, 16, 128, 4, 8, 1, 2, splits=3, strips=6, min_blocks=4)  # all warps along a row
ALONE = TsmrRowsConfig(128, 16, 32, 4, 1, 1, 2, splits=1, strips=6, min_blocks=3)  # a column of B
THREES = TsmrRowsConfig(128, 16, 128, 4, 3, 1, 2, splits=2, strips=6, min_blocks=4)
NARROW = TsmrRowsConfig(128, 8, 16, 4, 2, 2, 1, splits=2, strips=5, min_blocks=3)


def tall(
    name: str, original: str, planted: str, *, config: KernelConfig = TALL, dtype: str = "f32", op: str = "ttt"
) -> Bug:
    return Bug(f"{name} (tall)", config, original, planted, dtype=dtype, op=op, shape=TALL_SHAPE)


def large(
    name: str, original: str, planted: str, *, config: KernelConfig = SPLIT, dtype: str = "f32", op: str = "ttt"
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


# Not among them: that one operand's address or leading dimension is not looked at where the others are. Rows of whole
# vectors end where a page does, so that they begin at aligned addresses, and operands are padded alike.
LANE_BUGS = (
    tall("columns of C in the order of B's", "(j / count ^ (lane / distance & 1))", "(j / count)"),
    tall("the half that a lane keeps given away", "sum[count - left + j], lanes_left", "sum[j], lanes_left"),
    tall("the last two lanes not added up", "if constexpr (lanes_left > 1)", "if constexpr (lanes_left > 2)"),
    tall("a sum's lanes all store it", "(lane & doubled_of(columns, lanes)) == 0", "true", config=FEW),
    tall("every team in the first's columns", "column = team * columns,", "column = 0,", config=TEAMS),
    tall("a lane's packs of C side by side", "j + spread(c)", "j + c", config=SPREAD),
    tall("a lane's packs of B side by side", "return spread(column + j)", "return column + j", config=SPREAD),
    tall("every group in the first's rows", "r / store_rows * groups + group", "r / store_rows * groups"),
    tall("every warp in the first's rows", " + threadIdx.x / 32 * (groups * rows)", ""),
    tall("a row's second vectors beside the first", "at + v * lanes * piece));", "at + v * piece));", config=TEAMS),
    tall("a lane's part of B beside another's", "load(l + v * lanes * piece", "load(l + v * piece", config=TEAMS,
        op="tnt"),
    large("a lane gives what it keeps", "const sum_t given = upper ? sum[j] : sum[count - left + j];",
        "const sum_t given = upper ? sum[count - left + j] : sum[j];"),
    large("every lane keeps the lower half", "left < count && lane / distance % 2;", "false;"),
    large("every lane's sums in the first's place", "first += lane / distance % 2 * count", "first += 0"),
    large("a sum's lanes all store it", " && (lane & doubled_of(sums, team_lanes)) == 0;", ";",
        config=ALONE),
    large("every group in the first's place", "group * sums + first_kept", "0 * sums + first_kept",
        config=TsmrRowsConfig(128, 16, 16, 4, 8, 1, 2, splits=3, strips=6, min_blocks=3)),
    large("every group in the first's rows", "row_of(strip) + group * rows;", "row_of(strip);", config=GROUPS),
    large("the lanes' parts of B side by side", " + lane * pack)", " + lane)"),
    large("a row's second vectors against the first's of B", "(v * packs + p) * pack_pitch", "p * pack_pitch",
        config=GROUPS),
    large("every stage against the first's B", "place = next_place;", "place = g + 1 < stages ? place : next_place;"),
    large("a part of B in another order than it is read", "l % run * columns + c;", "l % run + c * run;"),
)  # fmt: skip

TALL_BUGS = (
    tall("rows of A past the last read", "(i < m ? i : 0)", "i"),
    tall("the next rows not loaded", "if (tile + next_tile < end)", "if (false)"),
    tall("this tile's rows again", "row_of(tile + next_tile, r)", "row_of(tile, r)"),
    tall("every tile of C in the first's place", "row_of(tile, s), m, column", "row_of(first_row, s), m, column"),
    tall("rows of other groups taken for a group's", "r / store_rows * groups + group", "r / store_rows + group"),
    tall("every other tile left out", "tile < end; tile += next_tile", "tile < end; tile += 2 * next_tile"),
    tall("every other tile of a wide C left out", "together ? block_rows", "together ? 2 * block_rows", config=WIDE),
    tall("a wide C's blocks a tile apart", "? row_tiles * block_rows : block_rows", "? block_rows : block_rows",
        config=WIDE),
    tall("the elements past a row read", "if (v * lanes * piece < left)", "if (true)"),
    tall("an element past a row read", "v * lanes * piece + e < left", "v * lanes * piece + e <= left"),
    tall("A as vectors that are not aligned", " && aligned(A, lda, vector_bytes);", ";"),
    tall("leading dimensions not looked at", "(X) | ld * sizeof(scalar))", "(X))"),
    tall("long rows as vectors", "fast = k <= depth && k % width", "fast = k % width"),
    tall("long rows cut off", "part < k; part += depth", "part < depth; part += depth"),
    tall("the same B for all of a long row", "part + l, k, first_column", "l, k, first_column"),
    tall("B kept where a row is longer", "if (k > depth || tile == first_row)", "if (part == 0)"),
    tall("a row of B too many", "row < k && column", "row <= k && column"),
    tall("a column of B too many", "&& column < n ?", "&& column <= n ?"),
    tall("C written past m", "if (i + r < m && column", "if (column"),
    tall("C written past n", "i + r < m && column < n)", "i + r < m)"),
    tall("the first columns for every block", "blockIdx.x % tiles_across * block_columns", "0"),
    tall("every block in the first rows", "block_down = blockIdx.x / tiles_across", "block_down = 0"),
    tall("C read though beta is 0", "if (beta != 0)", "if (true)"),
    tall("C not read", "if (beta != 0)", "if (false)"),
    tall("alpha left out", "alpha * sum[e]", "sum[e]"),
    tall("beta left out", "+= beta * sum_t(before.element[e])", "+= sum_t(before.element[e])"),
    tall("factors of lower precision", "sum_t(elements.element[e])", "float(elements.element[e])", dtype="f64"),
    tall("a column-major B read along its rows", "row + column * ldb", "row * ldb + column", op="tnt"),
    tall("neighbours of B in the first's place", "b[v][e + x][c]", "b[v][e][c]", op="tnt"),
    tall("neighbours of a row-major B in the first's place", "b[v][e][c + x]", "b[v][e][c]"),
    tall("a column-major C written along its rows", "C + i + r + (j + c) * ldc", "C + (i + r) * ldc + j + c",
        op="tt"),
    tall("rows of C swapped", "sum[r + e][c]", "sum[r + size - 1 - e][c]", op="tt"),
    tall("a column-major C written past m", "i + r < m && ", "", op="tn"),
    tall("padded rows as if nothing lay between them", "k == piece && lda == k &&", "k == piece &&", config=JOINED),
    tall("shorter rows as if a vector held as many", "k == piece && lda == k &&", "lda == k &&", config=JOINED),
    tall("the rows of a vector in one's sums", "sum[e / piece][c] +=", "sum[0][c] +=", config=JOINED),
    tall("the rows of a vector against other factors", "b[v][e % piece][c]", "b[v][e / joined][c]", config=JOINED),
    tall("a vector's rows from those of others", "load_a(a[r / joined], at_A(row_of(first_row, r)), left);",
        "load_a(a[r / joined], at_A(row_of(first_row, 0)), left);", config=JOINED),
    tall("packs of other columns than C has", "ldc == n && n == columns", "ldc == n", config=JOINED),
    tall("packs of rows that are not side by side", "ldc == n && n == columns", "n == columns", config=JOINED),
    tall("A not conjugated", "conjugate(elements.element[e])", "elements.element[e]", dtype="c64", op="ctt"),
    tall("B not conjugated", "conjugate(loaded.element[x])", "loaded.element[x]", dtype="c128", op="tct"),
    tall("sums rounded on the way", "+= factor * b[v]", "= (float)(scalar)sum[e / piece][c] + factor * b[v]",
        dtype="bf16"),
)  # fmt: skip

BEGIN = "split * share < k ? split * share : k"
LARGE_BUGS = (
    large("the sums of one split left out", "sum.element[e] +=", "sum.element[e] += first + s == 1 ? 0 :"),
    large("a counter not reset", "before < last ? before + 1 : 0", "before + 1"),
    large("every block adds up", "return before == count - 1", "return true"),
    large("one counter for every tile", "last_of(counters + tile_of_C", "last_of(counters"),
    large("sums of a split over those of another", "(long long)split * tiles + tile_of_C", "split + tile_of_C"),
    large("every strip's sums in the first's place", "+ strip * strip_elements + e", "+ e"),
    large("shares overlap", BEGIN, "split * share < k ? split * (share - prefetch) : k"),
    large("shares that are not rounded", "(k + splits * prefetch - 1) / (splits * prefetch) * prefetch",
        "(k + splits - 1) / splits"),
    large("an empty share leaves no sums", "turn = 0; turn <", "turn = chunks_here ? 0 : turns; turn <"),
    large("the last strip not moved up", "return row < last_row ? row : last_row;", "return row;"),
    large("the last strip before the first row", "m < strip_rows ? 0 : m - strip_rows", "m - strip_rows"),
    large("fewer rows than a strip has as vectors", " && m >= strip_rows)", ")"),
    large("rows of two strips counted twice", "i >= first_row + strip * strip_rows && ", ""),
    large("rows of two strips counted twice, without splits", "i >= first_row + strip * strip_rows && ", "",
        config=GROUPS),
    large("C written past n", "i < m && j < n", "i < m"),
    large("C written past n, without splits", "i < m && c < n", "i < m", config=GROUPS),
    large("a part-filled turn left out where B does not stay", "(strips_here + teams - 1) / teams",
        "strips_here / teams"),
    large("a warp's last strip left out", "(strips_here - team - 1) / teams + 1", "(strips_here - team - 1) / teams"),
    large("the next strip is the neighbour's", "strip += teams;", "strip += 1;"),
    large("strips of a warp side by side", "leave(turn * teams + team,", "leave(team * turns + turn,"),
    large("the next strip not begun", "== begin + chunks_here * step)", "== end)"),
    large("a strip too many in a block", ": strips;", ": strips + 1;", config=GROUPS),
    large("B kept where it does not fit", "chunks_here <= chunks;", "chunks_here <= chunks + 2 * stages;"),
    large("the first chunk always in the first place", "if (resident)\n                place = 0;", "place = 0;"),
    large("the next chunk in this one's place", "staged + next_place,", "staged + place,"),
    large("the first chunk not staged again", "(chunk + g + 1) * step : begin;", "(chunk + g + 1) * step : end;"),
    large("this chunk staged again", "begin + (chunk + g + 1) * step", "begin + (chunk + g) * step"),
    large("one chunk staged of all", "(resident ? chunks_here : 1)", "1"),
    large("every chunk in the first's place", "staged + chunk * chunk_elements", "staged"),
    large("the first warp's sums alone", "for (int warp = 1; warp < threads / 32", "for (int warp = 1; warp < 1",
        config=ACROSS),
    large("every warp's sums in the first's place", "here[lane / 32 * sums + first_sum", "here[first_sum",
        config=ACROSS),
    large("no barrier before the warps' sums are read", "__syncthreads();  // every", "// every", config=ACROSS),
    large("A not conjugated", "conjugate(pack_of<run>(a[r][v]).element[e])", "pack_of<run>(a[r][v]).element[e]",
        dtype="c64", op="ctt"),
    large("B not conjugated", "conjugate(b.element[x])", "b.element[x]", dtype="c128", op="tct"),
    large("no barrier where all of B is staged", "__syncthreads();  // B is", "// B is"),
    large("every other vector of sums not added up", "from += at_once *", "from += 2 * at_once *",
        config=MANY),
    large("the first vector of sums for all", "sum[e / sum_width]", "sum[0]", config=MANY),
    large("no barrier where a chunk is staged", "__syncthreads();  // this", "// this"),
    large("B staged for the first strip alone", "if (!resident) {", "if (!resident && turn == 0) {"),
    large("the ring of A not advanced", "load_next(a[g]);\n                    __syncwarp", "__syncwarp"),
    large("a group of A left out", "column += step;", "column += prefetch;"),
    large("A read past the share", "inside = v * lanes * run < left", "inside = v * lanes * run <= left"),
    large("an element of A too many", "l < left && r < rows_left", "l <= left && r < rows_left"),
    large("a row of A too many", "l < left && r < rows_left", "l < left && r <= rows_left"),
    large("A as vectors that are not aligned", "% vector_bytes == 0;", "% sizeof(scalar) == 0;"),
    large("A's leading dimension not looked at", "(A) | lda * sizeof(scalar))", "(A))", config=NARROW),
    large("a row of B too many", "from + l < end", "from + l <= end"),
    large("a column of B too many", "first + c < n) {", "first + c <= n) {"),
    large("B as packs that are not aligned", "wide = n % copies == 0\n        &&", "wide = n % copies == 0 ||"),
    large("elements of rows of B taken for a column's", "wide = ldb == 1", "wide = true", config=ALONE),
    large("the same B for all columns", "first + c));", "c));"),
    large("every tile of C in its first rows", "tile_of_C / tiles_across *", "tile_of_C / tiles *"),
    large("every tile of C in its first columns", "first = tile_of_C % tiles_across * columns", "first = 0"),
    large("a row-major B read along its columns", "l * ldb + j", "l + j * ldb"),
    large("a column-major B read along its rows", "l + j * ldb", "l * ldb + j", op="tn"),
    large("a row-major C written along its columns", "i * ldc + j", "i + j * ldc"),
    large("alpha left out", "alpha * sum : alpha * sum +", "sum : sum +"),
    large("C read though beta is 0", "beta == 0 ? alpha * sum :", ""),
    large("factors of lower precision", "* sum_t(b.element[x])", "* float(b.element[x])", dtype="f64"),
    large("sums rounded on the way", "sum[r * columns + c] +=",
        "sum[r * columns + c] = float(scalar(sum[r * columns + c])) +", dtype="bf16"),
)  # fmt: skip

RIGHT = (
    *((TALL, dtype, op) for dtype in ("f32", "f64") for op in ("ttt", "tn")),
    *((TEAMS, dtype, op) for dtype in ("f32", "f64") for op in ("tt", "tnt")),
    *((FEW, dtype, op) for dtype, op in (("f32", "ttt"), ("f32", "tn"), ("f64", "tt"))),
    *((SPLIT, dtype, op) for dtype in ("f32", "f64") for op in ("ttt", "tn")),
    *((GROUPS, dtype, op) for dtype in ("f32", "f64") for op in ("tt", "tnt")),
    *((ALONE, dtype, op) for dtype, op in (("f32", "ttt"), ("f64", "tn"), ("bf16", "tn"), ("f16", "ttt"))),
    *((THREES, dtype, op) for dtype, op in (("f32", "ttt"), ("c64", "tn"), ("bf16", "ttt"), ("f16", "tn"))),
    *((NARROW, dtype, op) for dtype, op in (("f32", "ttt"), ("f32", "tn"), ("f64", "tt"), ("bf16", "tnt"))),
)  # fmt: skip


@pytest.mark.parametrize("shape", [(203, 7, 29), (37, 17, 1500)], ids=str)
@pytest.mark.parametrize(("config", "dtype", "op"), RIGHT, ids=lambda one: getattr(one, "text", one))
def test_the_template_itself_is_right(
    try_kernel: TryKernel, config: KernelConfig, dtype: str, op: str, shape: tuple[int, int, int]
) -> None:
    result = try_kernel(config, Problem(*shape, dtype, op), lambda text: text, probes=shape[0] > 100)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("bug", [*LANE_BUGS, *TALL_BUGS, *LARGE_BUGS], ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, LARGE_SHAPE, probes=True)
