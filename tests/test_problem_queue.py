"""Problems are divided among runs by leases, and each is tuned once. Runs outlast faults of the machine."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.fabricated import PROBLEM, plain_sql
from tests.simulated import DEVICE, RUN, SHAPES, stored_trial
from tests.simulated_runs import Fabricating, ends, space_of, tried, tuning
from tests.standing_in import Spied
from tsm2_tune.errors import StoreError, WorkerError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.results.history import History
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, Trial
from tsm2_tune.tuner.runs import problem_queue
from tsm2_tune.tuner.runs.events import Noted, ProblemEvent, TrialStored
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, Leases
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.resume import ProblemHistory
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.worker.client import AttemptResult


def taking_turns(
    runs: dict[int, Iterator[ProblemEvent]], turn: Callable[[int], object] = lambda _: None
) -> dict[int, list[ProblemEvent]]:
    """The events of runs that go on by one event in turn. Before each, `turn` is called with the run's number."""
    events = {number: list[ProblemEvent]() for number in runs}
    while runs:
        for number in list(runs):
            turn(number)
            if (event := next(runs[number], None)) is None:
                del runs[number]
            else:
                events[number].append(event)
    return events


def test_runs_taking_turns_tune_each_problem_once(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = [space_of(3, problem) for problem in SHAPES]
    monkeypatch.setattr(problem_queue, "datetime", SimpleNamespace(now=lambda _: datetime(2026, 1, 1, tzinfo=UTC)))
    options: dict[str, Any] = {"strategy": "exhaustive", "max_trials": 3}
    with Store.open(path, create=True) as other:
        devices = [Fabricating(one, seed=seed, **options) for seed, one in enumerate((store, other))]
        runs = [tune_problems(spaces, one, one._store, families=("tsm2",)) for one in devices]
        events = taking_turns(dict(enumerate(runs))).values()
    ended = [ends(of_run) for of_run in events]
    assert sorted(one.problem for of_run in ended for one in of_run) == sorted(SHAPES)
    assert {one.new_trials for of_run in ended for one in of_run} == {3}
    assert all(ended)
    last = f"{ended[1][-1].problem.text} is left to process {os.getpid()}"  # the first run does not wait for it
    assert [[str(one) for one in of_run if isinstance(one, Noted)] for of_run in events] == [
        [f"other runs have tuned {len(ended[1]) - 1} of the 5 problems meanwhile", last],
        [f"other runs have tuned {len(ended[0])} of the 5 problems meanwhile"],
    ]
    assert plain_sql(path, "SELECT count(*), count(DISTINCT run_id) FROM trial") == [(3 * len(SHAPES), 2)]
    assert plain_sql(path, "SELECT DISTINCT strategy, space_configurations FROM trial") == [("exhaustive", 3)]
    assert set(plain_sql(path, "SELECT search_ended FROM trial WHERE search_ended <> ''")) == {("all tried",)}
    assert plain_sql(path, "SELECT * FROM lease") == []


def test_a_queue_that_is_stopped_takes_no_further_problem(store: Store) -> None:
    spaces = [space_of(2, problem) for problem in SHAPES[:3]]
    with store.leases(DEVICE) as leases:
        queue = problem_queue.ProblemQueue(spaces, store, leases, families=("tsm2",), make_strategy=exhaustive)
        events = []
        for event in queue.events(Fabricating(store)):
            events.append(event)
            queue.stop()
        assert [one.problem for one in ends(events)] == [SHAPES[0]]
        assert queue.unfinished == tuple(SHAPES[1:3])


class Compiling(Fabricating):
    """A device that verifies a problem's kernel in full only when the next problem's first candidates compile."""

    has_compiler = True

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.compiled, self._began = list[Problem](), threading.Semaphore(0)

    def compile_ahead(self, candidates: Sequence[Candidate]) -> Any:
        self.compiled += [one.problem for one in candidates]
        self._began.release()
        if not self.has_compiler:
            raise WorkerError("no room for compilers")

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        assert problem == SHAPES[-1] or self._began.acquire(timeout=30)
        return super().verify_in_full(problem, config)


@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_next_problem_compiles_during_the_full_verification(store: Store, has_compiler: bool) -> None:
    executor = Compiling(store)
    executor.has_compiler = has_compiler
    ended = ends(tuning([space_of(3, problem) for problem in SHAPES], store, executor))
    assert executor.compiled == [problem for problem in SHAPES[1:] for _ in range(3)]
    assert [(one.problem, one.new_trials) for one in ended] == [(problem, 3) for problem in SHAPES]


def test_a_configuration_at_which_runs_die_is_quarantined(store: Store, path: Path) -> None:
    space = space_of(3)
    deadly = space.kept[1].config.text
    with store.leases(DEVICE) as leases:
        assert leases.take(PROBLEM)
        plain_sql(path, f"UPDATE lease SET owner = '', suspect = '{deadly}', deaths = {DEATHS_UNTIL_QUARANTINE}")
    events = list(tuning([space], store))
    assert deadly not in tried(events)
    (ended,) = ends(events)
    assert (ended.new_trials, ended.quarantined, ended.untried) == (2, 1, 0)
    assert plain_sql(path, "SELECT config, outcome FROM quarantine") == [(deadly, "crashed")]
    assert plain_sql(path, "SELECT DISTINCT strategy FROM trial") == [(None,)], "a list of candidates is no search"
    assert plain_sql(path, "SELECT * FROM lease") == []


@pytest.mark.parametrize("refuted", [False, True])
def test_the_history_in_memory_is_as_in_the_database(store: Store, spied: Spied, refuted: bool) -> None:
    """It is read once a problem, and once more for each winner that is refuted."""
    reads, histories = spied(History, "tried"), spied(ProblemHistory, "__init__")
    space = space_of(12)
    configs: list[Any] = [one.config for one in space.kept]
    late: dict[str, Any] = {"outcome": Outcome.TIMED_OUT, "verdict": None, "measurement": None}
    for config in configs[:2]:
        store.add_trial(RUN, stored_trial(config, PROBLEM, 300.0, **late))
    executor = Fabricating(store, retried=frozenset({Outcome.TIMED_OUT}))
    executor.refuted = dict.fromkeys([one.text for one in configs] if refuted else (), Outcome.WRONG_RESULT)
    list(tuning([space], store, executor))
    ((history, *_),) = histories
    found = {name: getattr(history, name) for name in ("_trials", "_last_finalists", "_vendor")}
    of_problem = [one for (one,) in reads if one.problem == PROBLEM]
    replayed = len(of_problem) - len(executor.rounds)  # the simulated final reads it too
    assert replayed == 1 + (len(executor.in_full) if refuted else 0)
    history.read()
    assert found == {name: getattr(history, name) for name in found}


def test_trials_that_ended_before_their_device_was_lost_are_reported(store: Store, path: Path) -> None:
    space, events = space_of(3), list[ProblemEvent]()
    device = Fabricating(store, deadly=space.kept[2].config.text, storage_seconds=60.0)
    with pytest.raises(WorkerError):
        events.extend(tuning([space], store, device))
    assert len(tried(events)) == 2
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(2,)]


# Faults of the machine: the run ends in one sentence, what it told is stored, and the next one goes on

SPACE = space_of(8)
WHOLE = [(one.config.text, "ok") for one in SPACE.kept]


def stored(path: Path) -> list[tuple[object, ...]]:
    return plain_sql(path, "SELECT config, outcome FROM trial ORDER BY id")


def assert_each_is_stored_once(path: Path) -> None:
    assert sorted(stored(path)) == sorted(WHOLE)
    assert plain_sql(path, "SELECT count(*) FROM measurement WHERE round = 0") == [(len(WHOLE),)]
    assert plain_sql(path, "SELECT count(*) FROM best") == [(1,)]


def assert_the_next_run_goes_on(path: Path) -> None:
    before = len(stored(path))
    with Store.open(path, create=True) as store:
        assert len(tried(tuning([SPACE], store))) == len(WHOLE) - before
    assert stored(path) == WHOLE
    assert_each_is_stored_once(path)
    assert plain_sql(path, "SELECT owner FROM lease WHERE owner <> ''") == []


def told_until_it_ends(store: Store, fail: Callable[[], object]) -> tuple[int, str]:
    """The number of trials that a run tells of. After three the machine fails, and the run by this sentence."""
    told = 0
    try:
        for event in tuning([SPACE], store):
            told += isinstance(event, TrialStored)
            if isinstance(event, TrialStored) and told == 3:
                fail()
    except StoreError as error:
        return told, str(error)
    return told, "no failure"


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_database_that_is_locked_for_long_ends_the_run(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Store.open(path, create=True) as store:
        told, said = told_until_it_ends(store, lambda: other.execute("BEGIN IMMEDIATE"))
    assert said == f"{path} is locked by another program: wait until it has ended, then run this again"
    assert stored(path) == WHOLE[:told]
    plain_sql(path, "UPDATE lease SET expires_at = 0")  # the run could not give them back; its process is this one
    assert_the_next_run_goes_on(path)


def test_a_disk_that_fills_up_ends_the_run(path: Path) -> None:
    with Store.open(path, create=True) as store:

        def fill() -> None:
            with store.database.transaction() as connection:
                connection.exec_driver_sql("PRAGMA max_page_count = 1")  # no less than there are: none more

        told, said = told_until_it_ends(store, fill)
    assert (
        said == f"{path} cannot grow, the disk of {path.parent} is full: free some space there, then run this again"
    )
    assert stored(path) == WHOLE[:told]
    assert 3 <= told < len(WHOLE)
    assert_the_next_run_goes_on(path)


def test_a_signal_ends_a_run_though_its_database_is_away(path: Path) -> None:
    """The trials that a lost server cannot store are counted, and the signal ends the run."""

    class Interrupted(Fabricating):
        def tune(self, search: Candidates, *more: Any) -> Iterator[Trial]:
            yield from islice(super().tune(search, *more), 3)
            raise Stopped

    class HeldLeases(Leases):
        def release(self, *_: Any) -> NoReturn:
            raise Lost("away")

    class Away(Store):
        def add_trials(self, *_: Any, **__: Any) -> NoReturn:
            raise Lost("away")

        def leases(self, device_name: str) -> Leases:
            return HeldLeases(self.database, device_name)

    with Away.open(path, create=True) as store, pytest.raises(Stopped) as ended:
        list(tuning([SPACE], store, Interrupted(store, storage_seconds=60.0)))
    assert ended.value.unstored == 3
    assert stored(path) == []


def test_a_run_that_hangs_and_comes_back_late_doubles_nothing(store: Store, path: Path) -> None:
    """The other run takes over its problem, since it no longer renews its lease. Then both try its configurations."""
    with Store.open(path, create=True) as other:
        late = tuning([SPACE], store)
        told = [next(one for one in late if isinstance(one, TrialStored)).trial_id]
        plain_sql(path, "UPDATE lease SET expires_at = 1.0")
        told += [one.trial_id for one in (*tuning([SPACE], other), *late) if isinstance(one, TrialStored)]
    assert sorted(told) == list(range(1, len(WHOLE) + 1)), "each is told once, by who stored it"
    assert_each_is_stored_once(path)


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_clocks_that_disagree_double_nothing(
    ahead: int, store: Store, path: Path, time_of_day: SimpleNamespace
) -> None:
    """The second machine's clock is an hour off, so that it takes the first one for dead, and the first one it."""
    with Store.open(path, create=True) as other:
        runs = {0: tuning([SPACE], store), ahead: tuning([SPACE], other)}
        events = taking_turns(runs, lambda offset: setattr(time_of_day, "ahead_seconds", offset))
    assert all(map(tried, events.values()))
    assert_each_is_stored_once(path)
