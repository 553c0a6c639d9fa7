"""Runs of simulated devices that try candidates in no time, and what their events tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tests.fabricated import PROBLEM
from tests.simulated import DEVICE, Simulated, stored_trial
from tsm2_tune.errors import WorkerError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.runs.events import ProblemEnded, ProblemEvent, TrialStored
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue, tune_problems
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.strategies import exhaustive


class Fabricating(Simulated):
    """Tries each candidate in no time. Before each trial it calls `step`. It is lost whenever it tries `deadly`."""

    def __init__(
        self, store: Store, step: Callable[[], object] = lambda: None, deadly: str = "", **options: Any
    ) -> None:
        super().__init__(store, **{"storage_seconds": 0.0} | options)
        self.step, self.deadly = step, deadly

    def tune(self, search: Candidates, *_: Any) -> Iterator[Trial]:
        for one in search:
            if one.config.text == self.deadly:
                search.put_back(one, is_suspect=True)
                raise WorkerError("its process was lost")
            try:
                self.step()
            except BaseException:
                search.put_back(one)
                raise
            threads, columns = (int(one.config.tunables[name]) for name in ("threads", "columns"))
            yield stored_trial(one.config, one.problem, 100.0 + threads / 1000 + columns)


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


def shared(
    store: Store,
    spaces: list[SearchSpace],
    executors: Sequence[Fabricating],
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
        with ThreadPoolExecutor(len(executors)) as threads:
            list(threads.map(lambda number: serve(number, queue), range(len(executors))))
        assert [note.text.partition(" ")[0] for note in queue.left()] == [one.text for one in (*unfinished, *left)]
        assert queue.unfinished == tuple(unfinished)
    return found
