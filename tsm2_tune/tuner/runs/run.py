"""A tuning run: it tunes problems on one device, stores the results in one database, and reports events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.storage.retry import until_committed
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Event, Noted, PairsStarted, ProblemEnded, RunStarted, is_interruption
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.spaces import Spaces, spaces


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a tuning run. All measurements are in the database."""

    targets: tuple[Target, ...]  # its devices
    ended: tuple[ProblemEnded, ...]  # for each problem that the run tuned, in the order in which they ended
    winners: tuple[BestRow, ...]  # of the run's problems
    interrupted: int  # trials and final comparisons that were interrupted from outside
    unfinished: tuple[Problem, ...]  # problems that were not tuned on some kind of device, because devices failed


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

    def result(self, target: Target, tell: Callable[[Event], object]) -> RunResult:
        """Tune the problems on a device of this process and return the result. `tell` is called with each event.

        Raise the same errors as the function `tune`.
        """
        planned, tuner = self.spaces(target), Tuner(target, self.options)
        ended, interrupted = list[ProblemEnded](), 0
        with (
            device_lock(target, (lambda sentence: tell(Noted(sentence))) if self.wait else None),
            Store.open(self.db, create=True) as store,
        ):
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
        return RunResult((target,), solved(ended, won), won, interrupted, unfinished)

    def events(self, queue: ProblemQueue, executor: Executor, store: Store) -> Iterator[Event]:
        """Tune problems of the queue on a device, then time their kernels at other shapes. Yield the events."""
        yield from queue.events(executor)
        if self.pairs:
            from tsm2_tune.tuner.measure.cross_timing import CrossTiming  # slow to import

            yield PairsStarted()
            yield from CrossTiming(frozenset(self.problems), executor, store, self.families, queue.hold).events()


@contextmanager
def awaited(db: str, *, create: bool) -> Iterator[Store]:
    """Open the store like Store.open, but wait for a database server that is down."""
    with ExitStack() as stack:
        yield until_committed(lambda: stack.enter_context(Store.open(db, create=create)))


def winners(store: Store, target: Target, cache: Cache, asked: tuple[Problem, ...]) -> tuple[BestRow, ...]:
    """Return the fastest kernel of each problem in `asked`, from the database."""
    rows, of = store.best(device=target.identity.name, cache=cache), frozenset(asked)
    return tuple(row for row in rows if row.problem in of)


def solved(ended: Iterable[ProblemEnded], won: Iterable[BestRow]) -> tuple[ProblemEnded, ...]:
    """Return the ProblemEnded events.

    If an event has no winner, add the winner that another run has found meanwhile.
    """
    since = {row.problem: row for row in won}
    return tuple(one if one.winner is not None else replace(one, winner=since.get(one.problem)) for one in ended)
