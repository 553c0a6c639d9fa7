"""The work on one problem: search, store trials and finals, and yield events."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from tsm2_tune import __version__
from tsm2_tune.errors import DeviceError, WorkerError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES, family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.columnar import places
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome, Trial, TuningRun
from tsm2_tune.tuner.runs.events import (
    FinalFailure,
    FinalStored,
    ProblemEnded,
    ProblemEvent,
    ProblemStarted,
    TrialInterrupted,
    TrialStored,
    WinnerVerified,
)
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.finals import finalists, is_final_due
from tsm2_tune.tuner.search.resume import PriorTrials, ProblemHistory
from tsm2_tune.tuner.search.stored_seeds import stored_seeds
from tsm2_tune.tuner.search.strategies import StrategyFactory, strategy_named
from tsm2_tune.tuner.search.strategies.strategy import InOrder, Strategy
from tsm2_tune.tuner.worker.protocol import AttemptResult

MOST_FINALS = 3  # maximum number of finals of a problem in a run


def counted(families: Sequence[str], searched: Collection[str]) -> Sequence[str]:
    """Return `families`. If they are empty, return all default families and those in `searched`."""
    return families or [name for name, one in FAMILIES.items() if not one.only_by_name or name in searched]


class ProblemSession:
    """The work on one problem in a run: its search, its finals, and the full verification of the fastest kernel.

    `begin` is called first. Then each device that takes part calls `tried`, in its own thread. At last one of them
    calls `end`. `families` are the kernel families that take part in finals; those in `searched` are searched.
    """

    space: SearchSpace  # given to `begin`

    def __init__(
        self,
        problem: Problem,
        searched: Collection[str],
        executor: Executor,
        store: Store,
        families: Sequence[str],
        started_at: str,
        *,
        is_between: bool = False,
        record: Callable[[Candidate | None], object] = lambda _: None,
        lost: Counter[str] | None = None,
    ) -> None:
        """Read the problem's stored trials. Trials whose kernels have changed are marked first.

        `started_at` is the start of the run. `is_between` says that no search tunes the shape, because it is between
        tuned shapes. `record` is called with each candidate when its trial begins, and with None after the last one.
        `lost` counts the devices that were lost during trials of a configuration, in earlier sessions of the run too.
        """
        self.problem, self.executor, self.store, self.started_at = problem, executor, store, started_at
        self.is_between = is_between
        self.families = tuple(name for name in families if family_named(name).supports(problem))
        self.own = tuple(name for name in self.families if name in searched)
        self.cache = executor.cache
        self._record, self._lost = record, lost
        self._new_trials = self._interrupted = 0
        self.unstored = 0  # ended trials that could not be stored
        self._lock = threading.Lock()
        store.supersede(executor.target.identity.name, problem, executor.basis)
        stored = store.history(executor.target.identity.name, problem, self.families, executor.basis)
        self.history = ProblemHistory(stored, executor.target.identity.driver, self.cache)
        self._older = stored.fastest_of_older()
        self.retries = self.history.retries(executor.options, self.own)
        self.search: Search | None = None
        self._strategy: str | None = None

    def begin(self, space: SearchSpace, make_strategy: StrategyFactory | None = None) -> None:
        """Make the search: first the fastest configurations of older versions, then the strategy's candidates.

        `make_strategy` returns the strategy; the default is the strategy of the options.
        """
        executor, store, problem = self.executor, self.store, self.problem
        self.space, device = space, executor.target.identity.name
        store.count_as_tuned(device, problem, self.cache)
        seeds = stored_seeds(store, problem, executor.target.limits, device)
        if make_strategy is None:
            make_strategy, self._strategy = strategy_named(executor.options.strategy), executor.options.strategy
        self.search = self._search(
            make_strategy(space, executor.options.seed, seeds), first=candidates_for(self._older, space)
        )

    def started(self) -> ProblemStarted:
        """Return the event for a device that begins to work on the problem."""
        with self._lock:
            prior = self.history.prior(self.retries, self.own)
            contenders = self.prior.contenders
        return ProblemStarted(
            self.space,
            len(prior.tried),
            prior.seconds,
            min((one.median_us for one in contenders), default=None),
            self.store.vendor_us(self.executor.target.identity.name, self.problem, self.cache),
        )

    def has_candidate(self) -> bool:
        """Return whether the search has a candidate now."""
        assert self.search is not None
        candidate = next(self.search, None)
        if candidate is not None:
            self.search.put_back(candidate)
        return candidate is not None

    def untried(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates without a stored trial, or with one that is to be repeated."""
        tried = self.history.prior(self.retries, self.own).tried
        return [one for one in candidates if one.config.text not in tried]

    def listed(self, candidates: Sequence[Candidate]) -> Iterator[TrialStored | TrialInterrupted]:
        """Try the candidates without a stored trial, instead of a search. Yield each event after it is stored."""
        self.search = self._search(InOrder(candidates))
        yield from self.tried(self.executor)

    def _search(self, strategy: Strategy, first: Sequence[Candidate] = ()) -> Search:
        """Return an iterator over untried candidates, without those in quarantine."""
        options, prior = self.executor.options, self.history.prior(self.retries, self.own)
        quarantined = quarantine.in_force(self.store.database, self.executor.target, options.limits, options.retried)
        return Search(
            strategy,
            prior,
            quarantined.holds,
            first=first,
            most=None if options.max_trials is None else max(0, options.max_trials - len(prior.tried)),
            budget_seconds=options.budget_seconds,
            least=options.least_trials,
            gain=options.gain,
            lost=self._lost,
        )

    def tried(self, executor: Executor) -> Iterator[TrialStored | TrialInterrupted]:
        """Try candidates of the search on a device. Yield an event for each trial after it is stored."""
        assert self.search is not None
        configurations = len(self.space.kept) if self._strategy else None
        ended: list[Trial] = []  # ended trials that are not stored yet
        stored_at = time.monotonic()
        try:
            for trial in executor.tune(self.search, self._record):
                if trial.outcome is Outcome.INTERRUPTED:
                    with self._lock:
                        self._interrupted += 1
                    yield TrialInterrupted(trial)
                    continue
                ended.append(
                    replace(
                        trial,
                        is_between=self.is_between,
                        strategy=self._strategy,
                        space_configurations=configurations,
                    )
                )
                if time.monotonic() - stored_at >= self.executor.options.storage_seconds:
                    events = self._stored(ended, executor)
                    stored_at = time.monotonic()
                    yield from events
            yield from self._stored(ended, executor)
        except Stopped as stopped:
            with suppress(Lost):  # the run must end by Stopped
                self._stored(ended, executor)
            stopped.unstored = len(ended)
            ended.clear()
            raise
        except (DeviceError, WorkerError):
            yield from self._stored(ended, executor)  # the trials that ended before
            raise
        finally:
            self._record(None)
            try:
                self._stored(ended, executor)
            finally:
                with self._lock:
                    self.unstored += len(ended)

    def _stored(self, ended: list[Trial], executor: Executor) -> list[TrialStored]:
        """Store the trials in `ended`, empty the list, and return an event for each new trial.

        No event is returned for a trial that another run stored before. This happens if this run was suspended until
        its lease expired.
        """
        if not ended:
            return []
        hazards = quarantine.hazards(ended, executor.target)
        with self._lock:
            kept = self.store.add_trials(tuning_run(executor, self.started_at), ended, self.retries, hazards)
            for trial, one in zip(ended, kept, strict=True):
                if one.is_new:
                    self.history.add(one.trial_id, trial)
            if not all(one.is_new for one in kept):
                self.history.read()
            events = [TrialStored(trial, one.trial_id) for trial, one in zip(ended, kept, strict=True) if one.is_new]
            self._new_trials += len(events)
        ended.clear()
        return events

    def end(self, executor: Executor) -> Iterator[ProblemEvent]:
        """Time the fastest kernels again, and verify the fastest kernel in full. Yield the events."""
        assert self.search is not None
        space, problem, device = self.space, self.problem, executor.target.identity.name
        yield from self.settled(executor)
        if self._strategy is not None:
            self.store.end_search(device, problem, executor.basis, self.search.why)
        prior = self.history.prior(self.retries, self.own)
        configs = frozenset(filter(None, map(parse_config, prior.tried)))
        left_out = self._interrupted + len(self.search.skipped)
        yield ProblemEnded(
            problem,
            new_trials=self._new_trials,
            tried=len(prior.tried),
            timed_out=prior.timed_out,
            untried=max(0, len(space.kept) - len(places(space.kept, configs)) - left_out),
            interrupted=self._interrupted,
            quarantined=len(self.search.skipped),
            winner=self.winner(),
            why=self.search.why,
        )

    def settled(self, executor: Executor, also: Collection[str] = ()) -> Iterator[ProblemEvent]:
        """Time the fastest kernels again (finals), and verify the fastest kernel in full. Yield the events.

        The configurations in `also` take part in the finals. If the problem has no stored correct trial, nothing is
        timed or verified. If the fastest kernel is found wrong, start again without it.
        """
        while True:
            yield from self.finals(executor, also)
            winner = self.winner()
            event = verified(winner, executor, self.store) if winner is not None and not winner.stale else None
            if event is None:
                break
            yield event
            if event.outcome in (Outcome.OK, Outcome.INTERRUPTED):
                break
            self.history.read()  # without the wrong kernel
        if (left_out := executor.left_out(self.problem)) is not None:
            yield left_out

    def finals(
        self, executor: Executor, also: Collection[str] = (), *, again: bool = False
    ) -> Iterator[FinalStored | FinalFailure | WinnerVerified]:
        """Time the fastest kernels, interleaved, until the fastest kernel was timed in the last final.

        Yield the events. If `again` is true, a final is run even if none is due, and each kernel in it is verified in
        full before. If a verification is interrupted, no final follows.
        """
        problem, known = self.problem, set[str]()
        for number in range(MOST_FINALS):
            if again:
                for event in self._verified_again(executor, also, known):
                    yield event
                    if event.outcome is Outcome.INTERRUPTED:
                        return
                chosen = [one for one, _ in finalists(problem, self.prior, also)]
                if number > 0 and not is_final_due(chosen, self.prior, also):
                    return
            final = executor.final(problem, self.prior, also, repeat=again)
            if final is None:
                return
            if isinstance(final, FinalFailure):
                yield final
                return
            self.store.add_final(tuning_run(executor, self.started_at), final, self.families, executor.basis)
            self.history.add_final(final)
            yield FinalStored(final)

    def _verified_again(self, executor: Executor, also: Collection[str], known: set[str]) -> Iterator[WinnerVerified]:
        """Verify in full each kernel that a final would time, unless it is in `known`. Add each to `known`."""
        problem = self.problem
        while True:
            chosen = (one.config for one, _ in finalists(problem, self.prior, also))
            config = next((one for one in chosen if one.text not in known), None)
            if config is None:
                return
            known.add(config.text)
            trial_id = self.history.trial_id(config.text)
            result = judged(executor, self.store, problem, config, trial_id, "verification by confirm")
            if result.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
                self.history.read()  # without the wrong kernel
            yield WinnerVerified(problem, trial_id, config.text, result.outcome, result.detail)

    @property
    def prior(self) -> PriorTrials:
        """The stored trials of all kernel families that take part in finals."""
        return self.history.prior(self.retries, self.families)

    def winner(self) -> BestRow | None:
        """Return the fastest kernel of the problem; None if no kernel is correct."""
        device = self.executor.target.identity.name
        return next(iter(self.store.best(device=device, problem=self.problem, cache=self.cache)), None)


def candidate_of(config: KernelConfig, problem: Problem, limits: DeviceLimits) -> Candidate:
    """Return a candidate for the configuration. No guidelines apply to it."""
    return Candidate(family_named(config.family), config, problem, limits, Guidelines())


def problem_session(
    problem: Problem,
    families: Collection[str],
    tuner: Executor,
    store: Store,
    started_at: str,
    *,
    is_between: bool = False,
) -> ProblemSession:
    """Return a session that tries configurations of `families`. All default families take part in its finals."""
    own = tuple(sorted(name for name in families if name in FAMILIES and family_named(name).supports(problem)))
    return ProblemSession(problem, own, tuner, store, counted((), own), started_at, is_between=is_between)


def verified(row: BestRow, executor: Executor, store: Store) -> WinnerVerified | None:
    """Verify the fastest kernel of a problem, with its launch, in full. Store the verdict and return an event.

    Return None if the kernel was verified in full before, for this problem or for another one.
    """
    if row.verified_in_full:
        return None
    in_each_state = [executor.target.basis(cache) for cache in Cache]
    known = store.full_verdict(row, in_each_state)
    if known is not None:  # the kernel is also the winner of another problem
        store.add_full_verdict(row.trial_id, *known)
        return None
    config = parse_config(row.config)
    assert config is not None  # because the winner is not stale
    result = judged(executor, store, row.problem, config, row.trial_id, "full verification")
    return WinnerVerified(row.problem, row.trial_id, row.config, result.outcome, result.detail)


def judged(
    executor: Executor, store: Store, problem: Problem, config: KernelConfig, trial_id: int, by: str
) -> AttemptResult:
    """Verify a trial's kernel in full, store the verdict, and return the result.

    `by` is the beginning of the stored text if the kernel is wrong. A kernel that faults is put into quarantine. If
    the machine interrupts the verification, nothing is stored.
    """
    result = executor.verify_in_full(problem, config)
    if result.outcome is Outcome.OK:
        store.add_full_verdict(trial_id, result.verdict.detail if result.verdict else "", result.verified_code)
    elif result.outcome is not Outcome.INTERRUPTED:
        faulted = result.outcome is Outcome.CRASHED
        target, detail = executor.target, result.detail
        hazards = [quarantine.quarantined(target, problem, config, result.outcome, detail)] if faulted else []
        store.refute(trial_id, result.outcome, f"{by}: {detail}", hazards)
    return result


def candidates_for(texts: Sequence[str], space: SearchSpace) -> list[Candidate]:
    """Return the candidates with these configurations.

    A configuration is skipped if it is neither in the search space nor a variant of a configuration in the space.
    """
    configs = list(filter(None, map(parse_config, texts)))
    at = places(space.kept, frozenset(config.early for config in configs))
    there = [config for config in configs if config.early in at]
    early = {config: space.kept[at[config.early]] for config in there}
    found = {config: replace(candidate, config=config) for config, candidate in early.items()}
    return [one for config, one in found.items() if family_named(config.family).has(config, one.problem)]


def tuning_run(executor: Executor, started_at: str) -> TuningRun:
    """Return the record of this run, which is stored with its trials and finals."""
    return TuningRun(
        identity=executor.target.identity,
        ceilings=executor.ceilings,
        seed=executor.options.seed,
        version=__version__,
        started_at=started_at,
        sms=executor.target.limits.sms,
    )
