"""Stored trials of a problem: configurations that are not tried again, and candidates for the final."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits
from tsm2_tune.tuner.search.strategies.strategy import TrialResult

FINALISTS, LEAST_FINALISTS = 5, 2  # maximum and minimum number of finalists
FINALIST_MARGIN = 0.05  # a finalist's median exceeds the best median by at most this share


@dataclass(frozen=True, slots=True)
class FinalCandidate:
    """A correct configuration with its newest time: from the last final in which it was timed, or else from its
    trial.
    """

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


class ClaimResult(Enum):
    """The result of claiming a configuration, so that no concurrent run tries it."""

    OURS = "ours"
    ELSEWHERE = "another run has claimed it, or has finished it"
    QUARANTINED = "its kernel hung or faulted for another problem"
    LIMIT_REACHED = "all runs together have claimed as many trials as --max-trials allows"
    OTHER_OPTIONS = "another run tunes the problem with other options"
    ENDED = "another run has ended the search of the problem"
    GIVEN_UP = "several runs died during this trial"


@dataclass(frozen=True, slots=True)
class PriorTrials:
    """The stored trials of one problem on the device.

    Trials whose kernel code is different in this version are omitted.
    """

    tried: frozenset[str]  # texts of tried configurations; trials to repeat do not count
    seconds: float
    contenders: tuple[FinalCandidate, ...]
    last_finalists: frozenset[str]
    timed_out: int = 0  # number of `tried` that timed out
    vendor: frozenset[tuple[str, str, int]] = frozenset()  # driver, library and version in the last final
    results: tuple[TrialResult, ...] = ()  # of `tried`, in the order they were stored


NO_PRIOR_TRIALS = PriorTrials(frozenset(), 0.0, (), frozenset())


def finalists(
    problem: Problem, prior: PriorTrials, also: Collection[str] = ()
) -> tuple[tuple[FinalCandidate, KernelSource], ...]:
    """Return the configurations to time in a final, fastest first, each with its rendered kernel.

    The finalists are the LEAST_FINALISTS fastest configurations, and further configurations that are at most
    FINALIST_MARGIN slower than the fastest configuration, but together at most FINALISTS. The configurations in
    `also` are added to them.
    """
    found: list[tuple[FinalCandidate, KernelSource]] = []
    is_closed, missing = False, set(also)
    for contender in sorted(prior.contenders, key=_rank):
        is_near = not found or contender.median_us <= found[0][0].median_us * (1 + FINALIST_MARGIN)
        is_closed |= len(found) >= FINALISTS or (len(found) >= LEAST_FINALISTS and not is_near)
        if not is_closed or contender.config.text in missing:
            found.append((contender, render(problem, contender.config)))
        missing.discard(contender.config.text)
        if is_closed and not missing:
            break
    return tuple(found)


def is_final_due(chosen: Sequence[FinalCandidate], prior: PriorTrials, also: Collection[str] = ()) -> bool:
    """Return whether the finalists, fastest first, must be timed in a new final.

    A final is due if a finalist was tried after the last final, or if the fastest finalist or a configuration in
    `also` was not in the last final. If there are fewer than LEAST_FINALISTS finalists, no final is due.
    """
    if len(chosen) < LEAST_FINALISTS:
        return False
    are_out = {chosen[0].config.text, *also} - prior.last_finalists
    return any(one.is_new or one.config.text in are_out for one in chosen)


def _rank(contender: FinalCandidate) -> tuple[float, float, str]:
    """Return the sort key of a contender. The order of contenders is the order in the database view `best`."""
    return contender.median_us, contender.high_us, contender.config.text
