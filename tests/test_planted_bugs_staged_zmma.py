"""Verification on the host rejects bugs in the kernel that stages both operands of complex products.

What it shares with the other staged kernels has its bugs planted there: here are the fragments, products and sums.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.staged_zmma import StagedZmmaConfig

pytestmark = pytest.mark.host

SHAPE = (16, 8, 300)

# Teams of four warps, a chunk's first products loaded ahead; of one warp; columns of three octets; and warps with the
# most sums.
AHEAD = StagedZmmaConfig(128, 128, 32, 32, 32, 3, 2, splits=16, min_blocks=1, strips=2, octets=2, ahead=1)
TEAMS = StagedZmmaConfig(128, 128, 16, 16, 32, 2, 0, splits=2, min_blocks=1, strips=2, octets=2, ahead=0)
ODD = StagedZmmaConfig(128, 128, 64, 24, 16, 3, 1, splits=2, min_blocks=1, strips=2, octets=3, ahead=0)
LARGE = StagedZmmaConfig(128, 128, 64, 64, 16, 3, 1, splits=1, min_blocks=1, strips=4, octets=4, ahead=0)


def c64(name: str, config: StagedZmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c64)", config, original, planted, dtype="c64", op=op)


def c128(name: str, config: StagedZmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c128)", config, original, planted, dtype="c128", op=op)


BUGS = (
    c128("parts of A exchanged", AHEAD, "cn", "as_matrix(a[s], fragments.a[s][q].re,",
        "as_matrix(a[s], fragments.a[s][q].im,"),
    c128("an imaginary part of B left out", AHEAD, "cn", "= fragments.b[o][q].im", "= 0"),
    c128("factors of lower precision", AHEAD, "cn", "= fragments.b[o][q].im", "= float(fragments.b[o][q].im)"),
    c128("A not conjugated", AHEAD, "cn", "flipped(im, none)", "flipped(im, sign)"),
    c64("parts of A exchanged", TEAMS, "cj", "factor[1][e] = x.im", "factor[1][e] = x.re"),
    c64("the third product of the real parts alone", AHEAD, "jtt", "factor[0][e] + factor[1][e];", "factor[0][e];"),
    c64("B not conjugated", TEAMS, "cj", "conjugate(fragments.b[o][q])", "fragments.b[o][q]"),
    c64("a strip of rows for its neighbour", TEAMS, "cj", "2 * q + s % 2;", "2 * q + 1 - s % 2;"),
    c64("the third product left out", LARGE, "ntt", "p < 3; ++p", "p < 2; ++p"),
    c64("a product taken away once", LARGE, "ntt", "(sum[0][e] + sum[1][e])", "sum[0][e]"),
    c64("three products where parts are apart", LARGE, "nn", "!(is_apart() &&", "!(false &&"),
    # Up to 2**29 it is harmless: no values break the bound. Of 2**30 and 2**31 those that are tried do not.
    c64("parts that are 2**31 apart in three products", TEAMS, "cj", "0x1p26f", "0x1p32f"),
    c64("parts that are 2**33 apart in three products", LARGE, "ntt", "0x1p26f", "0x1p34f"),
    c64("chunks not looked at", TEAMS, "cj", "if (found)", "if (false)"),
    c64("half of a chunk not looked at", AHEAD, "jtt", "e < width; ++e)\n                apart |=",
        "e < 1; ++e)\n                apart |="),
    c64("small imaginary parts alone", TEAMS, "cj", "fminf(re, im)", "im"),
    c64("small real parts alone", TEAMS, "cj", "fminf(re, im)", "re"),
    c64("the products before taken for four", LARGE, "ntt", "three[2][v % 4] -= three",
        "three[2][v % 4] -= 0 * three"),
    c64("of four products three", LARGE, "ntt", "if (four)\n                multiply",
        "if (false)\n                multiply"),
    c64("sums of parts in four products", AHEAD, "jtt", "four ? b[1][q] :", "false ? b[1][q] :"),
    c64("of four products three taken away", AHEAD, "nn", "four ? sum[2][e] :", "false ? sum[2][e] :"),
    c64("products left out where all have been looked at", AHEAD, "nn", "load_step(0);\n        apart_a", "apart_a"),
    c64("sums of a strip's neighbour", LARGE, "ntt", "s % 2 * 2 + v % 2", "v % 2"),
    c128("every strip of rows the first", AHEAD, "cn", "(sum[s][o], a[s], b[o])", "(sum[s][o], a[0], b[o])"),
    c128("every octet of columns the first", AHEAD, "cn", "(sum[s][o], a[s], b[o])", "(sum[s][o], a[s], b[0])"),
    c64("every product of two the first", AHEAD, "jtt", ": q * pitch + line)", ": line)"),
    c64("every product the first, one by one", ODD, "ttt", "x[i][q] = *from;", "x[i][q] = *(from - q * pitch);"),
    c64("columns of an odd number of octets as of pairs", ODD, "nn", "width == 1 || count % 2 ?", "width == 1 ?"),
    c64("every product of a read the first", TEAMS, "cj", "v : q] = read.element[v]", "v : q] = read.element[0]"),
    c64("every line of a read the first", AHEAD, "jtt", "v : q] = read.element[v]", "v : q] = read.element[0]"),
    c64("half of the strips twice", LARGE, "ntt", "i / 2 * 16 + 2 * slot", "2 * slot"),
    c128("every warp in the first strips", LARGE, "nn", "member % team_rows * (8", "0 * (8"),
    c128("every warp in the first octets", LARGE, "nn", "member / team_rows * (8", "0 * (8"),
    c128("every lane at the same product", LARGE, "nn", "depth + t * width;", "depth;"),
    c64("every team at the same k", TEAMS, "cj", "% sharers / team * depth +", "* 0 +"),
    c128("steps left out", LARGE, "nn", "step < steps;", "step < steps - 1;"),
    c128("the products before again", AHEAD, "cn", "(step == steps - 1 ? 0 : step + 1);", "(step);"),
    c128("a chunk's first products before it is there", AHEAD, "cn",
        "arrive();\n                    refill();", "refill();"),
    c128("no barrier before a chunk is read", AHEAD, "cn", "meet();  //", "//"),
    c128("vectors of C in each other's place", AHEAD, "cn", "2 * t + v % 2", "2 * t + 1 - v % 2"),
    c64("elements of a vector of C exchanged", LARGE, "nn", "* width + e, o", "* width + 1 - e, o"),
    c64("elements of a vector of a row-major C exchanged", AHEAD, "jtt", "* width + e;", "* width + 1 - e;"),
    c64("columns of C in another order", TEAMS, "cj", "line_of<octets>(o, 2 * t + e)",
        "line_of<octets>(o, 2 * t + 1 - e)"),
    c64("every team's sums in the first's place", TEAMS, "cj", "left + warp / (team / 32) *", "left + 0 *"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
