"""Verification on the host rejects bugs in the kernel whose warps each stream rows of A past a B that stays."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.resident_b import ResidentBDmmaConfig

pytestmark = pytest.mark.host

SHAPE = (300, 24, 32)

# All of a row of A in one place of the ring; several chunks of k for each row; and a B of several parts.
WHOLE = ResidentBDmmaConfig(64, 2, 32, 32, 32, 2, 2, splits=2)
CHUNKS = ResidentBDmmaConfig(64, 2, 32, 64, 16, 3, 1, splits=2)
PARTS = ResidentBDmmaConfig(128, 2, 16, 16, 16, 4, 2, splits=1)
# Products of 16 along k by one instruction, in c128.
DEEP = ResidentBDmmaConfig(64, 1, 64, 32, 16, 3, 2, splits=2)


def f32(name: str, config: ResidentBDmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (f32)", config, original, planted, op=op)


def f64(name: str, config: ResidentBDmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (f64)", config, original, planted, dtype="f64", op=op)


def c64(name: str, config: ResidentBDmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c64)", config, original, planted, dtype="c64", op=op)


def c128(name: str, config: ResidentBDmmaConfig, op: str, original: str, planted: str) -> Bug:
    return Bug(f"{name} (c128)", config, original, planted, dtype="c128", op=op)


BUGS = (
    c128("both halves of a product the first of B", DEEP, "nn", "b[((p + q) * teams", "b[(p * teams"),
    f32("vectors of A past its last row", WHOLE, "nn", "next_row + rows <= m", "next_row < m"),
    f32("vectors of A past its last column", CHUNKS, "ttt", "l + block_k <= k", "l < k"),
    f32("beta again for every part of k", PARTS, "nn", "first_l == 0 ? beta : scalar(1)", "beta"),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, bug: Bug) -> None:
    assert_rejected(try_kernel, bug, SHAPE, probes=True)
