"""Verification on the host rejects bugs in the kernels that stage both operands of a product with a huge k.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, Shape, assert_rejected
from tests.staged_kernels import (
    BLOCK,
    GROUPS,
    LARGE,
    LONG,
    MMA_BLOCK,
    MMA_LARGE,
    MMA_ODD,
    MMA_TALL,
    MMA_WARPS,
    REGISTERS,
    SHAPE,
    WARPS,
    mma,
    probed,
    staged,
)
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.trial import Outcome

pytestmark = pytest.mark.host

EDGE = "stage_at_the_edge<tile_rows, a_pitch, a_along_k, width>(a, A, lda, row, m, l, k)"

# Not among them: that a vector reaches past the end of k or of the lines. On the host every operand ends where a page
# does, so that where a line's length is odd, an even leading dimension never comes with an aligned address.
COPYING_BUGS = (
    probed("a turn too few", "work.turns = turns;", "work.turns = turns - 1;"),
    probed("every stretch from a first chunk", "? 0 : work.stretch_begin);", "? 0 : 0);"),
    probed("the tail of k from its start", "work.span_begin = work.panels * share", "work.span_begin = 0"),
    probed("the first chunk of a stretch for every tile", "in_spans - next_item * work.span_chunks",
        "in_spans - next_item * work.span_chunks + (next_item > work.turns ? work.stretch_begin : 0)"),
    probed("stretches as long as tiles", "(item < work.turns ? 0 : work.stretch_begin)", "0"),
    staged("a product too many", WARPS, "product >= k ? 0", "product > k ? 0", op="ntt"),
    staged("a product too few", BLOCK, "along_k ? k - product", "along_k ? k - product - 1"),
    staged("products past the end not left out", WARPS, "|| product >= k", "", op="ntt"),
    staged("lines past the end not left out", BLOCK, "line >= last ||", ""),
    staged("a line too few side by side", WARPS, ": last - line;", ": last - line - 1;", op="ntt"),
    staged("a run too few in a round", BLOCK, "i / rounds_of_run * runs_of_round", "i / rounds_of_run"),
    staged("half a run twice", LONG, "i % rounds_of_run * sharers", "0 * sharers"),
    staged("every run the first", WARPS, "% sharers / of_run;", "* 0;"),
    staged("the sharers of another ring take pieces", LONG, "threadIdx.x % sharers % of_run",
        "threadIdx.x % (sharers / 2) % of_run"),
    staged("copies though no chunk is left", BLOCK, "wanted && P::has(i)", "P::has(i)"),
    staged("the first products again", WARPS, "from_a += a_along_k", "from_a += 0 * a_along_k"),
    staged("the first products of B again", WARPS, "from_b += b_along_k ? products : products * ldb;", "", op="ntt"),
    staged("an edge of A left out", BLOCK, EDGE, "(void)0"),
    staged("the whole chunks one too many", BLOCK, "whole_chunks = k / chunk", "whole_chunks = work.chunks"),
    staged("the last line of a tile that is not full left out", BLOCK, "runs_on(i) : at()", "runs_on(i) + 1 : at()"),
    staged("the last vector of a tile that is not full left out", WARPS, "elements_on(i)) < left",
        "elements_on(i) + wide) < left", op="ntt"),
    staged("a line of every tile not fetched", REGISTERS, ": tile_columns;\n", ": tile_columns - 1;\n"),
    staged("a line of a tile that is not full not fetched", REGISTERS, "? int(m - corner.row)",
        "? int(m - corner.row) - 1"),
    staged("vectors that are not aligned", BLOCK, "in_vectors = vectors &&", "in_vectors ="),
    mma("a round taken for whole runs that is not", MMA_ODD, "runs_of_round * of_run : sharers", "sharers : sharers",
        op="ntt"),
    mma("the last runs of a round that is not whole left out", MMA_ODD, "count + of_round - 1) / of_round",
        "count - 1) / of_round", op="ttt"),
    staged("vectors that are not aligned at an edge", BLOCK, "(wide * sizeof(scalar)) != 0)", "sizeof(scalar) != 0)"),
    staged("vectors along m and n that are not aligned", WARPS, "(wide * sizeof(scalar)) != 0)",
        "sizeof(scalar) != 0)", op="ntt"),
    staged("leading dimensions not looked at", BLOCK, "| lda * sizeof(scalar) | ldb * sizeof(scalar)", ""),
    staged("addresses not looked at at an edge", BLOCK, "(reinterpret_cast<unsigned long long>(X) | ld", "(ld"),
    mma("products past the end not left out", MMA_BLOCK, "|| product >= k", "", op="ntt"),
    mma("an edge of A left out", MMA_BLOCK, EDGE, "(void)0"),
    mma("vectors that are not aligned", MMA_BLOCK, "in_vectors = vectors &&", "in_vectors =", op="ntt"),
)  # fmt: skip

RING_BUGS = (
    staged("copies not awaited", BLOCK, "await_copies<stages - 2>();", ""),
    staged("a chunk too few awaited", BLOCK, "await_copies<stages - 2>();", "await_copies<stages - 1>();"),
    staged("a group not closed", BLOCK, "close_copies();\n    };", "};"),
    staged("a chunk not fetched", REGISTERS, "fetch_next();\n        meet();", "meet();"),
    staged("a chunk fetched before the one before is put", REGISTERS, "fetch_next();\n    };",
        "fetch_next();\n        fetch_next();\n    };"),
    staged("the first piece in every place", REGISTERS, "bits_of(pieces[i])", "bits_of(pieces[0])"),
    staged("a run of pieces twice", REGISTERS, "from += (P::runs_on(i + 1) - P::runs_on(i))", "from += i % 2"),
    staged("an edge not awaited", REGISTERS, "await_copies<0>();\n        }", "}"),
    staged("put in another place", REGISTERS, "put_chunk(ring + place *", "put_chunk(ring + (place + 1) % 2 *"),
    staged("no barrier before a chunk is read", BLOCK, "meet();  //", "//"),
    staged("no barrier of a warp before a chunk is read", WARPS, "meet();  //", "//"),
    staged("the place that is read refilled", GROUPS, "place == 0 ? stages - 1 : place - 1", "place"),
    staged("the place that is read next refilled", GROUPS, "place == 0 ? stages - 1 : place - 1",
        "place + 1 == stages ? 0 : place + 1"),
    staged("one place of the ring", BLOCK, "place = place + 1 == stages ? 0 : place + 1;", ""),
    staged("a place too many", BLOCK, "place + 1 == stages ? 0", "place == stages ? 0"),
    staged("a ring not filled", GROUPS, "s < stages - 1", "s < stages - 2"),
    staged("rings that share memory", WARPS, "left + ring_of_block * (stages", "left + 0 * (stages"),
    staged("A and B in one place", BLOCK, "*b = a + a_elements", "*b = a"),
    staged("B not staged where A is not B", BLOCK, "const bool same = A == B &&", "const bool same ="),
    staged("places that overlap", GROUPS, "ring + place * (a_elements + b_elements), *b",
        "ring + place * a_elements, *b"),
    staged("every ring begins at the first chunk", WARPS, "to_stage = ring_of_block", "to_stage = 0"),
    staged("every block begins at the first chunk", WARPS, "work.rank = work.stretch_begin = block;",
        "work.rank = block;"),
    staged("the next chunk is the neighbour's", WARPS, "to_stage * chunk_stride +", "to_stage +"),
    staged("chunks counted one by one", WARPS, "current += rings_of_block", "current += 1"),
    staged("the rest of k left out", BLOCK, "chunks = (k + chunk - 1) / chunk", "chunks = k / chunk"),
    staged("sums over rings that are read", LARGE, "__syncthreads();  // the rings are", "//"),
    mma("no barrier before a chunk is read", MMA_BLOCK, "meet();  //", "//"),
    mma("sums over rings that are read", MMA_WARPS, "__syncthreads();  // the rings are", "//"),
    mma("chunks counted one by one", MMA_WARPS, "current += rings_of_block", "current += 1"),
)  # fmt: skip

MULTIPLYING_BUGS = (
    staged("every team at the same k", BLOCK, "k_lane * step; l", "0; l"),
    staged("a team's k one too late", GROUPS, "k_lane * step; l", "k_lane * step + 1; l"),
    staged("half of a chunk", WARPS, "l < chunk; l += chunk_step", "l < chunk / 2; l += chunk_step"),
    staged("steps left out", WARPS, "l += chunk_step", "l += 2 * chunk_step"),
    staged("teams across rings", WARPS, "threadIdx.x % sharers / team", "threadIdx.x / team"),
    staged("rows taken for columns", WARPS, "at_square % squares_down * square_rows",
        "at_square / squares_down * square_rows"),
    staged("rows of a square taken for columns", BLOCK, "in_square / square_columns;", "in_square % square_columns;"),
    staged("every square the first", LARGE, "threadIdx.x % team / square;", "0;"),
    staged("lines of C in another order than of A", WARPS, "const int row = line_of<rows, a_along_k>",
        "const int row = line_of<rows, !a_along_k>", op="ntt"),
    staged("lines of C in another order than of B", WARPS, "= line_of<columns, b_along_k>",
        "= line_of<columns, !b_along_k>", op="ntt"),
    staged("half of the lines twice", WARPS, "r / together * (of * together)", "0", op="ntt"),
    staged("every product of a step the first", GROUPS, "x[r][q] = piece.element[q];", "x[r][q] = piece.element[0];"),
    staged("every row of a step the first", GROUPS, "(l + q) * pitch", "l * pitch", op="ntt"),
    staged("every element of a vector the first", WARPS, "x[r + e][q] = piece.element[e];",
        "x[r + e][q] = piece.element[0];", op="ntt"),
    staged("factors of lower precision", WARPS, "a[r][q] * b[c][q]", "a[r][q] * float(b[c][q])",
        dtype="f64"),
    mma("every team at the same k", MMA_BLOCK, "threadIdx.x % sharers / team * 8;", "0;"),
    mma("steps left out", MMA_LARGE, "step < steps;", "step < steps - 1;"),
    mma("every warp in the first strips", MMA_LARGE, "member % team_rows * (16", "0 * (16"),
    mma("every warp in the first octets", MMA_LARGE, "member / team_rows * (8", "0 * (8"),
    mma("rows of C in another order", MMA_BLOCK, "row_of(s, g, e / 2),", "row_of(s, g, 1 - e / 2),"),
    mma("columns of C in another order", MMA_BLOCK, "2 * t + e % 2);", "2 * t + 1 - e % 2);"),
    mma("products of A in another order than of B", MMA_BLOCK, "a[s][half] = bits.x;\n            "
        "fragments.a[s][2 + half] = bits.y;", "a[s][half] = bits.y;\n            fragments.a[s][2 + half] = bits.x;"),
    mma("products of B in another order than of A", MMA_BLOCK, "b[o][half] = bits.x;", "b[o][1 - half] = bits.x;",
        op="ntt"),
    mma("pairs of A across the fragment", MMA_BLOCK, "a[s][2 * half] = bits.x;", "a[s][half] = bits.x;", op="ntt"),
    mma("every strip of rows the first", MMA_BLOCK, "fragments.a[s], fragments.b[o])",
        "fragments.a[0], fragments.b[o])"),
    mma("every octet of columns the first", MMA_BLOCK, "fragments.a[s], fragments.b[o])",
        "fragments.a[s], fragments.b[0])"),
    mma("operands of lower precision", MMA_BLOCK, "b[o][0] = bits.x;", "b[o][0] = float(bits.x);"),
    mma("columns of an odd number of octets as of pairs", MMA_ODD, "8 * octet + slot",
        "octet / 2 * 16 + 2 * slot + octet % 2", op="nn"),
    mma("products of B in another order than of A, one by one", MMA_ODD, "= b[b_pitch +", "= b[2 * b_pitch +",
        op="ntt"),
    mma("columns of C in each other's place, one by one", MMA_ODD, "% (2 * octets) / 2 * 8 + 2 * t",
        "% (2 * octets) / 2 * 8 + 2 * (3 - t)", op="nn"),
    mma("products of A in another order than of B, singly", MMA_LARGE, "a_pitch + 4];", "a_pitch + 2];", op="ttt"),
    mma("products of B in another order than of A, singly", MMA_LARGE, "b[4 * b_pitch +", "b[2 * b_pitch +",
        op="ttt"),
    mma("columns of C in another order, singly", MMA_LARGE, "8 * octet + slot",
        "octet / 2 * 16 + 2 * slot + octet % 2", op="ttt"),
    mma("rows of a row-major C in each other's place, singly", MMA_LARGE, "2 * at + e", "2 * (1 - at) + e", op="ttt"),
    mma("columns of C in each other's place, singly", MMA_LARGE, "2 * e + at", "2 * e + 1 - at", op="tt"),
    mma("the first step of a chunk twice", MMA_LARGE, "? 0 : step + 1);", "? 0 : step);"),
    mma("the next chunk read before it is there", MMA_LARGE, "? 0 : place + 1;\n                    arrive();",
        "? 0 : place + 1;"),
)  # fmt: skip

ADDING_BUGS = (
    staged("the first distance of the shuffle left out", BLOCK, "distance = 32 / teams_of_warp;",
        "distance = 64 / teams_of_warp;"),
    staged("members of a team added up", BLOCK, "distance = 32 / teams_of_warp;", "distance = 16 / teams_of_warp;"),
    staged("every warp's sums in the first's place", BLOCK, "threadIdx.x / 32 / warps_of_team *", "0 *"),
    staged("warps of one team apart", LARGE, "threadIdx.x / 32 / warps_of_team *", "threadIdx.x / 32 *"),
    staged("some threads of a team leave nothing", BLOCK, "< 32 / teams_of_warp)", "< 16 / teams_of_warp)"),
    staged("a warp's sums left out", BLOCK, "s < sums_of_tile;", "s < sums_of_tile - 1;"),
    staged("the sums of C transposed", BLOCK, "mine[column * tile_rows + row]", "mine[row * tile_rows + column]"),
    staged("every tile of C in its first rows", BLOCK, "return {tile * tile_rows, 0}", "return {0, 0}"),
    staged("C written past n", BLOCK, "if (row < m && column < n)", "if (row < m)"),
    staged("alpha left out of elements", BLOCK, "alpha * sum : alpha * sum +", "sum : sum +"),
    staged("beta left out of elements", BLOCK, "+ beta * sum_t(element)", "+ sum_t(element)"),
    staged("C read though beta is 0", BLOCK, "beta == 0 ? alpha * sum : alpha", "alpha"),
    staged("a row-major C written along its columns", WARPS, "C[i * ldc + j]", "C[i + j * ldc]", op="ntt"),
    staged("a vector of C past its rows", BLOCK, "aligned && first_row + tile_rows <= m &&", "aligned &&",
        dtype="f64"),
    staged("a vector of C past its columns", BLOCK, "&& first_column + tile_columns <= n;", ";"),
    staged("vectors of C that are not aligned", BLOCK, "whole = aligned &&", "whole ="),
    staged("C not added to vectors", BLOCK, "if (beta != 0)", "if (false)"),
    staged("alpha left out of vectors", BLOCK, "= alpha * sum.element[e];", "= sum.element[e];"),
    staged("C read though beta is 0, as vectors", BLOCK, "if (beta != 0)", "if (true)"),
    mma("vectors of C in each other's place (mma)", MMA_LARGE, "+ 4 * t + v % 4", "+ 4 * t + (v ^ 1) % 4"),
    mma("vectors of a row-major C in each other's place", MMA_LARGE, "+ v % 4 / 2", "+ (v + 2) % 4 / 2", op="ntt"),
    mma("elements of a vector of C in each other's place", MMA_LARGE, "2 * e + at / 2", "2 * (1 - e) + at / 2"),
    mma("every strip's sums in the first's place", MMA_LARGE, "v / (2 * octets) * 16", "0 * 16"),
    mma("every team's sums in the first's place", MMA_WARPS, "left + warp / (team / 32) *", "left + 0 *"),
    mma("a team's sums left out", MMA_BLOCK, "s < sums_of_tile;", "s < sums_of_tile - 1;"),
)  # fmt: skip

RIGHT = (
    *((BLOCK, dtype, op) for dtype, op in (("f32", "tn"), ("f32", "ntt"), ("f32", "nn"))),
    *((WARPS, dtype, op) for dtype in ("f32", "f64") for op in ("tn", "ntt", "tt")),
    *((GROUPS, dtype, op) for dtype, op in (("f32", "nt"), ("f32", "ttt"), ("f64", "tn"))),
    *((REGISTERS, dtype, op) for dtype in ("f32", "f64") for op in ("tn", "ntt")),
    *((LARGE, dtype, op) for dtype, op in (("f32", "tn"), ("f32", "nt"), ("f64", "nn"))),
    *((MMA_BLOCK, "f64", op) for op in ("tn", "ntt", "nt", "nn", "tt", "ttt")),
    *((config, "f64", op) for config in (MMA_WARPS, MMA_LARGE) for op in ("tn", "ntt")),
    *((config, "f64", op) for config in (MMA_TALL, MMA_ODD) for op in ("nn", "ttt", "nt", "tt")),
    *((MMA_ODD, "f64", op) for op in ("tn", "ntt")),
)  # fmt: skip


@pytest.mark.parametrize("shape", [(5, 11, 1027), (19, 9, 2600)], ids=str)
@pytest.mark.parametrize(("config", "dtype", "op"), RIGHT, ids=lambda one: getattr(one, "text", one))
def test_the_template_itself_is_right(
    try_kernel: TryKernel, config: KernelConfig, dtype: str, op: str, shape: Shape
) -> None:
    result = try_kernel(config, Problem(*shape, dtype, op), lambda text: text, probes=shape[0] < 16)
    assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize(
    "bug", [*COPYING_BUGS, *RING_BUGS, *MULTIPLYING_BUGS, *ADDING_BUGS], ids=lambda bug: bug.name
)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
