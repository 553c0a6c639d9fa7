"""Tests that a run survives whatever a kernel does to its worker, and that the trial says what happened."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import TUNE, run
from tests.conftest import ONCE, TryKernel
from tests.processes import python
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.worker import client as worker_module
from tsm2_tune.tuner.worker import time_limit
from tsm2_tune.tuner.worker.client import Attempt, AttemptResult, FinalRound, Worker, WorkerError

pytestmark = pytest.mark.host

CONFIG = Tsm2Config("v2", threads=32, columns=2, prefetch=4)
PROBLEM = Problem(100, 3, 40, "f32")
BODY = "scalar *staged ="


def test_a_process_that_was_started_ahead_takes_the_first_request(try_kernel: TryKernel, worker: Worker) -> None:
    worker.close()
    worker.start()
    started = worker._process
    worker.release()  # nothing that it could have
    worker.start()
    assert try_kernel(CONFIG, PROBLEM, lambda text: text).outcome is Outcome.OK
    assert worker._process is started
    worker.close()
    worker.start()
    started = worker._process
    worker.close()  # before it has opened its device
    assert started.returncode is not None


@pytest.mark.usefixtures("known_ceilings")
def test_what_is_too_large_for_the_device_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    late = AttemptResult(Outcome.TIMED_OUT, "verification took more than 60 s")
    monkeypatch.setattr(Worker, "attempt", lambda *_: late)
    for new_trials in (1, 0):
        result = run(*TUNE, "--db", str(tmp_path / "r.db"))
        assert result.exit_code == 1
        assert f"no configuration ended within the time limit ({new_trials} new trial" in result.output
        assert "; for timeouts choose smaller shapes or another device" in result.output


@pytest.mark.parametrize(
    ("original", "planted", "said"),
    [
        (
            "atomic_inc_acq_rel(counter, count - 1);",
            "atomic_add_acq_rel(counter, 1);",
            "timed call: left the counter of tile 0 at 3, not at 0",
        ),
        (
            BODY,
            f"partials[-2] = 0;\n    {BODY}",
            "wrote where it must not, 1 elements, first 2 elements before the workspace",
        ),
        (BODY, f"counters[-1] = 0;\n    {BODY}", "wrote 4 bytes before the start of a buffer"),
        (BODY, f"counters[1 << 20] = 0;\n    {BODY}", "bytes past its end"),
    ],
)
def test_a_workspace_that_is_not_left_as_it_was_is_told(
    try_kernel: TryKernel, original: str, planted: str, said: str
) -> None:
    config = StreamAFmaConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1)
    result = try_kernel(config, PROBLEM, lambda text: text.replace(original, planted))
    assert result.outcome in (Outcome.WRONG_RESULT, Outcome.CRASHED)
    assert said in result.detail
    assert try_kernel(config, PROBLEM, lambda text: text).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("by", "processes", "outcome"),
    [
        (signal.SIGABRT, 1, Outcome.CRASHED),
        (signal.SIGRTMIN + 3, 2, Outcome.INTERRUPTED),
        (signal.SIGKILL, 2, Outcome.INTERRUPTED),
        (signal.SIGHUP, 2, Outcome.INTERRUPTED),
    ],
)
def test_dying_worker_is_a_crash_unless_killed_from_outside(
    worker: Worker, try_kernel: TryKernel, by: int, processes: int, outcome: Outcome
) -> None:
    """No kernel sends these signals: who is killed by one is asked once more. The next one works."""
    assert try_kernel(CONFIG, PROBLEM, lambda text: text).outcome is Outcome.OK
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(0.05):
            process = worker._process
            runs = worker._phases._phase.startswith("verification")  # the kernel, which does not end
            if process is not None and runs and process.pid not in killed:
                killed.append(process.pid)
                os.kill(process.pid, by)

    killer = threading.Thread(target=kill)
    killer.start()
    endless = "for (volatile int i = 0;; ++i) {}"
    result = try_kernel(CONFIG, PROBLEM, lambda text: text.replace(BODY, f"{endless}\n    {BODY}"))
    ended.set()
    killer.join()
    assert result.outcome is outcome
    name = f"signal {int(by)}" if by > signal.SIGRTMIN else signal.Signals(by).name
    assert result.detail.startswith("the worker died")
    assert result.detail.endswith(f"({name})")
    assert len(killed) == processes
    assert try_kernel(CONFIG, PROBLEM, lambda text: text).outcome is Outcome.OK


def test_a_worker_that_dies_between_two_requests_is_nobodys_crash(worker: Worker, try_kernel: TryKernel) -> None:
    assert try_kernel(CONFIG, PROBLEM, lambda text: text).outcome is Outcome.OK
    process = worker._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert try_kernel(CONFIG, PROBLEM, lambda text: text).outcome is Outcome.OK
    assert worker._process is not process


def test_a_request_that_no_worker_begins_is_sent_twice(
    worker: Worker, try_kernel: TryKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, killed = worker._connected, []

    def doomed() -> Connection:
        connection = connected()
        os.kill(worker._process.pid, signal.SIGKILL)
        killed.append(worker._process.pid)
        worker._process.wait()
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_connected", doomed)
        result = try_kernel(CONFIG, PROBLEM, lambda text: text)
    assert (result.outcome, result.detail) == (Outcome.INTERRUPTED, "the worker died before it began (SIGKILL)")
    assert len(set(killed)) == 2
    assert try_kernel(CONFIG, PROBLEM, lambda text: text).outcome is Outcome.OK


def test_a_binary_that_does_not_load_is_a_failed_launch(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    path.write_bytes(b"no library")
    from tsm2_tune.generator.render import render

    source = render(PROBLEM, CONFIG)
    entry = Entry(str(path), source.kernel, source.launch)
    result = worker.attempt(Attempt(PROBLEM, entry, probes=(), seed=1, effort=ONCE))
    assert result.outcome is Outcome.LAUNCH_FAILED
    answer = worker.time_finalists(FinalRound(PROBLEM, (entry, entry), seed=1, effort=ONCE))
    assert getattr(answer, "outcome", None) is Outcome.LAUNCH_FAILED


def test_what_cannot_win_is_timed_by_a_first_look_and_not_verified(try_kernel: TryKernel) -> None:
    bug: Callable[[str], str] = lambda text: text.replace("alpha * ", "")  # noqa: E731
    assert try_kernel(CONFIG, PROBLEM, str, within_us=1e9).outcome is Outcome.OK
    assert try_kernel(CONFIG, PROBLEM, bug, within_us=1e9).outcome is Outcome.WRONG_RESULT
    for change in (str, bug):
        behind = try_kernel(CONFIG, PROBLEM, change, within_us=0.001)
        assert behind.outcome is Outcome.BEHIND
        assert behind.verdict is None
        assert behind.measurement is not None
        assert behind.detail == "the fastest of its first launches took more than 0.0 us"


def test_a_limit_that_measuring_the_ceilings_passes(support_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, answers_in_time = list[float](), time_limit.answers_in_time

    def until_it_measures(connection: Any, process: Any, limit_seconds: float) -> bool:
        limits.append(limit_seconds)
        return answers_in_time(connection, process, 60 if len(limits) < 3 else limit_seconds)

    monkeypatch.setattr(worker_module, "answers_in_time", until_it_measures)
    worker = Worker("cpu", lambda: support_path, limit_seconds=0.001)
    with pytest.raises(WorkerError, match=r"ceilings took more than 0\.001 s; raise --run-limit$"):
        worker.ceilings()
    assert limits[1:] == [0.001, 0.001]  # until it is there, it has begun, and it has measured
    worker.close()


@pytest.mark.parametrize("by", ["a file", "standard input"])
def test_the_worker_does_not_run_the_script_that_asks_for_it(by: str, support_path: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('runs')\n"
        "from tsm2_tune.tuner.worker.client import Worker\n"
        f"worker = Worker('cpu', lambda: {support_path!r}, limit_seconds=30)\n"
        "print(worker.ceilings().copy_gbytes_per_s > 0)\n"
        "worker.close()\n"
    )
    ended = python(str(script) if by == "a file" else "-", input=script.read_text())
    assert (ended.stdout, ended.stderr) == ("runs\nTrue\n", "")


# The tuner's own kernels are lost while a worker opens its device


def test_lost_support_kernels_are_compiled_again(support_path: str) -> None:
    paths = iter([f"{support_path}.gone", support_path])
    worker = Worker("cpu", lambda: next(paths), limit_seconds=30.0)
    try:
        assert worker.ceilings().read_gbytes_per_s > 0
    finally:
        worker.close()


@pytest.mark.parametrize("opening", [False, True])
def test_support_kernels_that_are_lost_twice_end_the_run_in_a_sentence(opening: bool, support_path: str) -> None:
    """On a host they are needed for the ceilings; on a GPU to open the device."""
    worker = (Opening if opening else Worker)("cpu", lambda: f"{support_path}.gone", limit_seconds=30.0)
    with pytest.raises(WorkerError, match=r"\.gone was removed") as ended:
        worker.ceilings()
    assert ("twice: find out what cleans the cache" in str(ended.value)) == opening
    worker.close()


class Opening(Worker):
    """A worker whose process says that it misses the kernels when it opens its device."""

    def _started(self, path: str) -> tuple[Any, Connection]:
        ours, theirs = multiprocessing.Pipe()
        theirs.send(("lost", f"{path} was removed"))
        process = SimpleNamespace(pid=os.getpid(), kill=lambda: None, wait=lambda *_: 0)
        return process, ours
