"""Stored trials of a problem: configurations that are not tried again, and candidates for the final."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.results.history import History
from tsm2_tune.tuner.results.trial import Cache, Final, Outcome, TimeLimits, Trial
from tsm2_tune.tuner.results.trial_summaries import StoredTrial
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.strategy import TrialResult


@dataclass(frozen=True, slots=True)
class FinalCandidate:
    """A correct configuration with its newest time: from its last final, or else from its trial."""

    config: KernelConfig
    median_us: float
    high_us: float = 0.0  # upper end of the median's confidence interval
    is_new: bool = True  # tried after the last final


@dataclass(frozen=True, slots=True)
class Retries:
    """The stored trials that are to be repeated. A new trial replaces each of them."""

    limits: TimeLimits | None  # repeat trials that timed out with smaller limits than these; None: do not
    retried: frozenset[tuple[int, float]] = frozenset()  # (id, seconds) of a trial; its replacement has other seconds

    def includes(self, trial_id: int, outcome: Outcome, limits: TimeLimits | None, seconds: float) -> bool:
        """Return whether the trial with these values is to be repeated."""
        if outcome is Outcome.TIMED_OUT and self.limits is not None and self.limits.exceed(limits):
            return True
        return outcome is Outcome.INTERRUPTED or (trial_id, seconds) in self.retried


@dataclass(frozen=True, slots=True)
class PriorTrials:
    """The stored trials of a problem on the device, without those whose kernel code is different in this version."""

    tried: frozenset[str]  # texts of tried configurations; trials to repeat do not count
    seconds: float
    contenders: tuple[FinalCandidate, ...]
    last_finalists: frozenset[str]
    timed_out: int = 0  # number of `tried` that timed out
    vendor: frozenset[tuple[str, str, int]] = frozenset()  # driver, library and version in the last final
    results: tuple[TrialResult, ...] = ()  # of `tried`, in the order they were stored


NO_PRIOR_TRIALS = PriorTrials(frozenset(), 0.0, (), frozenset())


class ProblemHistory:
    """The stored trials of one problem on a device: read once when the problem's turn comes, then kept up to date.

    Trials whose kernel code is different in this version, or that have another basis (compiler, flags and L2 cache
    state), are omitted.
    """

    def __init__(self, stored: History, driver: str, cache: Cache) -> None:
        self._stored, self._driver, self._cache = stored, driver, cache
        self.read()

    def read(self) -> None:
        """Read the trials from the database."""
        self._trials = {one.config.text: one for one in self._stored.tried()}
        self._last_finalists = self._stored.final_configs()
        self._vendor = self._stored.vendor_of_last_final()

    def trial_id(self, config: str) -> int:
        """Return the id of the configuration's trial."""
        return self._trials[config].id

    def add(self, trial_id: int, trial: Trial) -> None:
        """Add a trial that was stored. It replaces an earlier trial of its configuration."""
        before, measured = self._trials.get(trial.config.text), trial.measurement
        is_timed_out = before is not None and before.outcome is Outcome.TIMED_OUT  # then its time is kept
        self._trials[trial.config.text] = StoredTrial(
            id=trial_id,
            config=trial.config,
            outcome=trial.outcome,
            median_us=None if measured is None else measured.median_us,
            newest_us=None if measured is None else measured.median_us,
            newest_high_us=None if measured is None else measured.high_us,
            is_new=measured is not None,
            total_seconds=trial.total_seconds
            + (before.total_seconds if before is not None and is_timed_out else 0.0),
            limits=trial.limits,
            ended_at=None,
        )

    def add_final(self, final: Final) -> None:
        """Add a final that was stored."""
        newest = {config.text: one for config, one in final.measurements if one.cache is self._cache}
        for text, one in self._trials.items():
            measured = newest.get(text)
            if measured is not None:
                one = replace(one, newest_us=measured.median_us, newest_high_us=measured.high_us)
            self._trials[text] = replace(one, is_new=False)
        self._last_finalists = frozenset(config.text for config, _ in final.measurements)
        self._vendor = frozenset((self._driver, one.library, one.version) for one in final.vendor)

    def retries(self, options: Options, families: Collection[str]) -> Retries:
        """Return which of the families' trials are to be repeated.

        Trials with an outcome in the option `retried` are repeated. A trial that ended early because its kernel was
        slow is also repeated if its kernel may win now, because the winner at that time was removed.
        """
        tried = self._of(families)
        times_us = [one.newest_us for one in tried if one.outcome is Outcome.OK and one.newest_us is not None]
        most_us = inf if options.reach is None else options.reach * min(times_us, default=inf)
        retried = frozenset(
            (one.id, one.total_seconds)
            for one in tried
            if one.outcome in options.retried
            or (one.outcome is Outcome.BEHIND and (one.median_us is None or one.median_us <= most_us))
        )
        return Retries(options.limits, retried)

    def prior(self, retries: Retries, families: Collection[str]) -> PriorTrials:
        """Return the families' trials as a search and a final need them.

        Trials that are to be repeated (`retries`) are not in `tried`. Their time is included in the total `seconds`,
        except the time of the trials in `retries.retried`.
        """
        found = self._of(families)
        tried = [one for one in found if not retries.includes(one.id, one.outcome, one.limits, one.total_seconds)]
        return PriorTrials(
            tried=frozenset(trial.config.text for trial in tried),
            seconds=sum(one.total_seconds for one in found if (one.id, one.total_seconds) not in retries.retried),
            contenders=tuple(
                FinalCandidate(one.config, one.newest_us, one.newest_high_us, is_new=one.is_new)
                for one in found
                if one.outcome is Outcome.OK and one.newest_us is not None and one.newest_high_us is not None
            ),
            last_finalists=self._last_finalists,
            vendor=self._vendor,
            timed_out=sum(trial.outcome is Outcome.TIMED_OUT for trial in tried),
            results=tuple(map(_result_of, tried)),
        )

    def is_tuned_since(self, moment: str, options: Options, families: Collection[str]) -> bool:
        """Return whether a search has ended since the moment, and the families' trials reach the options' limits.

        Return False if the options ask to repeat trials.
        """
        tried = self._of(families)
        seconds = sum(one.total_seconds for one in tried)
        is_long = options.budget_seconds is not None and seconds >= options.budget_seconds
        is_long |= options.max_trials is not None and len(tried) >= options.max_trials
        has_ended = any(one.ended_at is not None and one.ended_at > moment for one in tried)
        return is_long and has_ended and not options.retried

    def _of(self, families: Collection[str]) -> list[StoredTrial]:
        return [one for one in self._trials.values() if one.config.family in families]


def _result_of(trial: StoredTrial) -> TrialResult:
    """Convert a stored trial to a strategy's TrialResult. If the kernel was correct, its newest time is used."""
    if trial.outcome is Outcome.OK and trial.newest_us is not None:
        return TrialResult(trial.config, trial.newest_us, is_right=True)
    return TrialResult(trial.config, trial.median_us, is_right=False)
