"""Verification on the host rejects bugs in the kernel that copies the lines of both operands into shared memory.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.inner import InnerFmaRingConfig

pytestmark = pytest.mark.host

# Teams of one thread, whose sums are halved often; of three, of which some threads of a block are none and whose sums
# are halved when they are odd; and of a warp.
LONE = InnerFmaRingConfig(256, 4, 3, 4, 3, 0, 8, 3, splits=2)
ODD = InnerFmaRingConfig(256, 12, 2, 4, 2, 1, 8, 2, splits=1)
WARP = InnerFmaRingConfig(256, 8, 16, 2, 2, 0, 8, 4, splits=3)


def bug(
    name: str, config: InnerFmaRingConfig, original: str, planted: str, *, dtype: str = "f32", op: str = "ntt"
) -> Bug:
    return Bug(f"{name} ({op})", config, original, planted, dtype, op, (config.block_m, config.block_n, 4096))


IN_RANGE = "at + lane < remaining ? from + at : X, at + lane < remaining"

BUGS = (
    bug("addresses not looked at", LONE, "reinterpret_cast<unsigned long long>(X) % 16 == 0", "true"),
    bug("lines with others between them as one run", LONE, ": ld == lines", ": true"),
    bug("lines that are not aligned in vectors", ODD, "ld * sizeof(scalar) % 16 == 0", "true", dtype="f64", op="tn"),
    bug("as many lines as a tile has", WARP, "count - first < max_lines ? count - first : max_lines", "max_lines"),
    bug("products past k", WARP, "whole || e < valid ? from + at : X, whole || e < valid",
        "from + at, 1"),
    bug("products past k", ODD, IN_RANGE, "from + at, 1", op="tn"),
    bug("a part of a chunk as a whole one", LONE, "k, next < whole_k_tiles", "k, next < k_tiles", op="tn"),
    bug("an element of a line in another's place", LONE, "wraps ? on_to_next_product : on",
        "on_to_next_product"),
    bug("chunks that are read while copies arrive", WARP, "__syncthreads();  // every thread's copies", "//"),
    bug("sums over a ring that is read", LONE, "__syncthreads();  // the ring is", "//", dtype="c64"),
    bug("half of an odd number of teams twice", ODD, "k_slice < slices - half", "k_slice < half"),
    bug("an A that is not conjugated", LONE, "conjugate(a[r])", "a[r]", dtype="c128", op="jtt"),
)  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert planted.shape is not None
    assert_rejected(try_kernel, planted, planted.shape, probes=True)
