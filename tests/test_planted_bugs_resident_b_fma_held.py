"""Verification on the host rejects bugs in the kernel that keeps A in registers and writes a wide C."""

from __future__ import annotations

import pytest

from tests.conftest import TryKernel
from tests.planting import Bug, assert_rejected
from tsm2_tune.generator.families.resident_b import ResidentBFmaHeldConfig

pytestmark = pytest.mark.host

SHAPE = (512, 32, 8)

# All of C's columns in one block; and blocks that share rows, of one row a thread.
ALL = ResidentBFmaHeldConfig(64, 16, 8, 4, 32)
SHARED = ResidentBFmaHeldConfig(64, 4, 8, 8, 8)


def bug(name: str, original: str, planted: str, *, config: ResidentBFmaHeldConfig = ALL, dtype: str = "f32") -> Bug:
    return Bug(name, config, original, planted, dtype=dtype)


BUGS = (
    bug("the first columns of B for every block", "B[q + (first + c) * ldb]", "B[q + c * ldb]", config=SHARED),
    bug("rows that do not fit held", "held = k <= depth", "held = true"),
)  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_is_rejected(try_kernel: TryKernel, planted: Bug) -> None:
    assert_rejected(try_kernel, planted, SHAPE, probes=True)
