"""Verification on the host rejects bugs in the kernels of 16-bit floats and TF32.

Each is planted in a configuration that is tuned for a shape of whole blocks, groups and shares of k, as a user's may
be: what finds it is the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.stream_a import StreamAMma16Config, StreamATf32Config

pytestmark = pytest.mark.host

SHAPE = (256, 16, 128)

ONE = StreamAMma16Config(64, 4, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)
ALONE = StreamAMma16Config(64, 8, 8, 16, 1, splits=1, row_tiles=2, min_blocks=1)
TILES = StreamAMma16Config(64, 2, 32, 64, 2, splits=1, row_tiles=2, min_blocks=1)
SPLIT = StreamAMma16Config(64, 4, 16, 64, 2, splits=3, row_tiles=1, min_blocks=1)

TF32 = StreamATf32Config(64, 8, 16, 32, 2, splits=1, row_tiles=1, min_blocks=1)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, op: str = "nn", dtype: str = "bf16") -> Bug:
    return Bug(name, config, original, planted, dtype=dtype, op=op)


SPLITTING_BUGS = (
    bug("C written past m by the splits", SPLIT, "m - i : 0;", "m - i + 1 : 0;"),
)  # fmt: skip

STREAMING_BUGS = (
    bug("the only group not loaded again", ALONE, "load_next(g);\n                        __sync", "__sync"),
    bug("B's address not looked at", ONE, "(B) | ldb * sizeof(scalar)) % sizeof(lane_k_t)",
        "(B) * 0 | ldb * sizeof(scalar)) % sizeof(lane_k_t)"),
)  # fmt: skip

PRODUCT_BUGS = (
    bug("two columns of A exchanged", ONE, "lower_halves(c0, c1)", "lower_halves(c1, c0)"),
    bug("octets of B exchanged", ONE, "n_tile = n_tile_of(c),", "n_tile = n_tile_of(c) ^ 1,"),
    bug("a row of B too many", ONE, "remaining = first + c < n ? end - l", "remaining = first + c < n ? end - l + 1"),
    bug("a column of a row-major B too many", TILES, "l < end ? n - (first + c)", "l < end ? n - (first + c) + 1",
        op="ttt"),
    bug("words of a row-major B exchanged", TILES, "w = l % lane_k / 2", "w = l % lane_k / 2 ^ 1", op="ttt"),
    bug("the place of a matrix' row not found again", TILES, "(lane_row ^ o % 8)", "lane_row", op="ttt"),
    bug("no other buffer for the next tile of B", ONE, "(buffer ^ 1)", "buffer"),
)  # fmt: skip

# Not among them: that A's, B's or C's last row or column is looked at where vectors are aligned. On the host every
# operand ends where a page does, so that where a line's length is no vector's, its leading dimension is not either.
STORING_BUGS = (
    bug("C rounded down", ONE, "(whole + 0x7FFFu + last) >> 16", "whole >> 16"),
)  # fmt: skip

TF32_BUGS = (
    bug("f32: pieces of A exchanged", TF32, "part + r / vector_rows", "part + (1 - r / vector_rows)", dtype="tf32"),
    bug("f32: what is kept taken for the rest", TF32, "tf32_small(b0), tf32_small(b1)", "b[0], b[1]",
        dtype="3xtf32"),
)  # fmt: skip

BUGS = (*SPLITTING_BUGS, *STREAMING_BUGS, *PRODUCT_BUGS, *STORING_BUGS, *TF32_BUGS)


@pytest.mark.parametrize("planted", BUGS, ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
