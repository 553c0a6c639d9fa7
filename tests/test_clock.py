"""A limit counts the time in which there was somebody to keep it; what timed out is tried again under a larger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.command import TUNE, completed, run
from tests.conftest import TryKernel
from tests.fabricated import BASIS, PROBLEM, plain_sql, trial, tuning_run
from tests.standing_in import wait_by
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage.retry import Lost, until_committed
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker import time_limit
from tsm2_tune.tuner.worker.client import AttemptResult, Worker
from tsm2_tune.tuner.worker.time_limit import MOST_TICKS, TICK_SECONDS, RunningClock, answers_in_time, is_stopped

RUN = tuning_run()
LATE: dict[str, Any] = {"outcome": Outcome.TIMED_OUT, "verdict": None, "measurement": None, "resources": None}
SHORT, LONG = TimeLimits(120.0, 10.0), TimeLimits(120.0, 60.0)


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache", "known_ceilings", "toolchain")
@pytest.mark.parametrize("limit", ["--run-limit", "--compile-limit"])
def test_a_larger_limit_tries_again_what_timed_out(limit: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*TUNE, "--db", str(path), limit)
    with monkeypatch.context() as patch:
        late = AttemptResult(Outcome.TIMED_OUT, "verification took too long")
        patch.setattr(Worker, "attempt", lambda *_: late)
        for seconds, new_trials in ((40, 1), (39, 0), (50, 1)):
            result = run(*command, str(seconds))
            assert result.exit_code == 1
            assert f"no configuration ended within the time limit ({new_trials} new trial" in result.output
            assert "; for timeouts choose smaller shapes or another device" in result.output
        ((before,),) = plain_sql(path, "SELECT total_seconds FROM trial")
        plain_sql(path, "UPDATE trial SET total_seconds = total_seconds + 50")
    result = completed(*command, "55")
    assert "(1 new trial" in result.output
    ((outcome, seconds, *limits),) = plain_sql(
        path, "SELECT outcome, total_seconds, compile_limit_seconds, run_limit_seconds FROM trial"
    )
    assert (outcome, limits) == ("ok", [55.0, 60.0] if limit == "--compile-limit" else [120.0, 55.0])
    assert seconds > 50 + before
    assert "(0 new trials" in run(*command, "70").output  # trials that ended in time stay


def test_who_was_first_stays_unless_it_timed_out_under_less(store: Store, path: Path) -> None:
    first = store.add_trial(RUN, trial(limits=SHORT, detail="first", **LATE))
    later = tuning_run(started_at="2026-02-02T00:00:00+00:00")
    assert store.add_trial(later, trial(500, limits=SHORT)) == first
    assert store.trial(first).trial.detail == "first"
    assert store.add_trial(later, trial(500, limits=LONG)) == first
    record = store.trial(first)
    assert (record.trial.outcome, record.trial.limits, record.run) == (Outcome.OK, LONG, later)
    assert record.trial.total_seconds == 6  # three seconds twice
    assert [row.median_us for row in store.best()] == [500]
    assert store.add_trial(later, trial(limits=TimeLimits(999.0, 999.0), **LATE)) == first
    assert store.trial(first).trial.outcome is Outcome.OK
    assert plain_sql(path, "SELECT count(*) FROM sample") == [(3,)]


def test_limits_that_take_turns_end(store: Store) -> None:
    """A larger limit for one stage and a smaller one for the other try it again, and once more, and then no more."""
    both = (TimeLimits(120.0, 60.0), TimeLimits(1.0, 100.0))
    assert both[0].exceed(both[1])
    assert both[1].exceed(both[0])
    assert not both[0].exceed(both[0])
    for limits in (*both, both[0]):
        trial_id = store.add_trial(RUN, trial(limits=limits, **LATE))
    (stored,) = store.history(RUN.identity.name, PROBLEM, ("tsm2",), BASIS).tried()
    assert (stored.id, stored.limits) == (trial_id, TimeLimits(120.0, 100.0))
    assert not any(limits.exceed(stored.limits) for limits in both)


def test_clock_counts_ticks_and_no_stop_or_wait_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    now, phases = [100.0], PhaseTimer()
    running = RunningClock(lambda: now[0])
    doing = list[str]()

    def sleep(seconds: float) -> None:
        doing.append(phases.now)
        while seconds > 0:  # the clock's thread looks so often
            now[0] += min(seconds, TICK_SECONDS)
            seconds -= TICK_SECONDS
            running.seconds()

    tries = iter([False, False, False, True])

    def work() -> str:
        if not next(tries):
            raise Lost("away")
        return "kept"

    wait_by(monkeypatch, lambda: now[0], sleep)
    now[0] += 1.0
    assert running.seconds() == pytest.approx(1.0)
    assert until_committed(work) == "kept"
    assert now[0] > 102
    assert running.seconds() == pytest.approx(1.0)
    assert (doing, phases.now) == (["waiting for the database's server"] * 3, "start")
    now[0] += 0.5
    assert running.seconds() == pytest.approx(1.5)
    now[0] += 3600  # this process was stopped
    assert running.seconds() == pytest.approx(1.5 + MOST_TICKS * TICK_SECONDS)


@pytest.mark.parametrize(
    ("late", "stopped", "polls"),
    [
        ({}, range(0), 40),
        ({}, range(5, 105), 140),  # the other process was stopped
        ({7: 86400.0}, range(0), 37),  # this one was, or the machine
        ({0: 86400.0, 1: 86400.0}, range(0), 34),
    ],
)
def test_a_limit_is_for_time_that_passed_for_both(
    late: dict[int, float], stopped: range, polls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some polls are late, and before some of them the process is found stopped."""
    now, polled = [0.0], [0]

    def poll(seconds: float = 0.0) -> bool:
        now[0] += late.get(polled[0], seconds)
        polled[0] += 1
        return False

    monkeypatch.setattr(time_limit, "is_stopped", lambda _: polled[0] - 1 in stopped)
    connection = cast(Connection, SimpleNamespace(poll=poll))
    assert not answers_in_time(connection, 1, 40 * TICK_SECONDS, lambda: now[0])
    assert polled[0] - 1 == polls  # the last one does not wait


def test_a_process_that_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache")
def test_a_worker_that_is_stopped_past_its_limit_has_not_timed_out(
    worker: Worker, try_kernel: TryKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, problem = Tsm2Config("v2", threads=32, columns=2, prefetch=4), Problem(100, 3, 40, "f32")
    assert try_kernel(config, problem, str).outcome is Outcome.OK
    process = worker._process.pid
    monkeypatch.setattr(worker, "limit_seconds", 1.5)
    os.kill(process, signal.SIGSTOP)
    continued = threading.Timer(3.0, os.kill, (process, signal.SIGCONT))
    continued.start()
    start = time.monotonic()
    assert try_kernel(config, problem, str).outcome is Outcome.OK
    assert time.monotonic() - start > 1.5
    assert worker._process.pid == process
    continued.join()
