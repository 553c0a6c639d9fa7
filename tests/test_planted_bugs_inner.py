"""Verification on the host rejects bugs in the kernels whose C is small and whose k every thread shares.

Each is planted in a configuration that is tuned for one whole tile of C and whole chunks of k, as a user's may be:
what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.inner import InnerDmmaConfig, InnerFmaConfig

pytestmark = pytest.mark.host

SHAPE = (16, 16, 1024)

FLAT = InnerFmaConfig(128, 16, 16, 8, 8, step=4, stages=2, splits=16, min_blocks=1)
UNEVEN = InnerFmaConfig(128, 16, 16, 4, 8, step=2, stages=1, splits=132, min_blocks=1)  # its last group has 4 splits
MMA_FLAT = InnerDmmaConfig(128, 32, 16, 1, 2, step=8, stages=3, splits=16, min_blocks=1)
MMA_NARROW = InnerDmmaConfig(128, 8, 8, 1, 1, step=16, stages=2, splits=16, min_blocks=1)


def mma(name: str, config: InnerDmmaConfig, original: str, planted: str, *, op: str = "tn") -> Bug:
    return Bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


def inner_fma(
    name: str, config: InnerFmaConfig, original: str, planted: str, *, dtype: str = "f32", op: str = "tn"
) -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


MEMBERS = "splits - first < group_splits ? splits - first : group_splits"
ADDRESS = "(reinterpret_cast<unsigned long long>(X) | ld * sizeof(scalar))"

SPLITTING_BUGS = (
    inner_fma("as many members in the last group", UNEVEN, MEMBERS, "group_splits"),
    inner_fma("tiles that share sums", FLAT, "partials + tile *", "partials + 0 *"),
    inner_fma("sums read past the workspace", UNEVEN, "if (first + s < count)", "if (true)"),
)  # fmt: skip

SWEEPING_BUGS = (
    inner_fma("the rest of k left out where nothing is a vector", FLAT,
        "process_k_tiles(bool_constant<false>(), split, k_tiles)",
        "process_k_tiles(bool_constant<false>(), split, whole_k_tiles)"),
    inner_fma("the vectors past the last not clamped", FLAT, "first + lines <= last ? first : last - lines", "first",
        op="ntt"),
    inner_fma("a vector too early past the last", FLAT, ": last - lines;", ": last - lines / 2;", op="ntt"),
    mma("whole pairs of rows past the last not clamped", MMA_FLAT, "i = wanted < last",
        "i = whole || wanted < last", op="ntt"),
)  # fmt: skip

# Not among them: that `length % elements` and m % 2 are not looked at. On the host every operand ends where a page
# does, so that where a line's length is odd, an even leading dimension never comes with an aligned address.
ALIGNED_BUGS = (
    inner_fma("addresses not looked at", FLAT, ADDRESS, "(ld * sizeof(scalar))", dtype="f64"),
    inner_fma("vectors of both where those of one are aligned", FLAT, "&& fits(B,", "|| fits(B,", op="nn"),
)  # fmt: skip

ADDING_BUGS = (
    inner_fma("alpha for each split too", FLAT, "reduce_tile_of_splits<sum_vector",
        "for (int e = threadIdx.x; e < sums_of_tile * tile_elements; e += threads)\n"
        "block_sums[e] *= alpha;\n__syncthreads();\nreduce_tile_of_splits<sum_vector"),
)  # fmt: skip

FRAGMENT_BUGS = (
    mma("a column of an octet in another's place", MMA_FLAT, "? 8 * n_tile + slot :",
        "? 8 * n_tile + slot / 2 :"),
)  # fmt: skip

NARROW_BUGS = (
    mma("narrow products past k", MMA_NARROW, "is_valid ? *at : 0", "*at", op="ntt"),
)  # fmt: skip


@pytest.mark.parametrize(
    "bug",
    [*SPLITTING_BUGS, *SWEEPING_BUGS, *ALIGNED_BUGS, *ADDING_BUGS, *FRAGMENT_BUGS, *NARROW_BUGS],
    ids=lambda bug: bug.name,
)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
