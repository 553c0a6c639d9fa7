"""The steps of tuning: choose a problem, search, store trials and finals, and yield events."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

from tsm2_tune import __version__
from tsm2_tune.generator.families import FAMILIES, family_named, parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.columnar import places
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Final, Outcome, Trial, TuningRun
from tsm2_tune.tuner.results.trial_summaries import StoredTrial
from tsm2_tune.tuner.runs.events import (
    FinalFailure,
    FinalStored,
    Noted,
    ProblemEnded,
    ProblemEvent,
    ProblemStarted,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
    WinnerVerified,
)
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.runs.problem_order import ProblemOrder, search_key
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.candidates import Claim, Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.resume import ClaimResult, FinalCandidate, PriorTrials, Retries
from tsm2_tune.tuner.search.spaces import Spaces
from tsm2_tune.tuner.search.stored_seeds import stored_seeds
from tsm2_tune.tuner.search.strategies import StrategyFactory, strategy_named
from tsm2_tune.tuner.search.strategies.strategy import Strategy, TrialResult

TOGETHER_SECONDS = 0.1  # trials that end within this time share one database transaction
LATEST_SECONDS = 0.2  # ended trials wait at most this time to be stored
MOST_FINALS = 3  # maximum number of finals of a problem in a run


def run(
    searched: Sequence[SearchSpace],
    tuner: Tuner,
    store: Store,
    *,
    make_strategy: StrategyFactory | None = None,
    families: Sequence[str] = (),
) -> Iterator[ProblemEvent]:
    """Tune each problem. Yield an event for each trial and final after it is stored in the database.

    `make_strategy` returns the search strategy; the default is the strategy of the options.

    The fastest kernels of `families` take part in the finals, including those that earlier runs tried. If `families`
    is empty, all default families and all families in the search space take part. The limits on trials and seconds
    count only trials of the searched families in this run's L2 state. Problems on which another run works at the same
    time are tuned last. Configurations that another run tried or claimed are skipped.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    cache = tuner.target.cache(tuner.options.cache)
    if isinstance(searched, Spaces):
        problems, asked = searched.problems, searched.key
    else:
        problems, asked = tuple(space.problem for space in searched), ()
    key = search_key(tuner.basis, tuner.options, tuple(families), asked)
    with store.claims(tuner.target.identity.name) as claims:
        order, retries_by_problem = ProblemOrder(claims, problems, key), dict[Problem, Retries]()
        for place in order:
            tuner.expect(problems[place])
            space = searched[place]
            names = tuple(name for name in counted(families, space) if family_named(name).supports(space.problem))
            session = ProblemSession(
                space, tuner, store, claims, names, started_at, cache, retries_by_problem=retries_by_problem
            )
            yield from session.events(make_strategy)
    if order.ended_elsewhere:
        yield Noted(f"other runs have tuned {order.ended_elsewhere} of the {len(problems)} problems meanwhile")


def counted(families: Sequence[str], space: SearchSpace) -> Sequence[str]:
    """Return the kernel families whose fastest kernels are timed in finals.

    These are `families`. If `families` is empty, they are all default families and the families in the search space.
    """
    return families or [name for name, one in FAMILIES.items() if not one.only_by_name or name in space.families]


@dataclass(frozen=True, slots=True)
class ProblemSession:
    """The work on one problem in a run: its search, its finals, and the full verification of the fastest kernel."""

    space: SearchSpace
    tuner: Tuner
    store: Store
    claims: Claims
    families: tuple[str, ...]  # kernel families that take part in finals
    started_at: str  # start of the run
    cache: Cache  # L2 state in which trials are timed
    is_between: bool = False  # whether no search tunes the shape; it is between tuned shapes
    skipped: set[str] = field(default_factory=set)  # configurations whose kernels are quarantined
    # The retries of the problem's first session in this run: trials that failed since then are not repeated.
    retries_by_problem: dict[Problem, Retries] = field(default_factory=dict)

    @property
    def own(self) -> tuple[str, ...]:
        """The kernel families that are searched."""
        return tuple(name for name in self.families if name in self.space.families)

    def events(self, make_strategy: StrategyFactory | None) -> Iterator[ProblemEvent]:
        """Search the problem, time the fastest kernels again, and verify the fastest kernel in full.

        Yield each event after its results are stored.
        """
        space, tuner, store, problem = self.space, self.tuner, self.store, self.space.problem
        device = tuner.target.identity.name
        store.supersede(device, problem, tuner.basis)
        store.count_as_tuned(device, problem, self.cache)
        retries = retries_of(store, tuner, problem, self.own, self.retries_by_problem.get(problem))
        self.retries_by_problem.setdefault(problem, retries)
        prior = prior_trials(store, tuner, problem, self.own, retries)
        contenders = prior_trials(store, tuner, problem, self.families, retries).contenders
        best_before_us = min((one.median_us for one in contenders), default=None)
        vendor_us = store.vendor_us(device, problem, self.cache)
        yield ProblemStarted(space, len(prior.tried), prior.seconds, best_before_us, vendor_us)

        new_trials = interrupted = 0
        older = store.history(device, problem, self.own, tuner.basis).fastest_of_older()
        known = stored_seeds(store, problem, tuner.target.limits, device)
        strategy = (make_strategy or strategy_named(tuner.options.strategy))(space, tuner.options.seed, known)
        search = self.search(strategy, prior, retries, first=candidates_for(older, space))
        for event in self.tried(search, retries, strategy=None if make_strategy else tuner.options.strategy):
            interrupted += isinstance(event, TrialInterrupted)
            new_trials += isinstance(event, TrialStored)
            yield event
        if not make_strategy:
            store.end_search(device, problem, tuner.basis, search.why)
        yield from self.settled(retries)
        prior = prior_trials(store, tuner, problem, self.own, retries)
        winners = store.best(device=device, problem=problem, cache=self.cache)
        configs = frozenset(filter(None, map(parse_config, prior.tried)))
        elsewhere, skipped = self.claims.others(problem), len(self.skipped)
        given_up = len(self.claims.given_up(problem))
        left_out = interrupted + elsewhere + skipped + given_up
        yield ProblemEnded(
            problem,
            new_trials=new_trials,
            tried=len(prior.tried),
            timed_out=prior.timed_out,
            untried=max(0, len(space.kept) - len(places(space.kept, configs)) - left_out),
            interrupted=interrupted,
            elsewhere=elsewhere,
            given_up=given_up,
            quarantined=skipped,
            winner=winners[0] if winners else None,
            why=search.why,
        )

    def search(
        self, strategy: Strategy, prior: PriorTrials, retries: Retries, first: Sequence[Candidate] = ()
    ) -> Search:
        """Return an iterator over untried candidates: the candidates in `first`, then the strategy's candidates."""
        options = self.tuner.options
        most = None if options.max_trials is None else max(0, options.max_trials - len(prior.tried))
        return Search(strategy, prior, self._claim(retries), first=first, most=most, gain=options.gain)

    def tried(
        self, search: Search, retries: Retries, *, strategy: str | None = None
    ) -> Iterator[TrialStored | TrialInterrupted]:
        """Try the candidates of the search. Yield an event for each trial after it is stored.

        Ended trials are stored while the next kernel runs. They are stored with the strategy's name and the number of
        configurations in the search space.
        """
        configurations = len(self.space.kept) if strategy else None
        ended: list[Trial] = []  # ended trials that are not stored yet
        stored: list[TrialStored] = []  # events of stored trials, not yielded yet
        stored_at = time.monotonic()

        def store(after_seconds: float = TOGETHER_SECONDS) -> bool:
            nonlocal stored_at
            if not ended or time.monotonic() - stored_at < after_seconds:
                return False
            stored.extend(self._stored(ended, retries))
            stored_at = time.monotonic()
            return True

        try:
            for trial in self.tuner.tune(search, self.claims.in_one_transaction, store, self._record_current):
                if trial.outcome is Outcome.INTERRUPTED:
                    yield TrialInterrupted(trial)
                    continue
                ended.append(
                    replace(
                        trial,
                        is_between=self.is_between,
                        strategy=strategy,
                        space_configurations=configurations,
                    )
                )
                store(LATEST_SECONDS)
                while stored:
                    yield stored.pop(0)
        except Stopped as stopped:
            with suppress(Lost):  # the run must end by Stopped
                store(0.0)
            stopped.unstored = len(ended)
            ended.clear()
            raise
        finally:
            store(0.0)
        yield from stored
        self.claims.give_back()  # claims of kernels compiled ahead

    def _stored(self, ended: list[Trial], retries: Retries) -> list[TrialStored]:
        """Store the trials in `ended`, empty the list, and return an event for each new trial.

        No event is returned for a trial that another run stored before. This happens if the other run assumed that
        this run had died.
        """
        if not ended:
            return []
        hazards = quarantine.hazards(ended, self.tuner.target)
        kept = self.store.add_trials(tuning_run(self.tuner, self.started_at), ended, retries, hazards)
        events = [TrialStored(trial, one.trial_id) for trial, one in zip(ended, kept, strict=True) if one.is_new]
        ended.clear()
        return events

    def settled(self, retries: Retries, also: Collection[str] = ()) -> Iterator[ProblemEvent]:
        """Time the fastest kernels again (finals), and verify the fastest kernel in full. Yield the events.

        The configurations in `also` take part in the finals. If the problem has no stored correct trial, nothing is
        timed or verified.
        """
        yield from self._winner_verified(retries, also)
        yield from _left_out(self.tuner, self.space.problem)

    def _claim(self, retries: Retries) -> Claim:
        """Return a function that claims a candidate, so that no concurrent run tries it, and returns a ClaimResult.

        The function refuses a candidate whose kernel is in quarantine. It refuses every candidate once the number of
        trials has reached the option `max_trials`. Trials that are to be repeated do not count.
        """
        options, own = self.tuner.options, self.own
        basis = self.tuner.basis
        tried = self.store.history(self.tuner.target.identity.name, self.space.problem, own, basis).tried()
        replaced = sum(retries.includes(one.id, one.outcome, one.limits, one.total_seconds) for one in tried)
        most = None if options.max_trials is None else options.max_trials + replaced
        given_up = Outcome.CRASHED in options.retried
        quarantined = quarantine.in_force(self.store.database, self.tuner.target, options.limits, options.retried)

        def claim(candidate: Candidate) -> ClaimResult:
            problem, text = candidate.problem, candidate.config.text
            if quarantined.holds(candidate):
                self.skipped.add(text)
                return ClaimResult.QUARANTINED
            return self.claims.take(
                problem, text, basis=basis, retries=retries, families=own, most=most, given_up=given_up
            )

        return claim

    def _record_current(self, candidate: Candidate) -> None:
        self.claims.record_current(candidate.problem, candidate.config.text, self.tuner.basis)

    def _winner_verified(
        self, retries: Retries, also: Collection[str]
    ) -> Iterator[FinalStored | FinalFailure | WinnerVerified]:
        """Run finals, then verify the fastest kernel in full. Yield the events.

        If the fastest kernel is wrong, start again without it.
        """
        device = self.tuner.target.identity.name
        while True:
            yield from self.finals(retries, also)
            winners = self.store.best(device=device, problem=self.space.problem, cache=self.cache)
            winner = next(iter(winners), None)
            event = verified(winner, self.tuner, self.store) if winner is not None and not winner.stale else None
            if event is None:
                return
            yield event
            if event.outcome in (Outcome.OK, Outcome.INTERRUPTED):
                return

    def finals(self, retries: Retries, also: Collection[str]) -> Iterator[FinalStored | FinalFailure]:
        """Time the fastest kernels in turns, until the fastest kernel was timed in the last final.

        Yield the events.
        """
        problem, tuner, store = self.space.problem, self.tuner, self.store
        for _ in range(MOST_FINALS):
            self.claims.take_final(problem)  # then read the results of other runs
            try:
                final = tuner.final(problem, prior_trials(store, tuner, problem, self.families, retries), also)
                if isinstance(final, Final):
                    store.add_final(tuning_run(tuner, self.started_at), final, self.families, tuner.basis)
            finally:
                self.claims.give_back()
            if final is None:
                return
            yield final if isinstance(final, FinalFailure) else FinalStored(final)
            if isinstance(final, FinalFailure):
                return


def verified(row: BestRow, tuner: Tuner, store: Store) -> WinnerVerified | None:
    """Verify the fastest kernel of a problem, with its launch, in full. Store the verdict and return an event.

    Return None if the kernel was verified in full before, for this problem or for another one.
    """
    if row.verified_in_full:
        return None
    in_each_state = [tuner.target.basis(cache) for cache in Cache]
    known = store.full_verdict(row, in_each_state)
    if known is not None:  # the kernel is also the winner of another problem
        store.add_full_verdict(row.trial_id, *known)
        return None
    config = parse_config(row.config)
    assert config is not None  # because the winner is not stale
    result = tuner.verify_in_full(row.problem, config)
    if result.outcome is Outcome.OK:
        store.add_full_verdict(row.trial_id, result.verdict.detail if result.verdict else "", result.verified_code)
    elif result.outcome is not Outcome.INTERRUPTED:
        hazards = quarantine.refuted(tuner.target, row.problem, config, result)
        store.refute(row.trial_id, result.outcome, f"full verification: {result.detail}", hazards)
    return WinnerVerified(row.problem, row.trial_id, row.config, result.outcome, result.detail)


def _left_out(tuner: Tuner, problem: Problem) -> Iterator[VendorLeftOut]:
    """Yield an event with the reason if cuBLAS and cuBLASLt were not timed in the problem's finals."""
    if tuner.vendor is None:
        return
    if problem in tuner.vendor.troubles:
        yield VendorLeftOut(problem, tuner.vendor.troubles[problem])
    elif tuner.vendor.trouble:
        yield VendorLeftOut(None, tuner.vendor.trouble)


def candidates_for(texts: Sequence[str], space: SearchSpace) -> list[Candidate]:
    """Return the candidates with these configurations.

    The configurations were the fastest with earlier versions of the kernels' code. A configuration is skipped if it
    is neither in the search space nor a variant of a configuration in the space.
    """
    configs = list(filter(None, map(parse_config, texts)))
    at = places(space.kept, frozenset(config.early for config in configs))
    there = [config for config in configs if config.early in at]
    early = {config: space.kept[at[config.early]] for config in there}
    found = {config: replace(candidate, config=config) for config, candidate in early.items()}
    return [one for config, one in found.items() if family_named(config.family).has(config, one.problem)]


def retries_of(
    store: Store, tuner: Tuner, problem: Problem, families: Collection[str], first: Retries | None = None
) -> Retries:
    """Return which stored trials are to be repeated.

    Trials with an outcome in the option `retried` are repeated. A trial that ended early because its kernel was slow
    is also repeated if its kernel may win now, because the winner at that time was removed. `first` contains the
    retries at the start of this run: trials that failed since then are not repeated.
    """
    options = tuner.options
    tried = store.history(tuner.target.identity.name, problem, families, tuner.basis).tried()
    times_us = [one.newest_us for one in tried if one.outcome is Outcome.OK and one.newest_us is not None]
    most_us = inf if options.reach is None else options.reach * min(times_us, default=inf)
    retried = frozenset(
        (one.id, one.total_seconds)
        for one in tried
        if (one.outcome in options.retried and (first is None or (one.id, one.total_seconds) in first.retried))
        or (one.outcome is Outcome.BEHIND and (one.median_us is None or one.median_us <= most_us))
    )
    return Retries(options.limits, retried)


def prior_trials(
    store: Store, tuner: Tuner, problem: Problem, families: Collection[str], retries: Retries
) -> PriorTrials:
    """Return the stored trials of the problem on this device.

    Trials that are to be repeated (`retries`) are not in `tried`. Their time is included in the total `seconds`,
    except the time of the trials in `retries.retried`.
    """
    history = store.history(tuner.target.identity.name, problem, families, tuner.basis)
    found = history.tried()
    tried = [one for one in found if not retries.includes(one.id, one.outcome, one.limits, one.total_seconds)]
    return PriorTrials(
        tried=frozenset(trial.config.text for trial in tried),
        seconds=sum(one.total_seconds for one in found if (one.id, one.total_seconds) not in retries.retried),
        contenders=tuple(
            FinalCandidate(
                trial.config,
                trial.newest_us,
                trial.newest_high_us,
                is_new=trial.is_new,
            )
            for trial in found
            if trial.outcome is Outcome.OK and trial.newest_us is not None and trial.newest_high_us is not None
        ),
        last_finalists=history.final_configs(),
        vendor=history.vendor_of_last_final(),
        timed_out=sum(trial.outcome is Outcome.TIMED_OUT for trial in tried),
        results=tuple(map(_result_of, tried)),
    )


def _result_of(trial: StoredTrial) -> TrialResult:
    """Convert a stored trial to a strategy's TrialResult. If the kernel was correct, its newest time is used."""
    if trial.outcome is Outcome.OK and trial.newest_us is not None:
        return TrialResult(trial.config, trial.newest_us, is_right=True)
    return TrialResult(trial.config, trial.median_us, is_right=False)


def tuning_run(tuner: Tuner, started_at: str) -> TuningRun:
    """Return the record of this run, which is stored with its trials and finals."""
    return TuningRun(
        identity=tuner.target.identity,
        ceilings=tuner.ceilings,
        seed=tuner.options.seed,
        version=__version__,
        started_at=started_at,
        sms=tuner.target.limits.sms,
    )
