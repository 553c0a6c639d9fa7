"""A tuning run: it tunes problems on one device, stores the results in one database, and reports events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target, default_spec, find_target
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.storage.retry import until_committed
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Event, Noted, PairsStarted, ProblemEnded, RunStarted, is_interruption
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.spaces import Spaces, spaces


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a tuning run. All measurements are in the database."""

    target: Target  # its device
    ended: tuple[ProblemEnded, ...]  # for each problem that the run tuned, in the order in which they ended
    winners: tuple[BestRow, ...]  # of the run's problems
    interrupted: int  # trials and final comparisons that were interrupted from outside


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a tuning run, which may be executed in another process or on another machine."""

    device: Target | str | None  # a string is resolved where the run executes; None: GPU 0, or the host
    problems: tuple[Problem, ...]
    guidelines: Mapping[str, float]  # changed thresholds
    families: tuple[str, ...]
    options: Options
    pairs: bool  # whether to time kernels at shapes for which another kernel is fastest
    wait: bool  # whether to wait for another run on the device
    db: str

    def planned(self) -> tuple[Target, Spaces]:
        """Return the device and each problem's search space. Raise InputError if the device cannot tune a problem."""
        target = self.device if isinstance(self.device, Target) else find_target(self.device or default_spec())
        return target, spaces(self.problems, target, guidelines=self.guidelines, families=self.families)

    def result(self, tell: Callable[[Event], object], *, is_child: bool = False) -> RunResult:
        """Execute the run and return its result. `tell` is called with each event. Raise the same errors as the
        function `tune`.

        If `is_child` is true, wait for a database server that is down, since the parent process has connected to it
        before.
        """
        target, planned = self.planned()
        tuner = Tuner(target, self.options)
        ended: dict[Problem, ProblemEnded] = {}
        interrupted = 0
        with (
            device_lock(target, (lambda sentence: tell(Noted(sentence))) if self.wait else None),
            (awaited if is_child else Store.open)(self.db, create=True) as store,
        ):
            tell(RunStarted(target, self.problems, self.options, tuner.phases))  # before kernels are compiled
            with tuner:
                for event in self._events(planned, tuner, store):
                    interrupted += is_interruption(event)
                    if isinstance(event, ProblemEnded):
                        before = ended.pop(event.problem, None)  # a problem may end twice, see ProblemOrder
                        earlier = before.new_trials if before is not None else 0
                        ended[event.problem] = replace(event, new_trials=event.new_trials + earlier)
                    tell(event)
                won = winners(store, target, tuner.cache, self.problems)
        return RunResult(target, solved(ended.values(), won), won, interrupted)

    def on(self, device: Target | str | None, *, sharing: int = 1) -> Run:
        """Return a copy of the run for another device. `sharing` is the number of runs that share the machine's
        processors.
        """
        return replace(self, device=device, options=replace(self.options, sharing=sharing))

    def _events(self, planned: Spaces, tuner: Tuner, store: Store) -> Iterator[Event]:
        yield from session.run(planned, tuner, store)
        if self.pairs:
            from tsm2_tune.tuner.measure.cross_timing import CrossTiming  # slow to import

            yield PairsStarted()
            yield from CrossTiming(frozenset(self.problems), tuner, store, self.families).events()


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
