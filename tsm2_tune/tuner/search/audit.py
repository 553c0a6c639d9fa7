"""Compare the search space's rules with stored trials: which winners a rule would drop, and how wrong the estimates
of resources are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.architecture import HOST
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines, Thresholds
from tsm2_tune.generator.space.space import rules_of
from tsm2_tune.tuner.results.records import is_of_this_version
from tsm2_tune.tuner.results.trial import Cache, LoadedResources
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial

Timed = tuple[Problem, Cache]  # times of trials with equal pairs are comparable
ALL = "all of them"  # instead of a rule's name
Quantity = Literal["registers", "smem_bytes", "blocks_per_sm"]

# Estimated quantity -> functions that return its estimate for a candidate, and its value for a loaded kernel.
ESTIMATES: dict[Quantity, tuple[Callable[[Candidate], int], Callable[[LoadedResources], int]]] = {
    "registers": (lambda candidate: candidate.resources.registers, lambda loaded: loaded.registers),
    "smem_bytes": (lambda candidate: candidate.resources.smem_bytes, lambda loaded: loaded.smem_bytes),
    "blocks_per_sm": (lambda candidate: candidate.occupancy.blocks_per_sm, lambda loaded: loaded.blocks_per_sm),
}
OF_THE_HOST: tuple[Quantity, ...] = ("smem_bytes",)  # a CPU reports neither registers nor occupancy


@dataclass(frozen=True, slots=True)
class DroppedWinner:
    """The fastest measured configuration of a problem.

    A guideline (heuristic rule of the search space) would drop this configuration.
    """

    problem: Problem
    winner: KernelConfig
    winner_us: float
    kept: KernelConfig | None  # the fastest measured configuration that the guideline keeps, if any
    kept_us: float | None

    @property
    def cost(self) -> float | None:
        """The time of the fastest kept configuration divided by the winner's; None if no configuration is kept."""
        return None if self.kept_us is None else self.kept_us / self.winner_us


@dataclass(frozen=True, slots=True)
class GuidelineAudit:
    """The configurations that one guideline (heuristic rule of the search space) alone would drop."""

    rule: str
    would_drop: int  # measured configurations that the guideline would drop
    problems: int  # problems with a configuration that it would drop
    dropped: tuple[DroppedWinner, ...]

    @property
    def costs(self) -> tuple[float, ...]:
        """The values of `DroppedWinner.cost` that are not None."""
        return tuple(one.cost for one in self.dropped if one.cost is not None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The error of a kernel family's resource estimate, compared with the loaded kernels."""

    family: str
    quantity: Quantity
    trials: int
    mean: float  # mean of (compiled value - estimate)
    under: int  # trials whose estimate was too low
    worst: int  # the difference with the largest magnitude
    worst_config: KernelConfig
    worst_problem: Problem
    spilled: int  # trials whose kernel spills registers


@dataclass(frozen=True, slots=True)
class RuleAudit:
    """The number of trials for which a rule decides differently if it reads the compiled kernel's resources instead
    of the estimated resources.
    """

    rule: str
    kind: str
    trials: int  # trials of families with this rule
    wrongly_kept: int  # kept with the estimate, dropped with the compiled kernel's resources
    wrongly_dropped: int  # dropped with the estimate, kept with the compiled kernel's resources


@dataclass(frozen=True, slots=True)
class Audit:
    """The comparison of all rules of the search space with the trials of one device."""

    trials: int  # audited trials
    left_out: int  # other trials: this version lacks their configurations
    measured: int  # trials with a correct result and a time
    problems: int  # problems with a measured trial
    guidelines: tuple[GuidelineAudit, ...]  # each guideline alone, then all together; () without measured trials
    estimates: tuple[Estimate, ...]
    rules: tuple[RuleAudit, ...]  # rules that decide at least one trial differently


def audit(trials: Sequence[CurrentTrial], limits: DeviceLimits, asked: Thresholds) -> Audit:
    """Compare all rules of the search space with the trials of one device.

    Each trial is compared with its kernel family's guidelines (heuristic rules), with the thresholds in `asked`.
    Raise InputError if no trial with a configuration of this version was compiled.
    """
    every, trials = trials, [trial for trial in trials if is_of_this_version(trial.config, trial.problem)]
    if all(trial.resources is None for trial in trials):
        raise InputError(
            f"nothing to audit of {limits.name}: of {len(every)} trials none is of a configuration that this version"
            " has and was compiled; tune there again"
        )
    in_force: dict[tuple[str, Problem], Guidelines] = {}
    candidates = {}
    for trial in trials:
        family = family_named(trial.config.family)
        key = (family.name, trial.problem)
        if key not in in_force:
            in_force[key] = family.guidelines(trial.problem, limits).moved(asked)
        candidates[trial.id] = Candidate(family, trial.config, trial.problem, limits, in_force[key])
    measured = defaultdict(list)
    for trial in trials:
        if trial.median_us is not None:
            measured[trial.problem, trial.cache].append(trial)
    fastest_first = {
        timed: sorted(of_problem, key=lambda trial: (trial.median_us or 0.0, trial.config.text))
        for timed, of_problem in sorted(measured.items())
    }
    return Audit(
        trials=len(trials),
        left_out=len(every) - len(trials),
        measured=sum(map(len, fastest_first.values())),
        problems=len({problem for problem, _ in fastest_first}),
        guidelines=_guidelines(fastest_first, candidates) if fastest_first else (),
        estimates=_estimates(trials, candidates, limits),
        rules=() if limits.compute_capability == HOST else _rules(trials, candidates),
    )


def _guidelines(
    fastest_first: Mapping[Timed, Sequence[CurrentTrial]], candidates: Mapping[int, Candidate]
) -> tuple[GuidelineAudit, ...]:
    dropping: dict[int, set[str]] = {}  # trial -> guidelines that would drop it
    names: dict[str, None] = {}
    for of_problem in fastest_first.values():
        for trial in of_problem:
            candidate = candidates[trial.id]
            own = [rule for rule in rules_of(family_named(candidate.config.family)) if rule.kind == "guideline"]
            names |= dict.fromkeys(rule.name for rule in own)
            dropping[trial.id] = {rule.name for rule in own if not rule.keeps(candidate)}
    found = []
    for name in (*names, ALL):
        would_drop = {trial_id for trial_id, by in dropping.items() if (by if name == ALL else name in by)}
        found.append(
            GuidelineAudit(
                rule=name,
                would_drop=len(would_drop),
                problems=len(
                    {
                        problem
                        for (problem, _), every in fastest_first.items()
                        if would_drop & {one.id for one in every}
                    }
                ),
                dropped=tuple(
                    _dropped_winner(problem, every, would_drop)
                    for (problem, _), every in fastest_first.items()
                    if every[0].id in would_drop
                ),
            )
        )
    return tuple(found)


def _dropped_winner(problem: Problem, fastest_first: Sequence[CurrentTrial], would_drop: set[int]) -> DroppedWinner:
    winner = fastest_first[0]
    kept = next((trial for trial in fastest_first if trial.id not in would_drop), None)
    assert winner.median_us is not None
    return DroppedWinner(
        problem=problem,
        winner=winner.config,
        winner_us=winner.median_us,
        kept=kept.config if kept else None,
        kept_us=kept.median_us if kept else None,
    )


def _estimates(
    trials: Iterable[CurrentTrial], candidates: Mapping[int, Candidate], limits: DeviceLimits
) -> tuple[Estimate, ...]:
    of_family = defaultdict(list)
    for trial in trials:
        if trial.resources is not None:
            of_family[trial.config.family].append((trial, trial.resources))
    return tuple(
        _estimate(family, quantity, compiled, candidates)
        for family, compiled in sorted(of_family.items())
        for quantity in ESTIMATES
        if limits.compute_capability != HOST or quantity in OF_THE_HOST
    )


def _estimate(
    family: str,
    quantity: Quantity,
    compiled: Sequence[tuple[CurrentTrial, LoadedResources]],
    candidates: Mapping[int, Candidate],
) -> Estimate:
    estimated, loaded = ESTIMATES[quantity]
    beyond = [loaded(real) - estimated(candidates[trial.id]) for trial, real in compiled]
    worst = max(range(len(beyond)), key=lambda place: abs(beyond[place]))
    return Estimate(
        family=family,
        quantity=quantity,
        trials=len(beyond),
        mean=sum(beyond) / len(beyond),
        under=sum(difference > 0 for difference in beyond),
        worst=beyond[worst],
        worst_config=compiled[worst][0].config,
        worst_problem=compiled[worst][0].problem,
        spilled=sum(bool(trial.spill_bytes) for trial, _ in compiled),
    )


def _rules(trials: Iterable[CurrentTrial], candidates: Mapping[int, Candidate]) -> tuple[RuleAudit, ...]:
    decided: dict[tuple[str, str], list[tuple[bool, bool]]] = defaultdict(list)
    for trial in trials:
        if trial.resources is not None:
            estimate = candidates[trial.id]
            real = replace(
                estimate.resources, registers=trial.resources.registers, smem_bytes=trial.resources.smem_bytes
            )
            compiled = replace(estimate, compiled=real)
            for rule in rules_of(family_named(estimate.config.family)):
                decided[rule.name, rule.kind].append((bool(rule.keeps(estimate)), bool(rule.keeps(compiled))))
    return tuple(
        RuleAudit(
            rule=name,
            kind=kind,
            trials=len(both),
            wrongly_kept=both.count((True, False)),
            wrongly_dropped=both.count((False, True)),
        )
        for (name, kind), both in decided.items()
        if any(by_estimate != by_compiler for by_estimate, by_compiler in both)
    )
