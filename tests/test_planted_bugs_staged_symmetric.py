"""Verification on the host rejects bugs in the kernels that compute half of a matrix's transpose times itself.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, Shape, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.inner import InnerFmaConfig
from tsm2_tune.generator.families.staged import StagedSymmetricDmmaConfig, StagedSymmetricFmaConfig

pytestmark = pytest.mark.host

# Teams of two threads, of eight, and of a warp; rings of a block and of a warp.
SMALL = StagedSymmetricFmaConfig(128, 128, 16, 128, 2, 0, splits=2, min_blocks=1, lines=8, step=2)
LARGE = StagedSymmetricFmaConfig(128, 32, 64, 16, 2, 0, splits=1, min_blocks=1, lines=8, step=1)
MMA_SMALL = StagedSymmetricDmmaConfig(128, 32, 16, 16, 3, 1, splits=2, min_blocks=1, warps=1)
MMA_LARGE = StagedSymmetricDmmaConfig(128, 128, 64, 32, 2, 0, splits=1, min_blocks=1, warps=2)
THREAD = InnerFmaConfig(128, 8, 8, 8, 8, 2, 2, splits=4, min_blocks=1)
FOUR = InnerFmaConfig(128, 4, 4, 4, 4, 4, 1, splits=1, min_blocks=1)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, dtype: str = "f32", op: str = "tx") -> Bug:
    size = int(config.tunables.get("tile") or config.tunables["block_m"])
    return Bug(name, config, original, planted, dtype=dtype, op=op, shape=(size, size, 1024))


def mma(name: str, config: StagedSymmetricDmmaConfig, original: str, planted: str, *, op: str = "tx") -> Bug:
    return bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


SHARING_BUGS = (
    bug("an odd group times itself left out", LARGE, "half_sum[r][c] += a[r][q]", "half_sum[r][c] += 0 * a[r][q]"),
    mma("a strip of neither warp", MMA_LARGE, "m_tile == m_tiles - 1 - warp", "m_tile == m_tiles"),
)  # fmt: skip

MIRRORING_BUGS = (
    bug("an element and its mirror image twice", SMALL, "return left_group != right_group || r <= c;",
        "return true;"),
    bug("a mirror image conjugated twice", THREAD, "alpha, conjugate(value), beta",
        "conjugate(alpha), conjugate(value), beta", dtype="c64", op="jxt"),
)  # fmt: skip

RING_BUGS = (
    bug("the next chunk's elements staged", SMALL, "from - (along_k ? step_on : step_on * lda)", "from"),
    mma("elements begin where vectors do", MMA_SMALL, "in_vectors ? MapX::strided() : ElementMapX::strided()",
        "MapX::strided()"),
    mma("elements of the lines below the last", MMA_LARGE, "int(m - first_row) : tile",
        "int(m - first_row) + 1 : tile"),
    mma("sums over rings that are read", MMA_SMALL, "__syncthreads();  // the rings are", "//"),
)  # fmt: skip

THREAD_BUGS = (
    bug("sums that are none", FOUR, "return e < sums_of_thread;", "return true;"),
)  # fmt: skip

ALL = [*SHARING_BUGS, *MIRRORING_BUGS, *RING_BUGS, *THREAD_BUGS]


@pytest.mark.parametrize("planted", ALL, ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert planted.shape is not None
    shape: Shape = planted.shape
    assert_rejected(try_kernel, planted, shape, probes=True)
