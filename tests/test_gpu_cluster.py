"""Runs on the workers that dask-cuda starts, one a GPU, of which one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("dask_cuda", reason="dask-cuda is not installed: pip install dask-cuda")

from distributed import Client

import tsm2_tune
from tests.command import run
from tests.fabricated import plain_sql
from tsm2_tune.tuner.device.cuda import cuda_device_count
from tsm2_tune.tuner.runs.events import Event, OfRun, RunEnded, TrialStored

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(cuda_device_count() < 2, reason="there are no two GPUs"),
]
SHAPES, PROBLEMS, TRIALS = "20480x2/4/8/16x20480,1e6x8/16x8/16", 8, 60


@contextmanager
def started(*command: str) -> Iterator[None]:
    """A program of Dask's, until it is ended."""
    with subprocess.Popen([sys.executable, "-m", "dask", *command, "--no-dashboard"]) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """The address of one whose workers have a GPU each."""
    file = str(tmp_path / "scheduler.json")
    with ExitStack() as stack:
        stack.enter_context(started("scheduler", "--port", "0", "--scheduler-file", file))
        stack.enter_context(started("cuda", "worker", "--scheduler-file", file))
        yield stack.enter_context(Client(scheduler_file=file, timeout=60)).scheduler.address


def test_a_worker_that_is_killed_loses_nothing_on_two_gpus(path: Path, scheduler: str) -> None:
    told: list[int] = []
    troubles: list[str] = []
    with Client(scheduler) as client:
        client.wait_for_workers(2, timeout=90)
        processes = list(client.run(os.getpid).values())

    def kill(event: Event) -> None:
        if isinstance(event, RunEnded):
            troubles.append(event.trouble)
        elif isinstance(event, OfRun) and isinstance(event.event, TrialStored):
            told.append(event.event.trial_id)
            if len(told) == 100:
                os.kill(processes[0], signal.SIGKILL)

    result = tsm2_tune.tune(
        SHAPES, cluster=scheduler, db=path, on_event=kill, max_trials=TRIALS, budget=None, pairs=False
    )
    assert (len(result.winners), result.unfinished, result.is_complete) == (PROBLEMS, (), True)
    assert "its worker is lost" in troubles
    assert len(set(told)) == len(told)
    assert set(told) <= {number for (number,) in plain_sql(path, "SELECT id FROM trial")}, "none is lost"
    assert plain_sql(path, "SELECT DISTINCT count(*) FROM trial GROUP BY problem_id") == [(TRIALS,)]
    uuids = plain_sql(path, "SELECT DISTINCT device_uuid FROM trial JOIN run ON run.id = run_id")
    assert len(uuids) == 2, "each worker has a GPU of its own"
    assert plain_sql(path, "SELECT problem FROM lease") == []
    assert run("db", "check", "--db", str(path)).exit_code == 0
