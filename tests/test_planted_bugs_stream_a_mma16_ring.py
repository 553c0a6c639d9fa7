"""Verification on the host rejects bugs in the kernels of 16-bit floats that have A in a ring in shared memory.

Each is planted in a configuration that is tuned for a shape of whole blocks, groups and shares of k: what finds it is
the configuration's probes.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.stream_a import StreamAMma16RingConfig

pytestmark = pytest.mark.host

SHAPE = (256, 32, 128)

WIDE = StreamAMma16RingConfig(32, 8, 32, 128, 4, splits=1, row_tiles=1, min_blocks=1)
LONG = StreamAMma16RingConfig(32, 8, 32, 128, 2, splits=1, row_tiles=2, min_blocks=1)
SPLIT = StreamAMma16RingConfig(64, 8, 32, 64, 2, splits=2, row_tiles=1, min_blocks=1)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, op: str = "nn") -> Bug:
    return Bug(name, config, original, planted, dtype="bf16", op=op)


RING_BUGS = (
    bug("a short group taken for a whole one", SPLIT, "how == Loads::vectors && next_column + step <= end",
        "how == Loads::vectors && next_column < end"),
)  # fmt: skip

COPY_BUGS = (
    bug("A read past m", WIDE, "m - (row + p * vector_elements) : 0", "m - (row + p * vector_elements) + 1 : 0"),
    bug("A read past k along its rows", LONG, "end - (column + p * vector_elements) : 0",
        "end - (column + p * vector_elements) + 1 : 0",
        op="ttt"),
)  # fmt: skip


@pytest.mark.parametrize("planted", [*RING_BUGS, *COPY_BUGS], ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
