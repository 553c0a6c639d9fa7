"""Verification on the host rejects bugs in the kernel whose operands Hopper's tensor cores read in shared memory.

What the host does not run, the instruction and how a descriptor is packed, only a GPU can find wrong.
"""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.staged_wgmma import StagedWgmmaConfig

pytestmark = pytest.mark.host

SHAPE = (256, 16, 128)

SMALL = StagedWgmmaConfig(128, 64, 32, 32, 3, splits=2)
PARTS = StagedWgmmaConfig(128, 64, 32, 32, 3, splits=16)


def bug(name: str, config: KernelConfig, original: str, planted: str, *, op: str = "nn") -> Bug:
    return Bug(name, config, original, planted, dtype="bf16", op=op)


RING_BUGS = (
    bug("B not copied to all places", SMALL, "int unfilled = stages;", "int unfilled = stages - 1;"),
)  # fmt: skip

COPY_BUGS = (
    bug("zeros not put past k", SMALL, "product >= k ? 0 : along_k ? k - product", "along_k ? wide"),
)  # fmt: skip

DESCRIPTOR_BUGS = (
    bug("products of the first half of a row alone", SMALL, "* row + at % row);", "* row);"),
    bug("rows of another length", SMALL, "wgmma_descriptor<row_bytes>", "wgmma_descriptor<row_bytes ^ 192>"),
)  # fmt: skip

SUM_BUGS = (
    bug("chunks that no part has", PARTS, "(long long)k_tiles * part / parts", "part * (k_tiles / parts)"),
)  # fmt: skip


@pytest.mark.parametrize("planted", [*RING_BUGS, *COPY_BUGS, *DESCRIPTOR_BUGS, *SUM_BUGS], ids=lambda one: one.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
