"""The ladder: six tutorial GEMM kernels, each with one more optimization, tuned on a device, with their speedups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tsm2_tune.errors import InputError
from tsm2_tune.generator.families.ladder import LADDER, PUBLISHED_ON, PUBLISHED_SHAPE, STEPS, Step
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import OWN, SearchSpace
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import ProblemEvent
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.spaces import Spaces
from tsm2_tune.tuner.search.spaces import spaces as spaces_of
from tsm2_tune.tuner.search.strategies import Known
from tsm2_tune.tuner.search.strategies.strategy import InOrder


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder (six tutorial GEMM kernels), with its fastest correct configuration."""

    step: Step
    tried: int  # number of configurations
    best: TrialRecord | None  # None if no configuration gave a correct result
    speedup_over_previous: float | None  # None for the first step, or if either step has no time
    speedup_over_first: float | None

    @property
    def median_us(self) -> float | None:
        return _median_us(self.best)

    @property
    def gflops(self) -> float | None:
        """The step's speed in Gflop/s, where an FMA counts as two operations. None if the step has no time."""
        return self.best.trial.problem.flops / self.median_us * 1e-3 if self.best and self.median_us else None

    @property
    def percent_of_floor(self) -> float | None:
        """The least time by the device's measured peak rates, in percent of the step's; None if it has no time."""
        return 100 * self.best.trial.floor_us / self.median_us if self.best and self.median_us else None

    @property
    def facts(self) -> dict[str, Any]:
        """The step as a JSON object. If the step has no time, the values that depend on it are null."""
        return {
            "step": self.step.name,
            "about": self.step.about,
            "tried": self.tried,
            "configuration": self.best.trial.config.text if self.best else None,
            "trial": self.best.id if self.best else None,
            "l2_state": self.best.trial.cache if self.best else None,
            "median_us": self.median_us,
            "gflops": self.gflops,
            "speedup_over_previous": self.speedup_over_previous,
            "speedup_over_first": self.speedup_over_first,
            "percent_of_floor": self.percent_of_floor,
            "published_gflops": self.step.published_gflops,
            "driver": self.best.run.identity.driver if self.best else None,
            "toolkit": self.best.run.identity.toolkit if self.best else None,
            "flags": self.best.run.identity.flags if self.best else None,
            "version": self.best.run.version if self.best else None,
            "ended_at": self.best.ended_at if self.best else None,
        }


def spaces(problems: Sequence[Problem], target: Target) -> Spaces:
    """Return the search space of the ladder (six tutorial GEMM kernels) for each problem.

    Raise InputError if the ladder does not support a problem, a problem does not fit in the device's memory, or a
    space is empty.
    """
    for problem in problems:
        if not LADDER.supports(problem):
            raise InputError(
                f"the ladder does not compute {problem.text}: its matrices are all column-major, or with --layout row"
                f" all row-major, of {' or '.join(LADDER.dtypes)}; choose another --op, --dtype or --math"
            )
    return spaces_of(problems, target, guidelines=OWN, families=(LADDER.name,))


def in_turns(space: SearchSpace, seed: int, known: Known = ()) -> InOrder:
    """Return a strategy that tries one candidate of each step in turn, so that a small budget reaches every step."""
    candidates = ordered(space, seed, candidate_times_us)
    steps = ([one for one in candidates if one.config.tunables["step"] == name] for name in STEPS)
    return InOrder(candidate for turn in zip_longest(*steps) for candidate in turn if candidate is not None)


def climb(searched: Sequence[SearchSpace], tuner: Tuner, store: Store) -> Iterator[ProblemEvent]:
    """Tune the ladder for each space, without kernels of other families. Yield the events."""
    return tune_problems(searched, tuner, store, make_strategy=in_turns, families=(LADDER.name,))


def rungs(problem: Problem, target: Target, store: Store, cache: Cache) -> tuple[Rung, ...]:
    """Return the ladder's steps with their results, from stored trials of the problem in L2 state `cache`."""
    tried = store.history(target.identity.name, problem, (LADDER.name,), target.basis(cache)).tried()
    found: list[Rung] = []
    for name, step in STEPS.items():
        trials = [trial for trial in tried if trial.config.tunables["step"] == name]
        right = [
            (trial.median_us, trial.id)
            for trial in trials
            if trial.outcome is Outcome.OK and trial.median_us is not None
        ]
        best = store.trial(min(right)[1]) if right else None
        previous = found[-1].best if found else None
        first = found[0].best if found else best
        found.append(Rung(step, len(trials), best, _speedup(previous, best), _speedup(first, best)))
    return tuple(found)


def facts(problem: Problem, target: Target, found: Sequence[Rung]) -> dict[str, Any]:
    """Return the ladder's results for a problem as a JSON object, with shape and device of the published rates."""
    return {
        "problem": problem.text,
        "device": target.identity.name,
        "published_shape": PUBLISHED_SHAPE,
        "published_on": PUBLISHED_ON,
        "steps": [rung.facts for rung in found],
    }


def _speedup(slow: TrialRecord | None, fast: TrialRecord | None) -> float | None:
    slow_us, fast_us = _median_us(slow), _median_us(fast)
    return slow_us / fast_us if slow_us and fast_us else None


def _median_us(record: TrialRecord | None) -> float | None:
    return record.trial.measurement.median_us if record and record.trial.measurement else None
