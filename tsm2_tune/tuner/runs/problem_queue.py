"""The problems of a run: they are leased from the database, and divided among the run's devices of one kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import Noted, ProblemEvent, ProblemLeft
from tsm2_tune.tuner.runs.leases import MOST_DEATHS, Leases
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.session import ProblemSession, counted
from tsm2_tune.tuner.search.spaces import Spaces
from tsm2_tune.tuner.search.strategies import StrategyFactory

WAIT_SECONDS = 0.1  # until the strategy of a search that has no candidate now is asked again


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
    device: both try candidates of the same search. The last device to leave a search ends the problem.

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
        of_spaces = searched.problems if isinstance(searched, Spaces) else [space.problem for space in searched]
        self._problems = tuple(of_spaces)
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._remaining = list(range(len(self._problems)))
        self._searches = dict[ProblemSession, int]()  # searches under way, with the number of devices at each
        self._preparing = 0  # problems whose search is about to begin
        self._is_stopped = False
        self._tuned_elsewhere = 0  # problems that other runs have tuned meanwhile
        self._held = set[Problem]()  # by this run's devices
        self._lock = threading.Lock()

    def events(self, executor: Executor) -> Iterator[ProblemEvent]:
        """Tune problems on a device until none is left for it. Yield each event after its results are stored."""
        while True:
            session = self._next_session(executor) or self._search_to_join()
            if session is not None:
                yield session.started()
                yield from self._search(session, executor)
            elif (self._searches or self._preparing) and not self._is_stopped:
                time.sleep(WAIT_SECONDS)
            else:
                return

    def stop(self) -> None:
        """Give no device another problem: the run is to end early."""
        self._is_stopped = True

    def _next_session(self, executor: Executor) -> ProblemSession | None:
        """Lease the first problem that is free, and begin its search; None if there is no such problem."""
        while (place := self._next_place()) is not None and self._is_tuned_elsewhere(self._problems[place], executor):
            self._tuned_elsewhere += 1
            self._release(self._problems[place])
            with self._lock:
                self._preparing -= 1
        if place is None:
            return None
        try:
            session = self._session(place, executor)
            session.begin(self._make_strategy)
            with self._lock:
                self._searches[session] = 0
            return session
        except BaseException:
            self._put_back(place)
            raise
        finally:
            with self._lock:
                self._preparing -= 1

    def _session(self, place: int, executor: Executor) -> ProblemSession:
        problem = self._problems[place]
        executor.expect(problem)
        self._quarantine_suspect(problem, executor)
        space = self._spaces[place]

        def record(candidate: Candidate | None) -> None:
            config = None if candidate is None else candidate.config.text
            self._leases.record_current(problem, config, worker=threading.get_ident())

        families = counted(self._families, space)
        return ProblemSession(space, executor, self._store, families, self._started_at, record=record)

    def _is_tuned_elsewhere(self, problem: Problem, executor: Executor) -> bool:
        """Return whether another run has ended the problem's search since this run began, by no smaller limits."""
        limits, device = executor.options, executor.target.identity.name
        for one in self._store.ended_searches(device, problem, executor.basis):
            budget, most = limits.budget_seconds, limits.max_trials
            is_long = budget is not None and one.why == Why.BUDGET and one.total_seconds >= budget
            is_long |= most is not None and one.why == Why.MAX_TRIALS and one.trials >= most
            if one.last_at > self._started_at and (is_long or one.why == Why.ALL_TRIED):
                return True
        return False

    def _quarantine_suspect(self, problem: Problem, executor: Executor) -> None:
        """Put a configuration into quarantine if several runs in a row have died during its trial."""
        text = self._leases.suspect(problem)
        if text is not None:
            config = parse_config(text)
            if config is not None and is_of_this_version(config, problem):
                detail = f"the last {MOST_DEATHS} runs that tried it died during its trial"
                one = quarantine.quarantined(executor.target, problem, config, Outcome.CRASHED, detail)
                self._store.quarantine_kernels([one])
            self._leases.acquit(problem)

    def left(self) -> Iterator[Noted]:
        """Yield a note for the problems that other runs have tuned meanwhile, and for each that is left to a run."""
        if self._tuned_elsewhere:
            count = f"{self._tuned_elsewhere} of the {len(self._problems)} problems"
            yield Noted(f"other runs have tuned {count} meanwhile")
        for place in self._remaining:
            problem = self._problems[place]
            yield Noted(f"{problem.text} is left to {self._leases.holder(problem) or 'a run that has just ended'}")

    @contextmanager
    def hold(self, problem: Problem) -> Iterator[bool]:
        """Lease the problem for the `with` block. Yield false if another device or run has it."""
        is_ours = self._take(problem)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._release(problem)

    def _search(self, session: ProblemSession, executor: Executor) -> Iterator[ProblemEvent]:
        """Try candidates of the session's search. If no other device is left at it, end the problem.

        If the last device at it fails, the problem is put back, and another device tunes it.
        """
        is_last = is_done = False
        if self._join(session):
            try:
                yield from session.tried(executor)
                is_last = self._leave(session)
                if is_last:
                    yield from session.end(executor)
                is_done = True
            finally:
                is_last = is_last or (not is_done and self._leave(session))
                if is_last and is_done:
                    self._release(session.space.problem)
                elif is_last:
                    self._put_back(self._problems.index(session.space.problem))
        if not is_last:
            yield ProblemLeft(session.space.problem)

    def _join(self, session: ProblemSession) -> bool:
        """Count a device that joins the search. Return False if the last device at it has just left."""
        with self._lock:
            if session in self._searches:
                self._searches[session] += 1
            return session in self._searches

    def _leave(self, session: ProblemSession) -> bool:
        """Count a device that leaves the search. Return whether it was the last one."""
        with self._lock:
            self._searches[session] -= 1
            is_last = not self._searches[session]
            if is_last:
                del self._searches[session]
            return is_last

    def _next_place(self) -> int | None:
        """Lease the first problem that is free, and return its place; None if there is no such problem."""
        for place in () if self._is_stopped else tuple(self._remaining):
            with self._lock:
                self._preparing += 1
            if self._take(self._problems[place]):
                self._remaining.remove(place)
                return place
            with self._lock:
                self._preparing -= 1
        return None

    def _search_to_join(self) -> ProblemSession | None:
        """Return the search with the fewest devices among those with a candidate now; None if there is none."""
        with self._lock:
            fewest_first = sorted(self._searches, key=lambda one: self._searches[one])
        return next((one for one in fewest_first if one.has_candidate()), None)

    def _take(self, problem: Problem) -> bool:
        with self._lock:
            if problem in self._held:
                return False
            self._held.add(problem)
        is_ours = False
        try:
            is_ours = self._leases.take(problem)
        finally:
            if not is_ours:
                self._held.discard(problem)
        return is_ours

    def _put_back(self, place: int) -> None:
        self._remaining.insert(0, place)
        self._release(self._problems[place])

    def _release(self, problem: Problem) -> None:
        self._leases.release(problem)
        self._held.discard(problem)
