"""Which configurations of a family a search tries first."""

from __future__ import annotations

from typing import TypeVar

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.guidelines import Guidelines
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import HARDWARE_RULES
from tsm2_tune.generator.split_k import ONE_WAVE, in_one_wave

C = TypeVar("C", bound=KernelConfig)


def first_choices(family: Family[C], problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
    """The family's proposals that suit this shape and fit this device: what its own and the hardware's rules keep.

    Where that is none of them, since the device holds fewer blocks, the same with as many as it holds.
    """
    rules = (*family.rules, *HARDWARE_RULES)

    def keeps(config: C) -> bool:
        candidate = Candidate(family, config, problem, limits, Guidelines())
        return all(rule.keeps(candidate) for rule in rules)

    proposals = family.proposals(problem, limits)
    kept = tuple(filter(keeps, proposals))
    if kept or ONE_WAVE not in family.rules:
        return kept
    fewer = dict.fromkeys(in_one_wave(family, config, problem, limits) for config in proposals)
    return tuple(filter(keeps, fewer))
