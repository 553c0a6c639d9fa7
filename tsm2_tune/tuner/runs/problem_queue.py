"""The problems of a run: they are leased from the database, and divided among the run's devices of one kind."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from math import inf

from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.seed_table import Measured
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import Noted, ProblemEvent, ProblemLeft
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, Leases
from tsm2_tune.tuner.runs.remote_executor import ExecutorLost
from tsm2_tune.tuner.runs.signals import held
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.candidates import MOST_LOST
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.session import ProblemSession, counted
from tsm2_tune.tuner.search.spaces import Spaces
from tsm2_tune.tuner.search.stored_seeds import stored_seeds
from tsm2_tune.tuner.search.strategies import StrategyFactory, strategy_named

WAIT_SECONDS = 0.1  # between two looks of a device for which no problem is left
LOOK_SECONDS = 1.0  # between two requests for the lease of a problem that another run has


@dataclass(slots=True)
class _Item:
    """A problem of the queue."""

    index: int  # of its search space
    problem: Problem
    devices: int = 0  # number of devices that work on it
    session: ProblemSession | None = None  # whose search other devices may join
    is_done: bool = False
    is_tuned_elsewhere: bool = False  # by another run, since this run began
    refused_at: float = -inf  # when another run had the lease
    lost_in_end: int = 0  # devices that were lost in finals and full verifications of the problem
    lost: Counter[str] = field(default_factory=Counter)  # devices that were lost during trials, by configuration


def tune_problems(
    searched: Sequence[SearchSpace],
    executor: Executor,
    store: Store,
    *,
    families: Sequence[str] = (),
    make_strategy: StrategyFactory | None = None,
) -> Iterator[ProblemEvent]:
    """Tune problems on one device. Yield each event after its results are stored. Arguments as in ProblemQueue."""
    with store.leases(executor.target.identity.name) as leases:
        queue = ProblemQueue(searched, store, leases, families=families, make_strategy=make_strategy)
        yield from queue.events(executor)
        yield from queue.left()


class ProblemQueue:
    """The problems that devices of one kind tune. Each device calls `events`, in a thread of its own.

    A device takes the next problem that no other run has leased. If none is left, it joins the search of another
    device: both try candidates of the same search. The last device to leave a search ends the problem. If it fails,
    another device takes the problem again. During the finals and the full verification of a problem, compilers make
    the first kernels of the problem that is probably next, if the device is a GPU of this process.

    `searched` contains the problems' search spaces. The fastest kernels of `families` take part in finals, including
    those that earlier runs tried; by default those of all default families and of the families in the space.
    `make_strategy` returns the search strategy; the default is the strategy of the options.
    """

    def __init__(
        self,
        searched: Sequence[SearchSpace],
        store: Store,
        leases: Leases,
        *,
        families: Sequence[str] = (),
        make_strategy: StrategyFactory | None = None,
    ) -> None:
        self._spaces, self._store, self._leases = searched, store, leases
        self._families, self._make_strategy = families, make_strategy
        # Access to an element of Spaces enumerates the space.
        problems = searched.problems if isinstance(searched, Spaces) else [space.problem for space in searched]
        self._items = [_Item(index, problem) for index, problem in enumerate(problems)]
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._held = set[Problem]()  # by `hold`
        self._lock = threading.Lock()  # of the items and `_held`
        self._is_stopped = False
        self.unstored = 0  # ended trials that could not be stored, since the database is unreachable

    def events(self, executor: Executor) -> Iterator[ProblemEvent]:
        """Tune problems on a device until none is left for it. Yield each event after its results are stored."""
        with ThreadPoolExecutor(1, thread_name_prefix="next problem") as aside:
            while True:
                is_alone = not any(one.devices for one in self._items)
                if (item := self._take(at_once=is_alone)) is not None:
                    yield from self._begin(item, executor, aside)
                elif (item := self._join()) is not None:
                    yield from self._search(item, executor, aside)
                elif is_alone or self._is_stopped:
                    return
                else:
                    time.sleep(WAIT_SECONDS)

    def stop(self) -> None:
        """Give no device another problem: the run is to end early."""
        self._is_stopped = True

    def left(self) -> Iterator[Noted]:
        """Yield a note for the problems that other runs have tuned meanwhile, and for each that is left to a run."""
        if count := sum(one.is_tuned_elsewhere for one in self._items):
            yield Noted(f"other runs have tuned {count} of the {len(self._items)} problems meanwhile")
        for one in self._items:
            if one.lost_in_end >= MOST_LOST:
                yield Noted(f"{one.problem.text} is not finished: {one.lost_in_end} devices were lost in its finals")
            elif not one.is_done and (holder := self._leases.holder(one.problem)):
                yield Noted(f"{one.problem.text} is left to {holder}")

    @property
    def unfinished(self) -> tuple[Problem, ...]:
        """The problems that no device has ended, and that no other run has."""
        return tuple(one.problem for one in self._items if not one.is_done and not self._leases.holder(one.problem))

    @contextmanager
    def hold(self, problem: Problem) -> Iterator[bool]:
        """Lease the problem for the `with` block. Yield false if another device or run has it."""
        with self._lock:
            is_free = problem not in self._held and not any(
                one.devices for one in self._items if one.problem == problem
            )
            if is_free:
                self._held.add(problem)
        if not is_free:
            yield False
            return
        try:
            is_ours = self._leases.take(problem)
            yield is_ours
            if is_ours:
                self._leases.release(problem)
        finally:
            self._held.discard(problem)

    def _take(self, *, at_once: bool) -> _Item | None:
        """Lease the first problem that is free; None if there is none.

        If `at_once` is false, problems are left out that another run had less than LOOK_SECONDS ago.
        """
        for one in self._items:
            with self._lock:
                is_refused = not at_once and time.monotonic() < one.refused_at + LOOK_SECONDS
                is_deadly = one.lost_in_end >= MOST_LOST
                is_away = one.is_done or one.devices or one.problem in self._held
                if self._is_stopped or is_deadly or is_away or is_refused:
                    continue
                one.devices = 1
            is_ours = False
            try:
                is_ours = self._leases.take(one.problem)
            finally:
                if not is_ours:
                    one.devices, one.refused_at = 0, time.monotonic()
            if is_ours:
                return one
        return None

    def _join(self) -> _Item | None:
        """Join the search with the fewest devices among those with a candidate now; None if there is none."""
        for one in sorted(self._items, key=lambda one: one.devices):
            with self._lock:
                if one.session is None or not one.session.has_candidate():
                    continue
                one.devices += 1
                return one
        return None

    def _begin(self, item: _Item, executor: Executor, aside: ThreadPoolExecutor) -> Iterator[ProblemEvent]:
        """Begin the search of a problem, and work on it."""
        try:
            session = self._session(item, executor)
            if session.history.is_tuned_since(self._started_at, executor.options, session.own):
                item.is_tuned_elsewhere = True
            else:
                executor.expect(item.problem)
                self._quarantine_suspect(item.problem, executor)
                session.begin(self._spaces[item.index], self._make_strategy)
                item.session = session
        except BaseException:
            self._leave(item, is_done=False)
            raise
        if item.session is None:
            self._leave(item, is_done=True)
        else:
            yield from self._search(item, executor, aside)

    def _search(self, item: _Item, executor: Executor, aside: ThreadPoolExecutor) -> Iterator[ProblemEvent]:
        """Try candidates of the search. If no other device is left at it, end the problem."""
        session, is_done = item.session, False
        assert session is not None
        try:
            yield session.started()
            is_last = False
            while not is_last:
                yield from session.tried(executor)
                with self._lock:
                    if item.devices > 1:
                        break
                    # A device that failed since then may have put candidates back.
                    is_last = not session.has_candidate()
                    if is_last:
                        item.session = None  # so that no device joins
            if is_last:
                self._compile_next(executor, aside)
                try:
                    yield from session.end(executor)
                except ExecutorLost:
                    item.lost_in_end += 1
                    raise
                is_done = True
            else:
                yield ProblemLeft(item.problem)
        finally:
            self._leave(item, is_done=is_done)

    def _compile_next(self, executor: Executor, aside: ThreadPoolExecutor) -> None:
        """Have the executor compile the first candidates of the problem that is probably next, in another thread.

        If another device or run takes this problem, they are compiled in vain. An error is not raised: it comes again
        when the problem begins. On the CPU nothing is compiled, since that would disturb the timing.
        """
        if executor.target.is_host:
            return
        with self._lock:
            free = (one for one in self._items if not (one.is_done or one.devices or one.problem in self._held))
            following = next(free, None)
        if following is not None:
            target = executor.target
            seeds = stored_seeds(self._store, following.problem, target.limits, target.identity.name)
            first = partial(self._first, following.index, executor.options, seeds)
            with held():
                aside.submit(executor.compile_first, first)

    def _first(self, index: int, options: Options, seeds: Sequence[Measured], count: int) -> list[Candidate]:
        """Return the first candidates of the strategy for a problem, at most `count`."""
        make_strategy = self._make_strategy or strategy_named(options.strategy)
        strategy = make_strategy(self._spaces[index], options.seed, seeds)
        return list(islice(iter(strategy.ask, None), count))

    def _leave(self, item: _Item, *, is_done: bool) -> None:
        """Count a device that leaves the problem. After the last one, release the problem."""
        with self._lock:
            is_last = item.devices == 1
            if is_last:
                self.unstored += 0 if item.session is None else item.session.unstored
                item.session = None
        if is_last:
            with suppress(Lost):  # else it would replace the reason why the device leaves; the lease expires soon
                self._leases.release(item.problem)
        with self._lock:
            item.is_done |= is_done
            item.devices -= 1

    def _session(self, item: _Item, executor: Executor) -> ProblemSession:
        problem, spaces = item.problem, self._spaces
        searched = spaces.families_of(problem) if isinstance(spaces, Spaces) else spaces[item.index].families

        def record(candidate: Candidate | None) -> None:
            config = None if candidate is None else candidate.config.text
            self._leases.record_current(problem, config, worker=threading.get_ident())

        families = counted(self._families, searched)
        return ProblemSession(
            problem, searched, executor, self._store, families, self._started_at, record=record, lost=item.lost
        )

    def _quarantine_suspect(self, problem: Problem, executor: Executor) -> None:
        """Put a configuration into quarantine if several runs in a row have died during its trial."""
        text = self._leases.config_to_quarantine(problem)
        if text is not None:
            config = parse_config(text)
            if config is not None and is_of_this_version(config, problem):
                detail = f"the last {DEATHS_UNTIL_QUARANTINE} runs that tried it died during its trial"
                one = quarantine.quarantined(executor.target, problem, config, Outcome.CRASHED, detail)
                self._store.quarantine_kernels([one])
            self._leases.clear_deaths(problem)
