"""Devices of one run share its queue of problems, and go on where another one fails."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.call_log import logged
from tests.fabricated import plain_sql
from tests.simulated import DEVICE, SHAPES
from tests.simulated_runs import Fabricating, ends, shared, space_of, texts, tried
from tsm2_tune.errors import WorkerError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.runs.events import ProblemEnded, ProblemLeft, ProblemStarted
from tsm2_tune.tuner.runs.leases import Leases
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue
from tsm2_tune.tuner.runs.remote_executor import ExecutorLost
from tsm2_tune.tuner.search.candidates import MOST_LOST, Candidates
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.worker.client import AttemptResult


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


class Failing(Fabricating):
    """A device that fails at a random moment: before a trial, in a final or in a full verification."""

    def __init__(self, store: Store, chance: random.Random, *, fails: bool) -> None:
        super().__init__(store, lambda: self._step(0.05))
        self._chance, self._fails = chance, fails

    def _step(self, share: float) -> None:
        time.sleep(self._chance.choice((0.0, 0.0, 0.002)))
        if self._fails and self._chance.random() < share:
            raise WorkerError("it failed")

    def final(self, *arguments: Any, **named: Any) -> Any:
        self._step(0.2)
        return super().final(*arguments, **named)

    def verify_in_full(self, problem: Problem, config: KernelConfig) -> AttemptResult:
        self._step(0.2)
        return super().verify_in_full(problem, config)


@pytest.mark.parametrize("seed", range(20))
def test_devices_that_fail_lose_and_double_nothing(store: Store, path: Path, seed: int) -> None:
    spaces, chance = [space_of(5, problem) for problem in SHAPES[:2]], random.Random(seed)
    devices = [Failing(store, random.Random(chance.random()), fails=number > 0) for number in range(4)]
    events = shared(store, spaces, devices)
    assert tried(*events) == sorted(2 * texts(spaces[0]))
    ended = {one.problem: one for one in ends(*events)}
    assert len(ends(*events)) == len(ended) == 2
    for one in ended.values():
        assert (one.tried, one.untried) == (5, 0)
        assert one.winner is not None
        assert one.winner.verified_in_full
    assert plain_sql(path, "SELECT count(*) FROM trial") == [(10,)]
    assert plain_sql(path, "SELECT * FROM lease") == []


def test_a_configuration_that_loses_devices_in_turn_is_skipped(store: Store) -> None:
    space = space_of(3)
    deadly = space.kept[1].config.text
    with store.leases(DEVICE) as leases:
        queue = ProblemQueue([space], store, leases, families=("tsm2",), make_strategy=exhaustive)
        for _ in range(MOST_LOST):
            with pytest.raises(WorkerError):
                list(queue.events(Fabricating(store, deadly=deadly)))
        (ended,) = ends(queue.events(Fabricating(store, deadly=deadly)))
        assert queue.unfinished == ()
    assert (ended.tried, ended.quarantined, ended.untried) == (2, 1, 0)


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
