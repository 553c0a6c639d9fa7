"""A run survives whatever a kernel does to its worker, and each request has one answer, also if sent ahead."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ONCE, TryKernel, compiled
from tests.processes import python
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search.candidates import Search, Why
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.strategy import InOrder
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.worker import client as workers
from tsm2_tune.tuner.worker import time_limit
from tsm2_tune.tuner.worker.client import Attempt, FinalRound, Worker, WorkerError

pytestmark = pytest.mark.slow

CONFIG = Tsm2Config("v2", threads=32, columns=2, prefetch=4)
SPLIT = StreamAFmaConfig(64, 1, 2, 4, 2, splits=3, row_tiles=1, min_blocks=1)
PROBLEM = Problem(100, 3, 40, "f32")
BODY = "scalar *staged ="


def test_a_process_that_was_started_ahead_takes_the_first_request(try_kernel: TryKernel, worker: Worker) -> None:
    worker.close()
    worker.start()
    started = worker._process
    worker.release()  # nothing that it could have
    worker.start()
    assert try_kernel(CONFIG, PROBLEM, str).outcome is Outcome.OK
    assert worker._process is started
    worker.close()
    worker.start()
    started = worker._process
    worker.close()  # before it has opened its device
    assert started.returncode is not None


ENDS_COUNT = "atomic_inc_acq_rel(counter, count - 1);"


@pytest.mark.parametrize(
    ("original", "planted", "said"),
    [
        (ENDS_COUNT, "atomic_add_acq_rel(counter, 1);", "timed call: left the counter of tile 0 at 3, not at 0"),
        (BODY, "partials[-2] = 0;", "wrote where it must not, 1 elements, first 2 elements before the workspace"),
        (BODY, "counters[-1] = 0;", "wrote 4 bytes before the start of a buffer"),
        (BODY, "counters[1 << 20] = 0;", "bytes past its end"),
    ],
)
def test_a_workspace_that_is_not_left_as_it_was_is_told(
    try_kernel: TryKernel, original: str, planted: str, said: str
) -> None:
    planted += f"\n    {BODY}" if original == BODY else ""
    result = try_kernel(SPLIT, PROBLEM, lambda text: text.replace(original, planted))
    assert result.outcome in (Outcome.WRONG_RESULT, Outcome.CRASHED)
    assert said in result.detail
    assert try_kernel(SPLIT, PROBLEM, str).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("by", "name", "processes", "outcome"),
    [
        (signal.SIGABRT, "SIGABRT", 1, Outcome.CRASHED),
        (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}", 2, Outcome.INTERRUPTED),
        (signal.SIGKILL, "SIGKILL", 2, Outcome.INTERRUPTED),
        (signal.SIGHUP, "SIGHUP", 2, Outcome.INTERRUPTED),
    ],
)
def test_dying_worker_is_a_crash_unless_killed_from_outside(
    worker: Worker, try_kernel: TryKernel, by: int, name: str, processes: int, outcome: Outcome
) -> None:
    """No kernel sends these signals: who is killed by one is asked once more. The next one works."""
    assert try_kernel(CONFIG, PROBLEM, str).outcome is Outcome.OK
    killed, ended = list[int](), threading.Event()

    def kill() -> None:
        while not ended.wait(0.05):
            process = worker._process
            runs = worker._phases._phase.startswith("verification")  # the kernel, which does not end
            if process is not None and runs and process.pid not in killed:
                killed.append(process.pid)
                os.kill(process.pid, by)

    killer = threading.Thread(target=kill)
    killer.start()
    result = try_kernel(CONFIG, PROBLEM, lambda text: text.replace(BODY, f"{ENDLESS}\n    {BODY}"))
    ended.set()
    killer.join()
    assert (result.outcome, len(killed)) == (outcome, processes)
    assert result.detail.startswith("the worker died")
    assert result.detail.endswith(f"({name})")
    assert try_kernel(CONFIG, PROBLEM, str).outcome is Outcome.OK


def test_a_request_that_no_worker_begins_is_sent_twice(
    worker: Worker, try_kernel: TryKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert try_kernel(CONFIG, PROBLEM, str).outcome is Outcome.OK
    process = worker._process
    process.kill()  # between two requests, which is nobody's crash
    process.wait()
    assert try_kernel(CONFIG, PROBLEM, str).outcome is Outcome.OK
    assert worker._process is not process
    connected, killed = worker._connected, set[int]()

    def doomed() -> Connection:
        connection = connected()
        os.kill(worker._process.pid, signal.SIGKILL)
        killed.add(worker._process.pid)
        worker._process.wait()
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_connected", doomed)
        result = try_kernel(CONFIG, PROBLEM, str)
    assert (result.outcome, result.detail) == (Outcome.INTERRUPTED, "the worker died before it began (SIGKILL)")
    assert len(killed) == 2
    assert try_kernel(CONFIG, PROBLEM, str).outcome is Outcome.OK


def test_a_binary_that_does_not_load_is_a_failed_launch(worker: Worker) -> None:
    source = render(PROBLEM, CONFIG)
    entry = Entry(b"no library", source.kernel, source.launch)
    result = worker.attempt(Attempt(PROBLEM, entry, probes=(), seed=1, effort=ONCE))
    assert result.outcome is Outcome.LAUNCH_FAILED
    assert "not loaded: file too short" in result.detail
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


def test_a_limit_that_measuring_the_ceilings_passes(support_code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, answers_in_time = list[float](), time_limit.answers_in_time

    def until_it_measures(connection: Any, process: Any, limit_seconds: float) -> bool:
        limits.append(limit_seconds)
        return answers_in_time(connection, process, 60 if len(limits) < 3 else limit_seconds)

    monkeypatch.setattr(workers, "answers_in_time", until_it_measures)
    worker = Worker("cpu", lambda _: support_code, limit_seconds=0.001)
    with pytest.raises(WorkerError, match=r"ceilings took more than 0\.001 s; raise --run-limit$"):
        worker.ceilings()
    assert limits[1:] == [0.001, 0.001]  # until it is there, it has begun, and it has measured
    worker.close()


@pytest.mark.parametrize("by", ["a file", "standard input"])
def test_the_worker_does_not_run_the_script_that_asks_for_it(by: str, support_code: bytes, tmp_path: Path) -> None:
    (support := tmp_path / "support").write_bytes(support_code)
    script = tmp_path / "script.py"
    script.write_text(
        "print('runs')\n"
        "from tsm2_tune.tuner.worker.client import Worker\n"
        f"worker = Worker('cpu', lambda _: open({str(support)!r}, 'rb').read(), limit_seconds=30)\n"
        "print(worker.ceilings().copy_gbytes_per_s > 0)\n"
        "worker.close()\n"
    )
    ended = python(str(script) if by == "a file" else "-", input=script.read_text())
    assert (ended.stdout, ended.stderr) == ("runs\nTrue\n", "")


SQUARE = Problem(64, 2, 64, "f32")
CONFIGS = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2, 3, 4)]
RIGHT, WRONG, FAULTY, ENDLESS = "", "alpha = 2;", "*(volatile int *)8 = 1;", "for (volatile int i = 0;; ++i) {}"
FIRST_LINE = "const index_t row ="
RequestFor = Callable[[str], Attempt]


@pytest.fixture
def hasty(support_code: bytes) -> Iterator[Worker]:
    """With a limit that an endless kernel passes soon."""
    worker = Worker("cpu", lambda _: support_code, limit_seconds=2.0)
    yield worker
    worker.close()


@pytest.fixture
def request_for(quickest: Toolchain) -> RequestFor:
    """A request for a kernel with something planted."""

    def made(planted: str) -> Attempt:
        source = render(SQUARE, CONFIGS[0])
        assert FIRST_LINE in source.text
        text = source.text.replace(FIRST_LINE, f"{planted} {FIRST_LINE}", 1)
        binary = compiled(text, source.kernel, quickest, source.defines)
        return Attempt(SQUARE, Entry(binary.code, source.kernel, source.launch), (), seed=1, effort=ONCE)

    return made


def asked_all(worker: Worker, *requests: Attempt) -> list[Outcome]:
    """The outcomes of requests that are all sent before the first is answered."""
    for request in requests:
        worker.send_ahead(request)
    return [worker.attempt(request).outcome for request in requests]


def test_a_binary_larger_than_the_socket_waits_for_an_idle_worker(hasty: Worker, request_for: RequestFor) -> None:
    """A worker whose kernel hangs would never read it."""
    hasty.ceilings()  # so that it is open
    right, endless = request_for(RIGHT), request_for(ENDLESS)
    large = replace(right, entry=replace(right.entry, code=right.entry.code + bytes(2**20)))
    after = replace(right, seed=2)
    assert asked_all(hasty, right, large, after) == [Outcome.OK] * 3
    assert asked_all(hasty, endless, large, right) == [Outcome.TIMED_OUT, Outcome.OK, Outcome.OK]


@pytest.mark.parametrize(
    ("planted", "outcome"),
    [(RIGHT, Outcome.OK), (WRONG, Outcome.WRONG_RESULT), (FAULTY, Outcome.CRASHED), (ENDLESS, Outcome.TIMED_OUT)],
    ids=["right", "wrong", "faulty", "endless"],
)
def test_each_request_has_its_own_answer(
    hasty: Worker, request_for: RequestFor, planted: str, outcome: Outcome
) -> None:
    one, other = request_for(planted), request_for(RIGHT)
    assert hasty.attempt(other).outcome is Outcome.OK  # a process runs
    assert asked_all(hasty, one, other) == [outcome, Outcome.OK]
    assert asked_all(hasty, other, one, request_for(RIGHT)) == [Outcome.OK, outcome, Outcome.OK]
    assert not hasty._sent


def test_answer_to_a_dropped_or_killed_request_is_discarded(hasty: Worker, request_for: RequestFor) -> None:
    right, wrong = request_for(RIGHT), request_for(WRONG)
    assert hasty.attempt(right).outcome is Outcome.OK
    hasty.send_ahead(wrong)
    assert isinstance(hasty.ceilings(), Ceilings)
    hasty.send_ahead(wrong)
    hasty.send_ahead(right)
    assert hasty.attempt(request_for(RIGHT)).outcome is Outcome.OK
    assert hasty.attempt(wrong).outcome is Outcome.WRONG_RESULT
    hasty.send_ahead(wrong)
    hasty.send_ahead(right)
    os.kill(hasty._process.pid, signal.SIGKILL)
    assert [hasty.attempt(one).outcome for one in (wrong, right)] == [Outcome.WRONG_RESULT, Outcome.OK]


def test_a_process_on_the_host_ends_after_some_requests(
    hasty: Worker, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "REQUESTS_PER_PROCESS", 4)
    right, processes = request_for(RIGHT), set()
    for _ in range(8):
        assert hasty.attempt(right).outcome is Outcome.OK
        processes.add(hasty._process.pid)
    assert len(processes) == 3


@pytest.fixture
def pretended(quick: Toolchain) -> Iterator[Tuner]:
    """A tuner that takes the host for a GPU."""
    target = replace(find_target("cpu"), toolchain=quick)
    with Tuner(target, Options(reach=None)) as tuner:
        _ = tuner.ceilings
        tuner.target = replace(tuner.target, spec="0")
        yield tuner


def search_of(tuner: Tuner, **options: Any) -> Search:
    found = [Candidate(family_named("tsm2"), one, SQUARE, tuner.target.limits, Guidelines()) for one in CONFIGS]
    wait(tuner.compile_ahead(found))
    return Search(InOrder(found), **options)


def test_trials_on_a_gpu_are_asked_for_ahead_and_come_in_their_order(pretended: Tuner) -> None:
    """Nobody listens meanwhile: that time is a phase of its own, as the worker does not wait."""
    search = search_of(pretended)
    pretended.phases.taken()
    trials, asked = [], 0
    for trial in pretended.tune(search):
        trials.append((trial.config, trial.outcome))
        asked += bool(pretended.worker._sent)
        time.sleep(0.05)
    assert trials == [(config, Outcome.OK) for config in CONFIGS]
    assert asked == len(CONFIGS) - 1
    assert pretended.worker._requests == len(CONFIGS) + 1  # with the ceilings
    assert pretended.phases.taken()[workers.SENT_AHEAD] >= 0.05 * (asked - 1)  # of which the last was
    next(pretended.tune(search_of(pretended)))  # a search that is left leaves no answer
    assert [(one.config, one.outcome) for one in pretended.tune(search_of(pretended))] == trials


def test_what_was_asked_for_is_tried_where_a_search_ends(pretended: Tuner) -> None:
    search = search_of(pretended, budget_seconds=0.0, least=1)
    trials = list(pretended.tune(search))
    assert [trial.config for trial in trials] == CONFIGS[:2]  # the worker had the second when the first ended
    assert search.why is Why.BUDGET
    assert not pretended.worker._sent
