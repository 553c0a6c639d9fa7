"""Problems are divided among runs by leases, and among the devices of a run by its queue."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import PROBLEM, plain_sql
from tests.simulated import DEVICE, RUN, SHAPES, Replay, stored_trial
from tests.standing_in import Spied
from tsm2_tune.errors import WorkerError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.results.history import History
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, Trial
from tsm2_tune.tuner.runs import problem_queue
from tsm2_tune.tuner.runs.events import Noted, ProblemEnded, ProblemEvent, ProblemLeft, ProblemStarted, TrialStored
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, Leases
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue, tune_problems
from tsm2_tune.tuner.runs.remote_executor import ExecutorLost
from tsm2_tune.tuner.search.candidates import MOST_LOST, Candidates
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import ProblemHistory
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.worker.client import AttemptResult


def fabricated_us(config: KernelConfig) -> float:
    threads, columns = (int(config.tunables[name]) for name in ("threads", "columns"))
    return 100.0 + threads / 1000 + columns


class Fabricating(Replay):
    """Tries each candidate in no time. Before each trial it calls `step`."""

    def __init__(self, store: Store, step: Callable[[], object] = lambda: None, **options: Any) -> None:
        super().__init__(store)
        self.options, self.step = Options(**{"storage_seconds": 0.0} | options), step

    def tune(self, search: Candidates, *_: Any) -> Iterator[Trial]:
        for one in search:
            try:
                self.step()
            except BaseException:
                search.put_back(one)
                raise
            yield stored_trial(one.config, one.problem, fabricated_us(one.config), full_verdict=None)


def space_of(configurations: int, problem: Problem = PROBLEM) -> SearchSpace:
    space = search_space(problem, PROFILES["h200"], families=["tsm2"])
    return replace(space, kept=tuple(space.kept[number] for number in range(configurations)))


def tuning(spaces: list[SearchSpace], store: Store, executor: Fabricating | None = None) -> Iterator[ProblemEvent]:
    return tune_problems(spaces, executor or Fabricating(store), store, make_strategy=exhaustive, families=("tsm2",))


def tried(*events: Any) -> list[str]:
    return sorted(event.trial.config.text for of in events for event in of if isinstance(event, TrialStored))


def ends(*events: Any) -> list[ProblemEnded]:
    return [event for of in events for event in of if isinstance(event, ProblemEnded)]


def texts(space: SearchSpace) -> list[str]:
    return sorted(one.config.text for one in space.kept)


def test_runs_taking_turns_tune_each_problem_once(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = [space_of(3, problem) for problem in SHAPES]
    monkeypatch.setattr(problem_queue, "datetime", SimpleNamespace(now=lambda _: datetime(2026, 1, 1, tzinfo=UTC)))
    options: dict[str, Any] = {"strategy": "exhaustive", "max_trials": 3}
    with Store.open(path, create=True) as other:
        runs = [
            tune_problems(spaces, Fabricating(one, seed=seed, **options), one, families=("tsm2",))
            for seed, one in enumerate((store, other))
        ]
        events, left = [list[ProblemEvent](), list[ProblemEvent]()], [0, 1]
        while left:
            for number in tuple(left):
                if (event := next(runs[number], None)) is None:
                    left.remove(number)
                else:
                    events[number].append(event)
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
    assert plain_sql(path, "SELECT * FROM lease") == []


def test_a_search_stores_its_strategy_and_what_is_no_search_none(store: Store, path: Path) -> None:
    for problem, make in ((SHAPES[0], None), (SHAPES[1], exhaustive)):
        executor = Fabricating(store, strategy="random")
        list(tune_problems([space_of(1, problem)], executor, store, make_strategy=make, families=("tsm2",)))
    assert {row.problem: row.strategy for row in store.best()} == {SHAPES[0]: "random", SHAPES[1]: None}
    found = plain_sql(path, "SELECT space_configurations, search_ended FROM trial ORDER BY id")
    assert found == [(1, "all tried"), (None, None)]


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


def shared(
    store: Store,
    spaces: list[SearchSpace],
    executors: list[Fabricating],
    unfinished: Sequence[Problem] = (),
    left: Sequence[Problem] = (),
) -> list[list[Any]]:
    """The events of devices that share a queue, each in a thread of its own, or the error that ended it."""
    found = [list[Any]() for _ in executors]

    def serve(number: int, queue: ProblemQueue) -> None:
        try:
            for event in queue.events(executors[number]):
                found[number].append(event)
        except WorkerError as error:
            found[number].append(error)

    with store.leases(DEVICE) as leases:
        queue = ProblemQueue(spaces, store, leases, families=("tsm2",), make_strategy=exhaustive)
        threads = [threading.Thread(target=serve, args=(number, queue)) for number in range(len(executors))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [note.text.partition(" ")[0] for note in queue.left()] == [one.text for one in (*unfinished, *left)]
        assert queue.unfinished == tuple(unfinished)
    return found


def test_devices_take_different_problems_and_then_join_another(store: Store, path: Path) -> None:
    spaces, both = [space_of(5, problem) for problem in SHAPES[:2]], threading.Barrier(2, timeout=30)
    executors = [Fabricating(store, both.wait) for _ in range(2)]  # no trial begins without one of the other device
    events = shared(store, spaces, executors)
    assert {one[0].space.problem for one in events} == set(SHAPES[:2])
    assert [len(tried(one)) for one in events] == [5, 5]

    space = space_of(40)
    events = shared(store, [space], executors)
    assert tried(*events) == texts(space)
    assert [len(tried(one)) for one in events] == [20, 20]
    last = [[type(event) for event in one if isinstance(event, ProblemEnded | ProblemLeft)] for one in events]
    assert sorted(last, key=str) == [[ProblemEnded], [ProblemLeft]]
    (ended,) = ends(*events)
    assert (ended.new_trials, ended.tried, ended.untried) == (40, 40, 0)
    assert [len([event for event in one if isinstance(event, ProblemStarted)]) for one in events] == [1, 1]
    assert plain_sql(path, "SELECT * FROM lease") == []


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
    executor.refuted = dict.fromkeys(configs if refuted else (), Outcome.WRONG_RESULT)
    list(tuning([space], store, executor))
    ((history, *_),) = histories
    found = {name: getattr(history, name) for name in ("_trials", "_last_finalists", "_vendor")}
    of_problem = [one for (one,) in reads if one.problem == PROBLEM]
    replayed = len(of_problem) - len(executor.rounds)  # the simulated final reads it too
    assert replayed == 1 + (len(executor.in_full) if refuted else 0)
    history.read()
    assert found == {name: getattr(history, name) for name in found}


class LostLate(Fabricating):
    """A device that is lost at the first call of the method that `fails` names, which the call removes there."""

    fails: list[str]

    def final(self, *arguments: Any, **named: Any) -> Any:
        self._lose("final")
        return super().final(*arguments, **named)

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        self._lose("verify_in_full")
        return super().verify_in_full(problem, config)

    def _lose(self, method: str) -> None:
        if method in self.fails:
            self.fails.remove(method)
            raise WorkerError("its process was lost")


@pytest.mark.parametrize("fails", ["final", "verify_in_full"])
def test_a_problem_whose_last_device_fails_in_the_end_is_ended_by_another(store: Store, fails: str) -> None:
    LostLate.fails = [fails]
    events = shared(store, [space_of(10)], [LostLate(store), LostLate(store)])
    assert [len([one for one in of if isinstance(one, WorkerError)]) for of in events] in ([0, 1], [1, 0])
    (ended,) = ends(*events)
    assert ended.winner is not None
    assert ended.winner.verified_in_full


def test_idle_device_asks_for_problems_seldom(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, take = list[Problem](), Leases.take
    spaces = [space_of(3, problem) for problem in SHAPES]
    with Store.open(path, create=True) as other, other.leases(DEVICE) as theirs:
        assert all(theirs.take(problem) for problem in SHAPES[1:])
        monkeypatch.setattr(Leases, "take", lambda self, problem: logged(asked, problem, take(self, problem)))
        executors = [Fabricating(store, lambda: time.sleep(0.3)), Fabricating(store)]
        shared(store, spaces, executors, left=SHAPES[1:])
    assert len(asked) < 5 * len(SHAPES)


def test_candidates_that_are_put_back_late_are_tried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    has_none, has_left, steps = threading.Event(), threading.Event(), list[int]()
    leave = ProblemQueue._leave

    def step() -> None:
        steps.append(1)
        if len(steps) == 1:
            assert has_none.wait(30)
            raise WorkerError("its process was lost")

    class Waiting(Fabricating):
        def tune(self, search: Candidates, *more: Any) -> Iterator[Trial]:
            yield from super().tune(search, *more)
            has_none.set()
            assert has_left.wait(30)

    def left(self: ProblemQueue, item: Any, *, is_done: bool) -> None:
        leave(self, item, is_done=is_done)
        has_left.set()

    monkeypatch.setattr(ProblemQueue, "_leave", left)
    space = space_of(2)
    events = shared(store, [space], [Waiting(store, step), Waiting(store, step)])
    assert tried(*events) == texts(space)
    (ended,) = ends(*events)
    assert (ended.new_trials, ended.untried) == (2, 0)


class Deadly(Fabricating):
    """A device that is lost whenever it tries the configuration."""

    deadly: Candidate

    def tune(self, search: Candidates, *_: Any) -> Iterator[Trial]:
        for one in search:
            if one.config == self.deadly.config:
                search.put_back(one, is_suspect=True)
                raise WorkerError("its process was lost")
            yield stored_trial(one.config, one.problem, fabricated_us(one.config), full_verdict=None)


def test_a_configuration_that_loses_devices_in_turn_is_skipped(store: Store) -> None:
    space = space_of(3)
    Deadly.deadly = space.kept[1]
    with store.leases(DEVICE) as leases:
        queue = ProblemQueue([space], store, leases, families=("tsm2",), make_strategy=exhaustive)
        for _ in range(MOST_LOST):
            with pytest.raises(WorkerError):
                list(queue.events(Deadly(store)))
        (ended,) = ends(queue.events(Deadly(store)))
        assert queue.unfinished == ()
    assert (ended.tried, ended.quarantined, ended.untried) == (2, 1, 0)


def test_trials_that_ended_before_their_device_was_lost_are_reported(store: Store, path: Path) -> None:
    space, events = space_of(3), list[ProblemEvent]()
    Deadly.deadly = space.kept[2]
    with pytest.raises(WorkerError):
        events.extend(tuning([space], store, Deadly(store, storage_seconds=60.0)))
    assert len(tried(events)) == 2
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(2,)]


def test_a_problem_whose_finals_lose_devices_does_not_end_all_of_them(store: Store) -> None:
    class LostInFinals(Fabricating):
        def final(self, problem: Problem, *arguments: Any, **named: Any) -> Any:
            if problem == SHAPES[0]:
                raise ExecutorLost("its process was lost")
            return super().final(problem, *arguments, **named)

    spaces = [space_of(3, problem) for problem in SHAPES[:3]]
    events = shared(store, spaces, [LostInFinals(store) for _ in range(4)], unfinished=SHAPES[:1])
    assert sum(isinstance(event, ExecutorLost) for of in events for event in of) == MOST_LOST
    assert sorted(one.problem for one in ends(*events)) == sorted(SHAPES[1:3])
