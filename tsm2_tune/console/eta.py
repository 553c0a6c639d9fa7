"""The progress of a run: its best times so far, and an estimate of the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf
from statistics import geometric_mean

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome, Trial
from tsm2_tune.tuner.runs.events import (
    Event,
    FinalStored,
    PairMeasured,
    ProblemEnded,
    ProblemLeft,
    ProblemStarted,
    RunEnded,
    TrialInterrupted,
    TrialStored,
    WinnerVerified,
)
from tsm2_tune.tuner.search.options import Options

LEAST_TRIALS = 3  # trials of a run before the remaining time is shown
PRIOR_TRIALS = 5  # weight of the earlier problems' time per trial, as a number of trials of the present problem
LEAST_LAG_SECONDS = 5.0  # least time constant with which the shown time follows the estimate
SILENCE_SECONDS = 15.0  # least time between two lines on the progress, if there are no live lines
LAG_PARTS = 5  # remaining time over the time constant, if the constant is larger than LEAST_LAG_SECONDS


@dataclass(slots=True)
class ProblemProgress:
    """The progress of tuning one problem, a product of a certain shape and type."""

    problem: Problem
    total: int  # configurations to try, including those of earlier runs
    tried: int  # configurations tried so far
    spent_seconds: float  # total time of its trials, including those of earlier runs
    best_us: float | None  # the least median so far
    vendor_us: float | None  # cuBLAS's least median; None if it was not measured
    floor_us: float | None = None  # least time that the device's rates allow; None before this run's first trial
    trials: int = 0  # trials of this run
    pace_seconds: float = 0.0  # total time of this run's trials except the first, which waits for the compiler
    last_at: float = 0.0  # when the last trial ended, or the problem began
    is_searched: bool = False  # whether the search has ended, and the fastest kernels are timed again

    @property
    def x_vendor(self) -> float | None:
        """The time of cuBLAS divided by the best time so far; None if one of the two times is unknown."""
        return None if self.best_us is None or self.vendor_us is None else self.vendor_us / self.best_us

    @property
    def percent_of_floor(self) -> float | None:
        """The least time that the device's measured rates allow, in percent of the best time; None if unknown."""
        return None if self.best_us is None or self.floor_us is None else 100 * self.floor_us / self.best_us


@dataclass(slots=True)
class _Mean:
    """The mean of the values added so far."""

    total: float = 0.0
    count: int = 0

    def add(self, total: float, count: int = 1) -> None:
        self.total += total
        self.count += count

    @property
    def value(self) -> float:
        """The mean; 0 if no value was added."""
        return self.total / self.count if self.count else 0.0


class Tally:
    """The progress of a run and its estimated remaining time. Several named devices may share the problems.

    The estimate assumes that the remaining trials of a problem take as long as its trials so far, within the budget.
    The last measurements of a problem are assumed to take as long as those of earlier problems, on average. A problem
    that has not begun is assumed to take as long as the problems before it, on average. The shown time follows a new
    estimate slowly, so that it does not jump.
    """

    def __init__(self, options: Options, problems: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.options, self.problems = options, problems
        self._clock = clock
        self.turns: dict[str, ProblemProgress] = {}  # each run's present problem, by the run's name
        self.ended: dict[Problem, ProblemEnded] = {}
        self._began: dict[str, float] = {}  # when the run's previous problem ended, by the run's name
        self._started = clock()
        self._durations, self._finals, self._pace = _Mean(), _Mean(), _Mean()  # seconds of problems, finals, trials
        self._end: float | None = None  # the shown time of the end
        self._shown_at = self._started

    def update(self, event: Event, run: str = "") -> None:
        """Update the progress after an event of the run with this name."""
        now, turn = self._clock(), self.turns.get(run)
        if isinstance(event, ProblemStarted):
            self.turns[run] = self._turn(event, now)
        elif turn is None:
            return
        elif isinstance(event, RunEnded | ProblemLeft):
            del self.turns[run]
            self._began[run] = now
        elif isinstance(event, TrialStored | TrialInterrupted):
            _add(turn, event.trial)
            turn.last_at = now
        elif isinstance(event, FinalStored):
            self._add_final(turn, event)
        elif isinstance(event, WinnerVerified):
            turn.is_searched = True
        elif isinstance(event, ProblemEnded):
            self._end_turn(run, turn, event, now)
        self._move_end(now)

    @property
    def remaining_seconds(self) -> float | None:
        """The estimated seconds until all problems are tuned; None if there is no estimate yet."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def has_finals(self) -> bool:
        """Whether the remaining time includes the last measurements and the verification of each problem's winner.

        The time for these is unknown, and not included, until the first problem has ended.
        """
        return self._finals.count > 0

    @property
    def share(self) -> float:
        """The share of all problems that is tuned, from 0 to 1. The present problem counts in part."""
        parts = sum(map(self.share_of, self.turns.values()))
        return min(1.0, (len(self.ended) + parts) / max(1, self.problems))

    def share_of(self, turn: ProblemProgress) -> float:
        """Return how much of the present problem is done, from 0 to 1.

        This is the share of the problem's configurations that were tried or, if it is larger, the share of the
        problem's time budget that was spent.
        """
        budget = self.options.budget_seconds
        spent = 0.0 if budget is None else turn.spent_seconds / budget
        return min(1.0, max(turn.tried / max(1, turn.total), spent))

    @property
    def mean_x_vendor(self) -> float | None:
        """The geometric mean over tuned problems of cuBLAS's time divided by the winner's time.

        None if there is no problem of which both times are known.
        """
        ended = tuple(self.ended.values())  # a copy, since another thread adds problems
        won = [one.winner.x_cublas for one in ended if one.winner is not None]
        known = [x for x in won if x is not None]
        return geometric_mean(known) if known else None

    def _turn(self, event: ProblemStarted, now: float) -> ProblemProgress:
        kept = len(event.space.kept)
        most = self.options.max_trials
        return ProblemProgress(
            problem=event.space.problem,
            total=max(event.tried_before, kept if most is None else min(kept, most)),
            tried=event.tried_before,
            spent_seconds=event.seconds_before,
            best_us=event.best_before_us,
            vendor_us=event.vendor_us,
            last_at=now,
        )

    def _add_final(self, turn: ProblemProgress, event: FinalStored) -> None:
        """Update the best times with those of the final measurements, in the L2 state that decides the ranking."""
        turn.is_searched = True
        cache, final = self.options.cache, event.final
        ours = [measured.median_us for _, measured in final.measurements if measured.cache is cache]
        theirs = [one for one in final.vendor if one.measurement.cache is cache and one.verdict.correct]
        turn.best_us = min(ours, default=turn.best_us)
        turn.vendor_us = min((one.measurement.median_us for one in theirs), default=turn.vendor_us)

    def _end_turn(self, run: str, turn: ProblemProgress, event: ProblemEnded, now: float) -> None:
        del self.turns[run]
        self.ended[event.problem] = event
        self._durations.add(now - self._began.get(run, self._started))
        self._began[run] = now
        self._finals.add(now - turn.last_at)
        self._pace.add(turn.pace_seconds, max(0, turn.trials - 1))

    def _move_end(self, now: float) -> None:
        """Move the shown time of the end towards the new estimate."""
        seconds = self._estimate(now)
        if seconds is None:
            return
        end = now + seconds
        if self._end is not None and len(self.ended) < self.problems:
            lag = max(LEAST_LAG_SECONDS, seconds / LAG_PARTS)
            end = self._end + (end - self._end) * (1 - exp(-(now - self._shown_at) / lag))
        self._end, self._shown_at = end, now

    def _estimate(self, now: float) -> float | None:
        finals, seconds = self._finals.value, 0.0
        durations = _Mean(self._durations.total, self._durations.count)
        for run, turn in self.turns.items():
            search = 0.0 if turn.is_searched else self._search_seconds(turn)
            if search is None:
                return None
            own = search + (max(0.0, finals - (now - turn.last_at)) if turn.is_searched else finals)
            durations.add(now - self._began.get(run, self._started) + own)
            seconds += own
        future = max(0, self.problems - len(self.ended) - len(self.turns))
        return (seconds + future * durations.value) / max(1, len(self.turns))

    def _search_seconds(self, turn: ProblemProgress) -> float | None:
        """Return the estimated remaining seconds of the problem's search; None if there are too few trials yet."""
        if turn.tried >= turn.total:
            return 0.0
        if not self._pace.count and turn.trials < LEAST_TRIALS:
            return None
        prior = min(self._pace.count, PRIOR_TRIALS)
        pace = _Mean(turn.pace_seconds + prior * self._pace.value, max(0, turn.trials - 1) + prior)
        budget = self.options.budget_seconds
        in_budget = inf if budget is None else max(0.0, budget - turn.spent_seconds)
        return min(pace.value * (turn.total - turn.tried), in_budget)


class PairTally:
    """The progress of timing kernels outside of a search.

    `what` names the activity. `counts` are the events to count: "trial", "final" or both.
    """

    def __init__(
        self,
        what: str,
        counts: Sequence[str] = ("trial", "final"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._clock = what, clock
        self._counts = dict.fromkeys(counts, 0)
        self._started = clock()
        self.so_far = ""  # how far it is
        self.share = 0.0  # of the pairs known so far, from 0 to 1

    def update(self, event: object) -> None:
        """Update the progress after an event."""
        if isinstance(event, PairMeasured):
            self.so_far = f"{event.done} of {event.total}"
            self.share = event.done / max(1, event.total)
            if 0 < event.done < event.total:
                seconds = (self._clock() - self._started) / event.done * (event.total - event.done)
                self.so_far += f", {remaining_text(seconds)}"
        elif isinstance(event, TrialStored | TrialInterrupted):
            self._count("trial")
        elif isinstance(event, FinalStored):
            self._count("final")

    @property
    def text(self) -> str:
        """What is measured, how far it is, and the numbers of events."""
        done = ", ".join(counted(count, what) for what, count in self._counts.items() if count)
        return f"{self._what}{self.so_far and f': {self.so_far}'}{done and f'; {done}'}"

    def _count(self, what: str) -> None:
        if what in self._counts:
            self._counts[what] += 1


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _add(turn: ProblemProgress, trial: Trial) -> None:
    turn.pace_seconds += trial.total_seconds if turn.trials else 0.0
    turn.spent_seconds += trial.total_seconds
    turn.trials += 1
    turn.tried += 1
    turn.total = max(turn.total, turn.tried)  # `total` excludes variants of the fastest configurations
    turn.floor_us = trial.floor_us
    if trial.outcome is Outcome.OK and trial.measurement is not None:
        turn.best_us = min(trial.measurement.median_us, turn.best_us or inf)


def remaining_text(seconds: float, what: str = "") -> str:
    """Return a text such as "12 min left". `what` follows the unit, such as " of search"."""
    for unit, length, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit}{what} left"
    return f"{seconds / 86400:.0f} days{what} left"
