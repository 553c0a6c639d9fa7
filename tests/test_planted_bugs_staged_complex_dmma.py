"""Verification on the host rejects bugs in the kernel that stages both operands of complex products.

What it shares with the other staged kernels has its bugs planted there: here are the fragments, products and sums.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.staged import StagedComplexDmmaConfig

pytestmark = pytest.mark.host

SHAPE = (16, 8, 300)

# Teams of four warps, a chunk's first products loaded ahead; of one warp; columns of three octets; and warps with the
# most sums.
AHEAD = StagedComplexDmmaConfig(
    128, 128, 32, 32, 32, 3, 2, splits=16, min_blocks=1, strips=2, octets=2, fragment_prefetch=1
)
TEAMS = StagedComplexDmmaConfig(
    128, 128, 16, 16, 32, 2, 0, splits=2, min_blocks=1, strips=2, octets=2, fragment_prefetch=0
)
ODD = StagedComplexDmmaConfig(
    128, 128, 64, 24, 16, 3, 1, splits=2, min_blocks=1, strips=2, octets=3, fragment_prefetch=0
)
LARGE = StagedComplexDmmaConfig(
    128, 128, 64, 64, 16, 3, 1, splits=1, min_blocks=1, strips=4, octets=4, fragment_prefetch=0
)


def c64(name: str, config: StagedComplexDmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c64)", config, original, planted, dtype="c64", op=op)


def c128(name: str, config: StagedComplexDmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c128)", config, original, planted, dtype="c128", op=op)


BUGS = (
    c64("columns of an odd number of octets as of pairs", ODD, "nn", "width == 1 || count % 2 ?", "width == 1 ?"),
    c64("parts of A exchanged", TEAMS, "cj", "factor[1][e] = x.im", "factor[1][e] = x.re"),
    c64("three products where parts are apart", LARGE, "nn", "!(is_apart() &&", "!(false &&"),
    # Up to 2**29 it is harmless: no values break the bound. Of 2**30 and 2**31 those that are tried do not.
    c64("parts that are 2**33 apart in three products", LARGE, "ntt", "0x1p26f", "0x1p34f"),
    c64("half of a chunk not looked at", AHEAD, "jtt", "e < width; ++e)\n                apart |=",
        "e < 1; ++e)\n                apart |="),
    c64("small imaginary parts alone", TEAMS, "cj", "fminf(re, im)", "im"),
    c64("products left out where all have been looked at", AHEAD, "nn", "load_step(0);\n        apart_a", "apart_a"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
