"""The search spaces of a run's problems. They are checked before the run, and enumerated when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Thresholds
from tsm2_tune.generator.space.space import SearchSpace, families_for, has_configurations, last_rule, search_space
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.verify.operands import needed_bytes

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Spaces(Sequence[SearchSpace]):
    """A sequence with the search space of each problem. Access to an element enumerates its search space."""

    problems: tuple[Problem, ...]
    limits: DeviceLimits
    guidelines: Thresholds
    families: tuple[str, ...]

    def families_of(self, problem: Problem) -> tuple[str, ...]:
        """Return the families in the problem's search space. It is not enumerated for this."""
        return tuple(family.name for family in families_for(problem, self.families))

    def __len__(self) -> int:
        return len(self.problems)

    @overload
    def __getitem__(self, index: int) -> SearchSpace: ...
    @overload
    def __getitem__(self, index: slice) -> Spaces: ...
    def __getitem__(self, index: int | slice) -> SearchSpace | Spaces:
        if isinstance(index, slice):
            return replace(self, problems=self.problems[index])
        return search_space(self.problems[index], self.limits, guidelines=self.guidelines, families=self.families)


def spaces(problems: Sequence[Problem], target: Target, *, guidelines: Thresholds, families: Sequence[str]) -> Spaces:
    """Return a sequence with the search space of each problem. Access to an element may take seconds: it enumerates
    the space.

    Raise InputError if a problem does not fit in the device's memory or has no configuration.
    """
    limits = target.limits
    for problem in problems:
        needed = needed_bytes(problem)
        if needed > limits.memory_bytes:
            raise InputError(
                f"{problem.text} needs {needed / GIB:.1f} GiB, {limits.name} has {limits.memory_bytes / GIB:.1f} GiB:"
                " choose a smaller shape or another device"
            )
        if not has_configurations(problem, limits, guidelines=guidelines, families=families):
            raise InputError(_nothing_left(problem, limits, guidelines, families))
    return Spaces(tuple(problems), limits, guidelines, tuple(families))


def _nothing_left(problem: Problem, limits: DeviceLimits, guidelines: Thresholds, families: Sequence[str]) -> str:
    """Return an error message: why no configuration remains, and what the user can do."""
    space = search_space(problem, limits, guidelines=guidelines, families=families)
    dropped = [(rule, count) for rule, count in space.dropped if count]
    counts = ", ".join(f"{count} by {rule.name}" for rule, count in dropped)
    others = ["loosen --guidelines"] if any(rule.kind == "guideline" for rule, _ in dropped) else []
    if families:
        others.append("name other families")
    remedies = [*_instead(problem, limits, guidelines, families), *others] or ["choose another shape"]
    rule = last_rule(space)
    last = "" if rule is None else f" ({rule.because})"
    why = f"dropped {counts}{last}" if counts else "no family computes it"
    return f"no configuration left for {problem.text} on {limits.name}: {why}; {' or '.join(remedies)}"


def _instead(problem: Problem, limits: DeviceLimits, guidelines: Thresholds, families: Sequence[str]) -> list[str]:
    """Return advice to tune the transposed product; [] if the transposed product has no configurations."""
    if problem.is_gram:
        return []
    other = problem.transposed
    if not has_configurations(other, limits, guidelines=guidelines, families=families):
        return []
    return [
        f"tune the transposed product, whose kernels serve it too: --shapes {other.shape} --dtype {other.dtype_name}"
        f" --op {other.op}"
    ]
