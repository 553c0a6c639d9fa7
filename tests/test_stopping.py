"""Ctrl-C, SIGTERM and SIGHUP end a run with a sentence, once, and leave nothing running."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from tests.command import TUNE, run
from tests.standing_in import wait_by
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import Lost, until_committed
from tsm2_tune.tuner.runs.signals import Stopped, held, stoppable
from tsm2_tune.tuner.worker import client as workers
from tsm2_tune.tuner.worker.child_process import start_child
from tsm2_tune.tuner.worker.client import Worker

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Assert that the test leaves the signal handlers as they were."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) is handler
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_ends_a_run_as_ctrl_c_does(number: int) -> None:
    ended = []

    @contextmanager
    def disturbed() -> Iterator[None]:
        try:
            yield
        finally:
            for other in SIGNALS:
                send(other)
                ended.append(other)

    with pytest.raises(KeyboardInterrupt) as caught, stoppable(), disturbed():
        send(number)
    assert ended == list(SIGNALS)
    assert isinstance(caught.value, Stopped)
    assert caught.value.number == number


def in_destructor(work: Callable[[], None]) -> None:
    type("Ended", (), {"__del__": lambda _: work()})()


def in_weak_reference(work: Callable[[], None]) -> None:
    ended = type("Ended", (), {})()
    reference = weakref.ref(ended, lambda _: work())
    del ended
    assert reference() is None


@pytest.mark.usefixtures("impatient")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallowing", [in_destructor, in_weak_reference])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_a_destructor_swallows_ends_the_run(
    number: int, swallowing: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops what a destructor, or a callback of a weak reference, raises."""

    def run_on() -> None:
        deadline = time.monotonic() + 10
        swallowing(lambda: send(number))
        while time.monotonic() < deadline:
            swallowing(lambda: None)

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for _ in range(20):
        with pytest.raises(Stopped) as caught, stoppable():
            run_on()
        assert caught.value.number == number


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("within", [held, nullcontext])
def test_a_second_ctrl_c_ends_an_end_that_hangs(within: Callable[[], AbstractContextManager[None]]) -> None:
    deadline = time.monotonic() + 10

    @contextmanager
    def hangs() -> Iterator[None]:
        try:
            yield
        finally:
            with within():
                send(signal.SIGINT)
                while time.monotonic() < deadline:
                    time.sleep(0.01)

    with pytest.raises(Stopped), stoppable(), hangs():
        send(signal.SIGINT)
    assert time.monotonic() < deadline


def test_who_is_stopped_waits_for_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[float]()
    wait_by(monkeypatch, time.monotonic, waited.append)

    def away() -> NoReturn:
        raise Lost("away")

    @contextmanager
    def ended() -> Iterator[None]:
        try:
            yield
        finally:
            with pytest.raises(Lost):
                until_committed(away)

    with pytest.raises(Stopped), stoppable(), ended():
        send(signal.SIGTERM)
    assert waited == [0.1, 0.3, 1.0]
    with pytest.raises(Lost):
        until_committed(away)
    assert sum(waited) > 60, "who is not stopped waits for a minute"


def test_what_must_be_whole_is_ended_first_and_nohup_is_obeyed() -> None:
    steps = []

    def whole() -> None:
        with held():
            with held():
                send(signal.SIGHUP)
                send(signal.SIGTERM)
                steps.append("inner")
            steps.append("outer")

    with pytest.raises(Stopped) as caught, stoppable():
        whole()
    assert (steps, caught.value.number) == (["inner", "outer"], signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache", "toolchain")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_ends_with_the_sentence_of_ctrl_c(
    number: int, status: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[Any](), Worker.close

    def disturbed(worker: Worker) -> None:
        send(signal.SIGTERM)
        closed.append(worker._process)
        close(worker)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "start_child", start_child)  # a forked one ends by itself, too soon
        patch.setattr(Worker, "attempt", lambda *_: send(number))
        patch.setattr(Worker, "close", disturbed)
        result = run(*TUNE, "--db", str(path))
    assert result.exit_code == status, result.output
    assert f"stopped; every trial that ended is in {path}: run the same command again to continue" in result.output
    assert [process.returncode for process in closed if process] == [-signal.SIGKILL]


@pytest.mark.parametrize("writes", [False, True])
def test_a_signal_leaves_no_transaction_open(path: Path, writes: bool) -> None:
    """Wherever in the transaction, or in what SQLAlchemy does for it, the signal comes."""

    def transaction(database: Database, at: int) -> int:
        """Return the number of calls in the transaction, and send a signal in the call `at`."""
        made = 0

        def count(_: object, event: str, __: object) -> None:
            nonlocal made
            made += event == "call"
            if event == "call" and made == at:
                send(signal.SIGTERM)

        sys.setprofile(count)
        try:
            with database.transaction(writes=writes) as connection:
                connection.exec_driver_sql("SELECT count(*) FROM trial").scalar()
        finally:
            sys.setprofile(None)
        return made

    with Database.open(path, create=True) as database:
        # The first makes more calls, as may a garbage collection.
        calls = min(transaction(database, 0) for _ in range(3))
        pool = cast(Any, database._engine.pool)
        assert calls > 50
        for at in range(1, calls + 1):
            kept = None
            try:
                with stoppable():
                    transaction(database, at)
            except Stopped as stopped:
                kept = stopped  # with every frame that it came through
            assert kept is not None, at
            assert pool.checkedout() == 0, at
