"""A tuning run: it tunes problems on one device, stores the results in one database, and reports events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Event, Noted, PairsStarted, ProblemEnded, RunStarted, is_interruption
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import LOCK, START
from tsm2_tune.tuner.search.spaces import Spaces, spaces


@dataclass(frozen=True, slots=True)
@plain
class TuningResult:
    """The result of `tune`. All trials are in the database."""

    targets: tuple[Target, ...]  # the devices, which can be passed to later calls
    ended: tuple[ProblemEnded, ...]  # one event for each problem and device model, in order of time
    winners: tuple[BestRow, ...]  # the winners of the given problems, as from `best`
    interrupted: int  # number of trials and finals that a machine failure ended; to repeat them, repeat the call
    unfinished: tuple[Problem, ...] = ()  # problems that were not finished because devices failed

    @property
    def target(self) -> Target:
        """The device on which `tune` ran, or the first of several devices."""
        return self.targets[0]

    @property
    def unsolved(self) -> tuple[Problem, ...]:
        """The problems for which no configuration gave a correct result."""
        return tuple(one.problem for one in self.ended if one.winner is None)

    @property
    def changed(self) -> tuple[Problem, ...]:
        """The problems whose winner changed after their search, because another problem's kernel was faster."""
        before = {one.problem: one.winner.config for one in self.ended if one.winner is not None}
        return tuple(row.problem for row in self.winners if before.get(row.problem, row.config) != row.config)

    @property
    def is_complete(self) -> bool:
        """Whether every problem has a winner and no trial or final was interrupted."""
        return not (self.unsolved or self.interrupted or self.unfinished)


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a tuning run."""

    problems: tuple[Problem, ...]
    guidelines: Mapping[str, float]  # changed thresholds
    families: tuple[str, ...]
    options: Options
    pairs: bool  # whether to time kernels at shapes for which another kernel is fastest
    wait: bool  # whether to wait for another run on the device
    db: str

    def spaces(self, target: Target) -> Spaces:
        """Return each problem's search space on the device. Raise InputError if it cannot tune a problem."""
        return spaces(self.problems, target, guidelines=self.guidelines, families=self.families)

    def result(self, target: Target, tell: Callable[[Event], object]) -> TuningResult:
        """Tune the problems on a device of this process and return the result. `tell` is called with each event.

        Raise the same errors as the function `tune`.
        """
        planned, tuner = self.spaces(target), Tuner(target, self.options)
        ended, interrupted = list[ProblemEnded](), 0

        def wait(sentence: str) -> None:
            tuner.phases.enter(LOCK)
            tell(Noted(sentence))

        with device_lock(target, wait if self.wait else None), Store.open(self.db, create=True) as store:
            tuner.phases.enter(START)
            tell(RunStarted(target, self.problems, self.options, tuner.phases))  # before kernels are compiled
            with tuner, store.leases(target.identity.name) as leases:
                queue = ProblemQueue(planned, store, leases)
                for event in chain(self.events(queue, tuner, store), queue.left()):
                    interrupted += is_interruption(event)
                    if isinstance(event, ProblemEnded):
                        ended.append(event)
                    tell(event)
                unfinished = queue.unfinished
            won = winners(store, target, tuner.cache, self.problems)
        return TuningResult((target,), solved(ended, won), won, interrupted, unfinished)

    def events(self, queue: ProblemQueue, executor: Executor, store: Store) -> Iterator[Event]:
        """Tune problems of the queue on a device, then time their kernels at other shapes. Yield the events."""
        yield from queue.events(executor)
        if self.pairs:
            from tsm2_tune.tuner.measure.cross_timing import CrossTiming  # slow to import

            yield PairsStarted()
            yield from CrossTiming(frozenset(self.problems), executor, store, self.families, queue.hold).events()


def winners(store: Store, target: Target, cache: Cache, asked: tuple[Problem, ...]) -> tuple[BestRow, ...]:
    """Return the fastest kernel of each problem in `asked`, from the database."""
    rows, of = store.best(device=target.identity.name, cache=cache), frozenset(asked)
    return tuple(row for row in rows if row.problem in of)


def solved(ended: Iterable[ProblemEnded], won: Iterable[BestRow]) -> tuple[ProblemEnded, ...]:
    """Return the events. If one has no winner, add the winner that another run has found meanwhile."""
    since = {row.problem: row for row in won}
    return tuple(one if one.winner is not None else replace(one, winner=since.get(one.problem)) for one in ended)
