"""Limits of time that tests reach: short enough to wait for, and long enough to come after their cause."""

from __future__ import annotations

import pytest

# By the module in which a limit is read.
SHORT = {
    "api.products.MOST_SHAPES_SECONDS": 0.2,
    "tuner.compile.command_limits.STILL_SECONDS": 0.3,
    "tuner.compile.nvcc.ANSWER_SECONDS": 0.2,
    "tuner.doctor.nvidia_smi.ANSWER_SECONDS": 1.0,
    "tuner.export.cubins.NEWS_SECONDS": 0.0,
    "tuner.results.maintenance.vacuum.MOST_SECONDS": 0.01,
    "tuner.results.merge.importer.HOLD_SECONDS": 0.0,
    "tuner.results.storage.retry.WAITS_SECONDS": (0.01,) * 3,
    "tuner.results.storage.sqlite.BUSY_TIMEOUT_SECONDS": 0.05,
    "tuner.runs.dask_cluster.ANSWER_SECONDS": 0.5,
    "tuner.runs.leases.LOOK_SECONDS": 0.01,
    "tuner.runs.leases.RENEWAL_SECONDS": 0.05,
    "tuner.runs.signals.LAST_SECONDS": 0.1,
    "tuner.runs.signals.LOOK_SECONDS": 0.01,
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit of time is waited for long."""
    for limit, seconds in SHORT.items():
        monkeypatch.setattr(f"tsm2_tune.{limit}", seconds)
