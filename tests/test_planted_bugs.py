"""Verification rejects what a careless or a malicious hand might do to a kernel: each bug is planted, and found.

`python -m tests.planted_bugs --device 0` tries those too that only a GPU shows.
"""

from __future__ import annotations

import pytest

from tests.planted_bugs import ON_HOST, Bench, rejection
from tests.planting import GPU, Bug, bugs
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain, watching
from tsm2_tune.tuner.worker.client import Worker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(quickest: Toolchain, quick: Toolchain, worker: Worker) -> Bench:
    return Bench(quickest, quick, worker, ON_HOST, watching(host_toolchain()))


@pytest.mark.parametrize("bug", [one for one in bugs() if one.way != GPU], ids=lambda bug: bug.full_name)
def test_a_planted_bug_is_rejected(bench: Bench, bug: Bug) -> None:
    found = rejection(bug, bench, is_whole=False)
    assert found is not None, "accepted"
    assert found[1], "nothing is said of it"
