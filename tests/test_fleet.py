"""Several runs in processes of their own, on devices that are pretended: the host by several names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

import tsm2_tune
from tests.fabricated import plain_sql
from tests.forked_workers import fork_child
from tests.quick_members import SHAPES, TRIALS, assert_complete, quick_members
from tsm2_tune.errors import ToolMissing, WorkerError
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.runs.events import (
    Event,
    FleetStarted,
    OfRun,
    ProblemEnded,
    ProblemStarted,
    RunEnded,
    TrialStored,
)
from tsm2_tune.tuner.runs.signals import Stopped

pytestmark = [pytest.mark.usefixtures("session_cache"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain) -> list[Any]:
    """Processes of runs, in the order in which they were started."""
    return quick_members(monkeypatch.setattr, fork_child)


def trial_of(event: Event) -> TrialStored | None:
    """The trial that the event of a run tells of."""
    told = event.event if isinstance(event, OfRun) else None
    return told if isinstance(told, TrialStored) else None


def pretended(*names: str) -> list[Target]:
    """The host as several devices of these names."""
    host = find_target("cpu")
    identities = [replace(host.identity, name=name, uuid=f"pretended {at}") for at, name in enumerate(names)]
    return [replace(host, identity=one) for one in identities]


def tuned(
    path: Path, targets: list[Target], on_event: Callable[[Event], object] | None = None, **options: Any
) -> tsm2_tune.TuningResult:
    chosen: dict[str, Any] = {"max_trials": TRIALS, "family": "tsm2", "pairs": False, "budget": None} | options
    return tsm2_tune.tune(SHAPES, device=targets, db=path, on_event=on_event, **chosen)


def alive(members: list[Any]) -> list[Any]:
    return [one for one in members if one.poll() is None]


def test_two_runs_divide_the_problems(path: Path, members: list[Any]) -> None:
    events: list[Event] = []
    result = tuned(path, pretended("card", "card"), events.append)
    assert_complete(path)
    assert sorted(one.problem.text for one in result.ended) == sorted(f"{one}:f32" for one in SHAPES.split(","))
    assert [one.new_trials for one in result.ended] == [TRIALS] * 3
    assert (len(result.winners), result.unfinished, result.unsolved, len(result.targets)) == (3, (), (), 2)
    assert isinstance(events[0], FleetStarted)
    assert events[0].runs == ("cpu", "cpu (1)")
    assert {one.run for one in events if isinstance(one, OfRun) and trial_of(one)} == {"cpu", "cpu (1)"}
    begun = [one.event.space for one in events if isinstance(one, OfRun) and isinstance(one.event, ProblemStarted)]
    assert {len(space.kept) for space in begun} <= {19, 38}
    assert (len(members), alive(members)) == (2, [])


def test_what_a_run_was_at_that_is_killed_is_taken_over(path: Path, members: list[Any]) -> None:
    killed, events = list[Any](), list[Event]()

    def kill_one(event: Event) -> None:
        events.append(event)
        if not killed and trial_of(event):  # the one that tried it: it has been asked for more of the problem
            killed.append(members[("cpu", "cpu (1)").index(cast(OfRun, event).run)])
            killed[0].kill()

    result = tuned(path, pretended("card", "card"), kill_one)
    assert killed
    assert_complete(path)
    ends = [event.trouble for event in events if isinstance(event, RunEnded)]
    assert sorted(ends) == ["", "its process was killed by SIGKILL"]
    assert result.unfinished == ()
    told = {trial.trial_id for trial in map(trial_of, events) if trial}
    assert told <= {number for (number,) in plain_sql(path, "SELECT id FROM trial")}


def test_where_every_run_dies_it_is_an_error(path: Path, members: list[Any]) -> None:
    def kill_all(event: Event) -> None:
        if trial_of(event):
            for process in alive(members):
                process.kill()

    with pytest.raises(WorkerError, match="its process was killed by SIGKILL"):
        tuned(path, pretended("card", "card"), kill_all)


def test_cards_of_two_kinds_each_tune_every_problem(path: Path, members: list[Any]) -> None:
    def kill_the_other(event: Event) -> None:
        if isinstance(event, OfRun) and isinstance(event.event, ProblemEnded) and event.run == "cpu (1)":
            members[1].kill()

    result = tuned(path, pretended("one", "another"), kill_the_other)
    assert len(result.unfinished) == 2  # what no run of a kind has ended is left
    assert not result.is_complete
    result = tuned(path, pretended("one", "another"))
    assert_complete(path, kinds=2)
    assert len(result.ended) == len(result.winners) == 6


def test_a_kind_of_which_no_device_opens_is_left(path: Path) -> None:
    one, another = pretended("one", "another")
    toolchain = replace(one.toolchain, compiler="/bin/false")
    broken = [replace(target, toolchain=toolchain) for target in (one, another)]
    result = tuned(path, [one, broken[1]])
    assert len(result.winners) == 3
    assert [problem.text for problem in result.unfinished] == [f"{shape}:f32" for shape in SHAPES.split(",")]
    with pytest.raises(ToolMissing, match="/bin/false does not compile the tuner's own kernels"):
        tuned(path, broken)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ZeroDivisionError])
def test_no_run_outlives_who_asked_for_it(path: Path, members: list[Any], raised: type[BaseException]) -> None:
    def stop(event: Event) -> None:
        if trial_of(event):
            raise raised

    with pytest.raises(raised):
        tuned(path, pretended("card", "card"), stop)
    assert (len(members), alive(members)) == (2, [])
    assert plain_sql(path, "SELECT * FROM lease") == []  # they were asked to end, and gave everything back


def test_a_signal_counts_the_trials_that_a_lost_server_cannot_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[int]()

    def away(_: Store, __: object, trials: Sequence[Trial], *___: object) -> NoReturn:
        refused.append(len(trials))
        raise Lost("away")

    def stop(event: Event) -> None:
        if trial_of(event):
            monkeypatch.setattr(Store, "add_trials", away)
            until(lambda: bool(refused))
            raise Stopped

    with pytest.raises(Stopped) as ended:
        tuned(path, pretended("card", "card"), stop, max_trials=20)
    assert ended.value.unstored >= refused[0]


PROGRAM = """
import os, signal, sys
from tests.quick import keep_answers
from tests.quick_members import quick_members
from tests.test_fleet import pretended, tuned
from tsm2_tune.tuner.runs import fleet
class Last(fleet.RemoteExecutor):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
keep_answers(setattr)
quick_members(setattr)
if sys.argv[2] == "at once":
    fleet.RemoteExecutor = Last
tuned(sys.argv[1], pretended("card", "card"), max_trials=None)
"""


@pytest.mark.parametrize("when", ["at once", "after a trial"])
def test_nothing_outlives_who_asked_for_it_and_was_killed(path: Path, when: str) -> None:
    """A run that was sent by who was killed since does not begin."""
    mark = f"TSM2_TUNE_FLEET={os.getpid()} {when}"
    environment = {**os.environ, "TSM2_TUNE_FLEET": mark.partition("=")[2], "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), when], env=environment) as process:
        if when == "after a trial":
            until(lambda: path.exists() and bool(plain_sql(path, "SELECT 1 FROM sqlite_master WHERE name = 'best'")))
            until(lambda: bool(plain_sql(path, "SELECT id FROM trial")))
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert until(lambda: not any(mark.encode() in one for one in environments()))
    assert bool(plain_sql(path, "SELECT id FROM trial")) == (when == "after a trial")


def until(is_so: Callable[[], bool]) -> bool:
    """Wait until it is so. Raise AssertionError after two minutes."""
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
    return True


def environments() -> Iterator[bytes]:
    """Yield the environment of each process on this machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                yield (entry / "environ").read_bytes()
