"""The time left of a run is near the truth, and the best is compared with the vendor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import PROBLEM, configuration, ended, final, started, trial, vendor_measurement
from tsm2_tune.console.eta import ProblemProgress, Tally, remaining_text
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import (
    FinalStored,
    TrialInterrupted,
    TrialStored,
    WinnerVerified,
)
from tsm2_tune.tuner.search.options import Options


def turn_after(*events: Any, options: Options | None = None) -> ProblemProgress:
    tally = Tally(options or Options(), 1)
    for event in events:
        tally.update(event)
    return tally.turns[""]


def test_the_best_is_the_least_median_of_what_was_right() -> None:
    failed = trial(1.0, outcome=Outcome.WRONG_RESULT, measurement=None)
    turn = turn_after(started(), *(TrialStored(one, 1) for one in (trial(500.0), trial(450.0), failed, trial(480.0))))
    assert (turn.best_us, turn.tried, turn.total) == (450.0, 4, 128)
    assert turn.percent_of_floor == pytest.approx(100 * 400 / 450)
    assert turn_after(started(best_before_us=440.0, tried_before=9), TrialStored(trial(450.0), 1)).best_us == 440.0


def test_progress_compares_with_the_vendor_of_the_last_final() -> None:
    before = (started(vendor_us=900.0), TrialStored(trial(450.0), 1))
    measured = final((configuration(), 460.0), (configuration(256), 480.0), vendor=(vendor_measurement(690.0),))
    wrong = replace(measured, vendor=(vendor_measurement(100.0, right=False), vendor_measurement(920.0, "c #1")))
    clean, dirty = Options(cache=Cache.CLEAN), Options()
    for events, options, x_vendor in (
        ((started(), before[1]), dirty, None),
        (before, dirty, 2.0),
        ((*before, FinalStored(measured)), clean, 1.5),
        ((*before, FinalStored(measured)), dirty, 2.0),  # it is of another state
        ((*before, FinalStored(wrong)), clean, 2.0),
    ):
        assert turn_after(*events, options=options).x_vendor == x_vendor


def test_configurations_are_counted_up_to_the_most_trials() -> None:
    for before, total in ((3, 10), (30, 30)):
        assert turn_after(started(tried_before=before), options=Options(max_trials=10)).total == total
    made_late = turn_after(started(1), *[TrialStored(trial(), 1)] * 3)
    assert (made_late.tried, made_late.total) == (3, 3)
    assert turn_after(started(), TrialInterrupted(trial())).tried == 1


def test_the_mean_beside_the_vendor_is_geometric() -> None:
    tally = Tally(Options(), 4)
    for m, x_cublas in enumerate((4.0, 1.0, None, 2.0)):
        problem = replace(PROBLEM, m=1 + m)
        tally.update(started(problem=problem))
        tally.update(ended(problem, winner=None if x_cublas is None else SimpleNamespace(x_cublas=x_cublas)))
    assert tally.mean_x_vendor == pytest.approx(2.0)
    assert tally.share == 1.0


def test_a_share_is_of_the_configurations_or_of_the_budget() -> None:
    for options, share in ((Options(), 0.25), (Options(budget_seconds=6.0), 0.5), (Options(budget_seconds=2.0), 1.0)):
        tally = Tally(options, 2)
        tally.update(started(4))
        tally.update(TrialStored(trial(total_seconds=3.0), 1))
        assert (tally.share_of(tally.turns[""]), tally.share) == (share, share / 2)


ANY = trial()


@dataclass(frozen=True)
class Simulated:
    """A run of so many problems whose trials take so long, by random numbers."""

    problems: int
    kept: tuple[int, int]  # from, to
    trial_seconds: float
    finals_seconds: tuple[float, float]
    budget_seconds: float | None = None

    def told(self, seed: int) -> list[tuple[float, float | None]]:
        """The time that truly was left and what was told of it, after each event."""
        now = [0.0]
        tally = Tally(Options(budget_seconds=self.budget_seconds), self.problems, lambda: now[0])
        at = []
        for event in self._events(random.Random(seed), now):
            tally.update(event)
            at.append((now[0], tally.remaining_seconds))
        return [(now[0] - moment, told) for moment, told in at]

    def _events(self, chance: random.Random, now: list[float]) -> Iterator[Any]:
        for number in range(self.problems):
            problem = replace(PROBLEM, m=1000 + number)
            now[0] += chance.uniform(0.2, 3.0)
            kept = chance.randint(*self.kept)
            yield started(kept, problem)
            slowness, spent = chance.lognormvariate(0.0, 0.3), 0.0
            for place in range(kept):
                if self.budget_seconds is not None and spent >= self.budget_seconds:
                    break
                seconds = self.trial_seconds * slowness * chance.lognormvariate(0.0, 0.8) + 3.0 * (place == 0)
                spent += seconds
                now[0] += seconds
                yield TrialStored(replace(ANY, total_seconds=seconds), 1)
            now[0] += chance.uniform(*self.finals_seconds)
            yield WinnerVerified(problem, 1, "tsm2", Outcome.OK, "")
            yield ended(problem)


RUNS = [
    Simulated(12, (300, 1500), 0.1, (0.5, 3.0), budget_seconds=30.0),
    Simulated(12, (300, 600), 0.1, (0.5, 3.0)),
    Simulated(1, (500, 500), 0.1, (0.5, 3.0)),
    Simulated(1, (1500, 1500), 0.1, (0.5, 3.0), budget_seconds=60.0),
    Simulated(40, (20, 60), 0.3, (1.0, 5.0)),
]


@pytest.mark.slow
@pytest.mark.parametrize("simulated", RUNS, ids=str)
def test_the_time_left_is_near_the_truth(simulated: Simulated) -> None:
    ratios = []
    for seed in range(4):
        told = simulated.told(seed)
        length = told[0][0]
        known = [(left, seconds) for left, seconds in told if seconds is not None]
        assert known[0][0] > 0.9 * length
        ratios += [seconds / left for left, seconds in known if 0.2 * length < left < 0.8 * length]
    assert 0.8 < median(ratios) < 1.4
    assert sum(0.5 < ratio < 2.0 for ratio in ratios) > 0.95 * len(ratios)


def after_three_trials(tally: Tally, now: list[float], *first: Any) -> Tally:
    """Let each of the runs that start so have three trials of a second."""
    for run, event in enumerate(first):
        tally.update(event, str(run))
    for number in (1, 2, 3):
        now[0] += 1.0
        for run in range(len(first)):
            tally.update(TrialStored(trial(total_seconds=1.0), number), str(run))
    return tally


def test_the_time_left_is_that_of_the_share_that_this_run_has_not_done() -> None:
    now = [0.0]
    for first, left in ((started(), 57.0), (started(seconds_before=40.0, tried_before=9), 17.0)):
        bounded = Tally(Options(budget_seconds=60.0), 1, lambda: now[0])
        assert after_three_trials(bounded, now, first).remaining_seconds == pytest.approx(left)
    tally = Tally(Options(), 1, lambda: now[0])
    tally.update(started(13), "0")
    assert tally.remaining_seconds is None
    tally = after_three_trials(Tally(Options(), 1, lambda: now[0]), now, started(13))
    for seconds, left in ((0.0, 10.0), (4.0, 6.0), (40.0, 0.0)):
        now[0] += seconds
        assert tally.remaining_seconds == pytest.approx(left)
    for event in (ended(), TrialStored(trial(1.0), 1), FinalStored(final((configuration(), 1.0))), ended()):
        tally.update(event, "0")
    assert (tally.turns, list(tally.ended), tally.remaining_seconds) == ({}, [PROBLEM], 0.0)


@pytest.mark.parametrize(("m", "share"), [(1, 2 / 11), (PROBLEM.m, 1 / 11)], ids=["two problems", "the same one"])
def test_runs_that_share_problems_halve_the_time_left(m: int, share: float) -> None:
    now = [0.0]
    both = (started(3), started(3, replace(PROBLEM, m=m)))
    tally = after_three_trials(Tally(Options(), 11, lambda: now[0]), now, *both)
    assert tally.share == pytest.approx(share)
    assert tally.remaining_seconds == pytest.approx(3 * (1 - share) / share)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (99.4, "99 s"), (100.0, "2 min"), (840.0, "14 min"), (6000.0, "2 h"), (80 * 3600.0, "3 days")],
)
def test_the_time_left_is_told_in_the_unit_of_its_size(seconds: float, text: str) -> None:
    assert remaining_text(seconds) == f"{text} left"
