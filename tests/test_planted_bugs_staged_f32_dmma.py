"""Verification on the host rejects bugs in the kernel that multiplies f32 on the f64 tensor cores.

How tiles are staged and sums added up is the other staged kernels', and so are those bugs.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.staged import StagedF32DmmaConfig

pytestmark = pytest.mark.host

SHAPE = (64, 32, 512)

# The sums of C in the registers of a block that is a team; teams of one warp; a lane with rows of four strips; with
# columns of three octets.
BLOCK = StagedF32DmmaConfig(
    128, 128, 64, 32, 16, 3, 1, splits=4, min_blocks=1, strips=2, octets=2, fragment_prefetch=0
)
ODD = StagedF32DmmaConfig(
    128, 128, 128, 24, 16, 3, 1, splits=4, min_blocks=1, strips=2, octets=3, fragment_prefetch=0
)


def bug(name: str, original: str, planted: str, *, op: str, config: StagedF32DmmaConfig = BLOCK) -> Bug:
    return Bug(name, config, original, planted, op=op)


BUGS = (
    bug("products of rows along k all the first", "fragments.a[s][2 + half] = read.y",
        "fragments.a[s][2 + half] = read.x", op="ttt"),
    bug("columns of an odd number of octets as of pairs", "8 * n_tile + slot",
        "n_tile / 2 * 16 + 2 * slot + n_tile % 2", op="ntt", config=ODD),
    bug("rows of C too near", "* 32 + 4 * g;", "* 32 + 2 * g;", op="nn"),
    bug("factors of lower precision", "fragments.b[o][0] = read.x", "fragments.b[o][0] = read.x + 4096.0f - 4096.0f",
        op="nn"),
)  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
