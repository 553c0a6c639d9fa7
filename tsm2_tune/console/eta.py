"""The progress of a run: its best times so far, and an estimate of the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import geometric_mean

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome, Trial, count_text
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
)
from tsm2_tune.tuner.search.options import Options

LEAST_SHARE = 0.02  # of all problems, that this run has tuned before the remaining time is shown
SILENCE_SECONDS = 15.0  # least time between two lines on the progress, if there are no live lines


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

    @property
    def x_vendor(self) -> float | None:
        """The time of cuBLAS divided by the best time so far; None if one of the two times is unknown."""
        return None if self.best_us is None or self.vendor_us is None else self.vendor_us / self.best_us

    @property
    def percent_of_floor(self) -> float | None:
        """The least time that the device's measured rates allow, in percent of the best time; None if unknown."""
        return None if self.best_us is None or self.floor_us is None else 100 * self.floor_us / self.best_us


class Tally:
    """The progress of a run and its estimated remaining time. Several named devices may share the problems.

    The estimate assumes that this run tunes the remaining share of the problems at its mean rate so far.
    """

    def __init__(self, options: Options, problems: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.options, self.problems = options, problems
        self._clock = clock
        self.turns: dict[str, ProblemProgress] = {}  # each run's present problem, by the run's name
        self.ended: dict[Problem, ProblemEnded] = {}
        self._before: dict[Problem, float] = {}  # the share of each begun problem that earlier runs had tuned
        self._started = clock()
        self._end: float | None = None  # the estimated time of the end

    def update(self, event: Event, run: str = "") -> None:
        """Update the progress after an event of the run with this name."""
        turn = self.turns.get(run)
        if isinstance(event, ProblemStarted):
            turn = self.turns[run] = self._turn(event)
            self._before.setdefault(turn.problem, self.share_of(turn))
        elif turn is None:
            return
        elif isinstance(event, RunEnded | ProblemLeft):
            del self.turns[run]
        elif isinstance(event, TrialStored | TrialInterrupted):
            _add(turn, event.trial)
        elif isinstance(event, FinalStored):
            self._add_final(turn, event)
        elif isinstance(event, ProblemEnded):
            del self.turns[run]
            self.ended[event.problem] = event
        self._estimate()

    @property
    def remaining_seconds(self) -> float | None:
        """The estimated seconds until all problems are tuned; None if there is no estimate yet."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def share(self) -> float:
        """The share of all problems that is tuned, from 0 to 1. The present problem counts in part."""
        parts = dict[Problem, float]()
        for turn in tuple(self.turns.values()):  # a copy, since another thread adds problems
            if turn.problem not in self.ended:
                parts[turn.problem] = max(parts.get(turn.problem, 0.0), self.share_of(turn))
        return min(1.0, (len(self.ended) + sum(parts.values())) / max(1, self.problems))

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

    def _turn(self, event: ProblemStarted) -> ProblemProgress:
        kept = len(event.space.kept)
        most = self.options.max_trials
        return ProblemProgress(
            problem=event.space.problem,
            total=max(event.tried_before, kept if most is None else min(kept, most)),
            tried=event.tried_before,
            spent_seconds=event.seconds_before,
            best_us=event.best_before_us,
            vendor_us=event.vendor_us,
        )

    def _add_final(self, turn: ProblemProgress, event: FinalStored) -> None:
        """Update the best times with those of the final measurements, in the L2 state that decides the ranking."""
        cache, final = self.options.cache, event.final
        ours = [measured.median_us for _, measured in final.measurements if measured.cache is cache]
        theirs = [one for one in final.vendor if one.measurement.cache is cache and one.verdict.correct]
        turn.best_us = min(ours, default=turn.best_us)
        turn.vendor_us = min((one.measurement.median_us for one in theirs), default=turn.vendor_us)

    def _estimate(self) -> None:
        """Estimate the time of the end, if enough is tuned. Several devices may tune the same problem."""
        now, share = self._clock(), self.share
        done = share - sum(self._before.values()) / max(1, self.problems)
        if done >= LEAST_SHARE or share == 1.0:
            self._end = now + (now - self._started) * (1.0 - share) / max(done, LEAST_SHARE)


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
        """Return what is measured, how far it is, and the numbers of events."""
        done = ", ".join(count_text(count, what) for what, count in self._counts.items() if count)
        return f"{self._what}{self.so_far and f': {self.so_far}'}{done and f'; {done}'}"

    def _count(self, what: str) -> None:
        if what in self._counts:
            self._counts[what] += 1


def _add(turn: ProblemProgress, trial: Trial) -> None:
    turn.spent_seconds += trial.total_seconds
    turn.tried += 1
    turn.total = max(turn.total, turn.tried)  # `total` excludes variants of the fastest configurations
    turn.floor_us = trial.floor_us
    if trial.outcome is Outcome.OK and trial.measurement is not None:
        turn.best_us = min(trial.measurement.median_us, turn.best_us or inf)


def remaining_text(seconds: float) -> str:
    """Return a text such as "12 min left"."""
    for unit, length, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit} left"
    return f"{seconds / 86400:.0f} days left"
