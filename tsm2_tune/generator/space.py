"""The search space: every configuration of the families, each kept or dropped by exactly one rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.guidelines import Guidelines, Thresholds
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.profiles import PROFILES
from tsm2_tune.generator.rules import GUIDELINE_RULES, HARDWARE_RULES, Rule
from tsm2_tune.generator.tables import Joined, Lazy

OWN: Thresholds = MappingProxyType({})  # no threshold is moved


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The candidates that every rule kept, and how many each rule dropped."""

    problem: Problem  # whose space it is
    limits: DeviceLimits  # of the device
    families: tuple[str, ...]  # that were enumerated
    kept: Sequence[Candidate]  # what a search tries, by family
    dropped: tuple[tuple[Rule, int], ...]  # every rule, in the order tried; 0 where it dropped nothing
    guidelines: tuple[Guidelines, ...]  # in force, of each family

    @property
    def total(self) -> int:
        """How many configurations there are, dropped ones included."""
        return len(self.kept) + sum(count for _, count in self.dropped)

    def __reduce__(self) -> tuple[Any, ...]:
        dropped = tuple((rule.name, count) for rule, count in self.dropped)
        kept = Counted(self.problem, self.limits, self.families, self.guidelines, len(self.kept))
        return _made_again, (kept, dropped)


@dataclass(frozen=True)
class Counted(Lazy):
    """The candidates of a space that another process enumerated: here that is done when one is asked for."""

    problem: Problem
    limits: DeviceLimits
    families: tuple[str, ...]
    guidelines: tuple[Guidelines, ...]  # in force, of each family
    number: int

    def __len__(self) -> int:
        return self.number

    def at(self, place: int) -> Candidate:
        return self._enumerated[place]

    @cached_property
    def _enumerated(self) -> Sequence[Candidate]:
        families = (FAMILIES[name] for name in self.families)
        return Joined(
            [
                pruned(family, self.problem, self.limits, wanted, rules_of(family))[0]
                for family, wanted in zip(families, self.guidelines, strict=True)
            ]
        )


def _made_again(kept: Counted, dropped: tuple[tuple[str, int], ...]) -> SearchSpace:
    rules = {rule.name: rule for name in kept.families for rule in rules_of(FAMILIES[name])}
    by_rule = tuple((rules[name], count) for name, count in dropped)
    return SearchSpace(kept.problem, kept.limits, kept.families, kept, by_rule, kept.guidelines)


def rules_of(family: Family[Any]) -> tuple[Rule, ...]:
    """The rules that a configuration of this family meets, in the order tried: guidelines last."""
    own = [rule for rule in family.rules if rule.kind == "guideline"]
    return (*(rule for rule in family.rules if rule not in own), *HARDWARE_RULES, *GUIDELINE_RULES, *own)


def unfit(family: Family[Any], config: KernelConfig, problem: Problem) -> str | None:
    """Why the template cannot compute the problem's type and op so, on any device; None where it can."""
    candidate = Candidate(family, config, problem, PROFILES["h200"], Guidelines())  # which has every instruction
    return next((rule.because for rule in family.rules if rule.kind == "limit" and not rule.keeps(candidate)), None)


def guidelines_in_force(
    family: Family[Any], problem: Problem, limits: DeviceLimits, asked: Guidelines | Thresholds
) -> Guidelines:
    """The family's own thresholds but for those asked for; Guidelines are asked for as a whole."""
    return asked if isinstance(asked, Guidelines) else family.guidelines(problem, limits).moved(asked)


def search_space(
    problem: Problem,
    limits: DeviceLimits,
    *,
    guidelines: Guidelines | Thresholds = OWN,
    families: Sequence[str] = (),
) -> SearchSpace:
    """Enumerate the families and prune, by each family's own guidelines but for the thresholds that are given.

    The families are all that support the problem, but for those that are `only_by_name`, unless they are named.

    A configuration that several rules would drop is counted under the first of them.
    """
    chosen = _families_for(problem, families)
    kept: list[Sequence[Candidate]] = []
    dropped: Counter[str] = Counter()
    rules: dict[str, Rule] = {}
    in_force = tuple(guidelines_in_force(family, problem, limits, guidelines) for family in chosen)
    for family, wanted in zip(chosen, in_force, strict=True):
        applicable = rules_of(family)
        rules |= {rule.name: rule for rule in applicable}
        of_family, dropped_of_family = pruned(family, problem, limits, wanted, applicable)
        kept.append(of_family)
        dropped += dropped_of_family
    return SearchSpace(
        problem=problem,
        limits=limits,
        families=tuple(family.name for family in chosen),
        kept=Joined(kept),
        dropped=tuple((rule, dropped[name]) for name, rule in rules.items()),
        guidelines=in_force,
    )


def has_configurations(
    problem: Problem, limits: DeviceLimits, *, guidelines: Guidelines | Thresholds = OWN, families: Sequence[str] = ()
) -> bool:
    """Whether `search_space` would keep any: known as soon as one is found."""
    for family in _families_for(problem, families):
        wanted, rules = guidelines_in_force(family, problem, limits, guidelines), rules_of(family)
        in_tables = family.kept_in_tables(problem, limits, wanted, rules)
        if in_tables is None:
            found = next(_kept(family, problem, limits, wanted, rules, Counter()), None) is not None
        else:
            found = len(in_tables[0]) > 0
        if found:
            return True
    return False


def _families_for(problem: Problem, named: Sequence[str]) -> list[Family[Any]]:
    """Those named, or all but for those that are `only_by_name`, as far as they support the problem."""
    return [
        family
        for name, family in FAMILIES.items()
        if (name in named if named else not family.only_by_name) and family.supports(problem)
    ]


def pruned(
    family: Family[Any], problem: Problem, limits: DeviceLimits, guidelines: Guidelines, rules: Sequence[Rule]
) -> tuple[Sequence[Candidate], Counter[str]]:
    """The family's configurations that every rule keeps, and how many each rule drops that is the first to do so."""
    in_tables = family.kept_in_tables(problem, limits, guidelines, rules)
    if in_tables is not None:
        return in_tables
    dropped = Counter[str]()
    return list(_kept(family, problem, limits, guidelines, rules, dropped)), dropped


def _kept(
    family: Family[Any],
    problem: Problem,
    limits: DeviceLimits,
    guidelines: Guidelines,
    rules: Sequence[Rule],
    dropped: Counter[str],
) -> Iterator[Candidate]:
    """Those of `pruned`, one at a time; `dropped` counts the others.

    Bounds of tunables come first in most families and drop most, so they are compared before there is a Candidate.
    """
    bounds = list[tuple[str, str, int]]()
    for rule in rules:
        if rule.covering is None:
            break
        bounds.append((rule.name, rule.covering.tunable, rule.covering.largest_useful(problem)))
    others = rules[len(bounds) :]
    for config in family.configurations():
        for name, tunable, largest in bounds:
            if getattr(config, tunable) > largest:
                dropped[name] += 1
                break
        else:
            candidate = Candidate(family, config, problem, limits, guidelines)
            broken = next((rule for rule in others if not rule.keeps(candidate)), None)
            if broken is None:
                yield candidate
            else:
                dropped[broken.name] += 1
