"""Verification on the host rejects bugs in the kernels that split k and know several storage orders.

Each is planted in a configuration that is tuned for a shape of whole blocks, groups and shares of k, as a user's may
be: what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.stream_a import StreamADmmaConfig, StreamAFmaConfig

pytestmark = pytest.mark.host

SHAPE = (512, 16, 96)

ONE = StreamAFmaConfig(64, 1, 2, 8, 4, splits=1, row_tiles=1, min_blocks=1)
TILES = StreamAFmaConfig(64, 1, 2, 8, 4, splits=1, row_tiles=2, min_blocks=1)
SPLIT = StreamAFmaConfig(64, 1, 2, 8, 4, splits=3, row_tiles=1, min_blocks=1)
MMA_ONE = StreamADmmaConfig(64, 2, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)
MMA_SPLIT = StreamADmmaConfig(64, 1, 8, 16, 2, splits=3, row_tiles=1, min_blocks=1)


def mma(name: str, config: StreamADmmaConfig, original: str, planted: str, *, op: str = "nn") -> Bug:
    return Bug(f"{name} (mma)", config, original, planted, dtype="f64", op=op)


SPLITTING_BUGS = (
    Bug("beta applied for each split", SPLIT, "element[v], beta);", "element[v], splits * beta);"),
    mma("shares that end within a load", MMA_SPLIT, "(splits * prefetch) * prefetch", "(splits * prefetch) * step",
        op="ttt"),
)  # fmt: skip

STREAMING_BUGS = (
    Bug("a column of A too many", ONE, "q < remaining", "q <= remaining"),
    Bug("A read as vectors that are not aligned", ONE, "const bool aligned =", "const bool aligned = true ||"),
    Bug("a row of A too many", ONE, "down <= last", "down <= last + 1"),
    Bug("groups behind the last ring", TILES, "begin + passes * prefetch)", "end)"),
    Bug("sums of single elements in the order of vectors' sums", SPLIT, "(r ^ exchanged)", "r"),
    Bug("A's address not looked at", ONE, "(reinterpret_cast<unsigned long long>(A) | lda", "(lda"),
    Bug("a part-filled block taken for a whole one", TILES, "+ next_tile;\n    if", "+ 2 * next_tile;\n    if"),
)  # fmt: skip

FRAGMENT_BUGS = (
    mma("a row-major A as vectors that are not aligned", MMA_ONE, "aligned =", "aligned = true ||", op="tn"),
    mma("rows of single elements in the order of vectors' rows", MMA_ONE, "how != Loads::elements ? 1", "true ? 1"),
    mma("sums of single elements where vectors' are", MMA_SPLIT, "__stcs(to + 8, lower)", "__stcs(to + 1, lower)"),
    mma("half a vector of a row-major A left out", MMA_ONE, "access.column() + 1 < lane_remaining",
        "access.column() + 2 < lane_remaining",
        op="tn"),
    mma("a row of A too many", MMA_ONE, "access.row() + 8 <= last", "access.row() + 7 <= last"),
    mma("operands of lower precision", MMA_ONE, "{bits.x, bits.y}", "{float(bits.x), bits.y}"),
)  # fmt: skip

ALIGNED_BUGS = (
    mma("a row-major A's leading dimension taken for k", MMA_ONE, "(a[g], at, lda,", "(a[g], at, k,",
        op="tn"),
)  # fmt: skip


@pytest.mark.parametrize(
    "bug", [*SPLITTING_BUGS, *STREAMING_BUGS, *FRAGMENT_BUGS, *ALIGNED_BUGS], ids=lambda bug: bug.name
)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
