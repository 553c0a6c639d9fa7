"""Verification on the host rejects bugs in the kernels whose lanes lie along the rows of a row-major A.

Each is planted in a configuration that is tuned for whole tiles, strips and shares of k, as a user's may be: what
finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.row_lanes import RowLanesRegisterBConfig, RowLanesSharedBConfig

pytestmark = pytest.mark.host

TALL_SHAPE = (512, 16, 16)
LARGE_SHAPE = (192, 8, 1536)

TALL = RowLanesRegisterBConfig(128, 16, 4, 1, 1, 16, 4, row_tiles=2, min_blocks=1)
SPREAD = RowLanesRegisterBConfig(128, 16, 1, 2, 2, 8, 4, row_tiles=1, min_blocks=1)
FEW = RowLanesRegisterBConfig(128, 8, 8, 1, 1, 4, 2, row_tiles=2, min_blocks=1)  # fewer columns than lanes
JOINED = RowLanesRegisterBConfig(
    128, 16, 1, 1, 1, 2, 8, row_tiles=2, min_blocks=1, rows_per_vector=2
)  # rows of a vector
SPLIT = RowLanesSharedBConfig(128, 16, 32, 4, 8, 1, 2, splits=3, strips=6, min_blocks=3)
GROUPS = RowLanesSharedBConfig(128, 16, 8, 2, 4, 2, 2, splits=1, strips=6, min_blocks=3)


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
    tall("a lane's packs of C side by side", "j + spread(c)", "j + c", config=SPREAD),
    tall("a sum's lanes all store it", "(lane & duplicates_mask(columns, lanes)) == 0", "true", config=FEW),
)  # fmt: skip

TALL_BUGS = (
    tall("packs of rows that are not side by side", "ldc == n && n == columns", "n == columns", config=JOINED),
    tall("long rows cut off", "part < k; part += depth", "part < depth; part += depth"),
    tall("B kept where a row is longer", "if (k > depth || tile == first_row)", "if (part == 0)"),
    tall("B not conjugated", "conjugate(loaded.element[x])", "loaded.element[x]", dtype="c128", op="tct"),
    tall("sums rounded on the way", "+= factor * b[v]", "= (float)(scalar)sum[e / vector_columns][c] + factor * b[v]",
        dtype="bf16"),
)  # fmt: skip

BEGIN = "split * share < k ? split * share : k"
LARGE_BUGS = (
    large("shares overlap", BEGIN, "split * share < k ? split * (share - prefetch) : k"),
    large("the last strip before the first row", "m < warp_tile_rows ? 0 : m - warp_tile_rows", "m - warp_tile_rows"),
    large("a part-filled turn left out where B does not stay", "(own_warp_tiles + row_groups - 1) / row_groups",
        "own_warp_tiles / row_groups"),
    large("a strip too many in a block", ": warp_tiles;", ": warp_tiles + 1;", config=GROUPS),
    large("B kept where it does not fit", "own_k_tiles <= k_tiles;", "own_k_tiles <= k_tiles + 2 * stages;"),
    large("the first chunk always in the first place", "if (resident)\n                offset = 0;", "offset = 0;"),
    large("B staged for the first strip alone", "if (!resident) {", "if (!resident && round == 0) {"),
    large("B as packs that are not aligned", "wide = n % copies == 0\n        &&", "wide = n % copies == 0 ||"),
)  # fmt: skip


@pytest.mark.parametrize("bug", [*LANE_BUGS, *TALL_BUGS, *LARGE_BUGS], ids=lambda bug: bug.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, LARGE_SHAPE, probes=True)
