"""The search space of a problem: the configurations of kernel families, pruned by rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.columnar import Joined
from tsm2_tune.generator.space.guidelines import Guidelines, Thresholds
from tsm2_tune.generator.space.rules import GUIDELINE_RULES, HARDWARE_RULES, RESOURCES, Rule
from tsm2_tune.generator.space.tunables import declared

OWN: Thresholds = MappingProxyType({})  # no changes to the families' default thresholds


@dataclass(frozen=True, slots=True)
@plain
class SearchSpace:
    """The candidates that every rule kept, and how many each rule dropped."""

    problem: Problem  # the problem
    limits: DeviceLimits  # the device's limits
    families: tuple[str, ...]  # the families that were enumerated
    kept: Sequence[Candidate]  # the candidates of a search, by family
    dropped: tuple[tuple[Rule, int], ...]  # every rule, in order, with the number that it dropped
    guidelines: tuple[Guidelines, ...]  # the thresholds in force, one for each family

    @property
    def total(self) -> int:
        """The number of configurations before rules dropped any."""
        return len(self.kept) + sum(count for _, count in self.dropped)


def last_rule(space: SearchSpace) -> Rule | None:
    """Return the last rule that dropped configurations; None if no rule did, or if rules of several families did."""
    last = next((rule for rule, count in reversed(space.dropped) if count), None)
    return last if len(space.families) == 1 else None


def rules_of(family: Family[Any]) -> tuple[Rule, ...]:
    """Return the rules for configurations of this family, in the order of their application. Guidelines are last."""
    own = [rule for rule in family.rules if rule.kind == "guideline"]
    return (*(rule for rule in family.rules if rule not in own), *HARDWARE_RULES, *GUIDELINE_RULES, *own)


def unfit(family: Family[Any], config: KernelConfig, problem: Problem) -> str | None:
    """Return why this configuration cannot compute the problem's type and op on any device; None if it can."""
    candidate = Candidate(family, config, problem, PROFILES["h200"], Guidelines())  # the H200 has every instruction
    return next((rule.because for rule in family.rules if rule.kind == "limit" and not rule.keeps(candidate)), None)


def search_space(
    problem: Problem,
    limits: DeviceLimits,
    *,
    guidelines: Thresholds = OWN,
    families: Sequence[str] = (),
) -> SearchSpace:
    """Enumerate the configurations of the named families and drop those that break a rule.

    Without names, use all families that support the problem, except those whose `only_by_name` is true. `guidelines`
    replaces some or all thresholds of the families. A configuration that breaks several rules counts for the first.
    """
    chosen = families_for(problem, families)
    kept: list[Sequence[Candidate]] = []
    dropped: Counter[str] = Counter()
    rules: dict[str, Rule] = {}
    in_force = tuple(family.guidelines(problem, limits).moved(guidelines) for family in chosen)
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
    problem: Problem, limits: DeviceLimits, *, guidelines: Thresholds = OWN, families: Sequence[str] = ()
) -> bool:
    """Return whether `search_space` would keep any configuration, without enumerating all of them."""
    for family in families_for(problem, families):
        wanted, rules = family.guidelines(problem, limits).moved(guidelines), rules_of(family)
        in_tables = family.kept_in_tables(problem, limits, wanted, rules)
        if in_tables is None:
            found = next(_kept(family, problem, limits, wanted, rules, Counter()), None) is not None
        else:
            found = len(in_tables[0]) > 0
        if found:
            return True
    return False


def families_for(problem: Problem, named: Sequence[str]) -> list[Family[Any]]:
    """Return the named families that support the problem.

    Without names, return all families that support it, except the families that a search uses only if the user names
    them.
    """
    return [
        family
        for name, family in FAMILIES.items()
        if (name in named if named else not family.only_by_name) and family.supports(problem)
    ]


def pruned(
    family: Family[Any], problem: Problem, limits: DeviceLimits, guidelines: Guidelines, rules: Sequence[Rule]
) -> tuple[Sequence[Candidate], Counter[str]]:
    """Return the family's candidates that break no rule, and the number of configurations dropped by each rule."""
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
    """Yield the candidates that break no rule. `dropped` receives, for each rule, the number of dropped candidates.

    Leading rules that read only a few tunables are evaluated once for each combination of these tunables' values.
    These rules drop most configurations before a `Candidate` is created for them.
    """

    @cache  # rules that read the same tunables share configurations
    def candidate(config: KernelConfig) -> Candidate:
        return Candidate(family, config, problem, limits, guidelines)

    partial_rules = list(
        takewhile(lambda one: one[1] is not None, ((rule, looked_at(rule, family)) for rule in rules))
    )
    others = rules[len(partial_rules) :]
    for grid in family.every_grid:
        mask = grid.every
        for rule, tunables in partial_rules:
            keeps = grid.answers(tunables or (), partial(_keeps, rule, candidate), mask)
            dropped[rule.name] += int((mask & ~keeps).sum())
            mask = mask & keeps
        for config in grid.chosen(mask):
            one = candidate(family.specialized(config, problem))
            broken = next((rule for rule in others if not rule.keeps(one)), None)
            if broken is None:
                yield one
            else:
                dropped[broken.name] += 1


def looked_at(rule: Rule, family: Family[Any]) -> tuple[str, ...] | None:
    """Return the names of the family's tunables that the rule reads; None if the rule may read all of them."""
    if rule.of is None or RESOURCES not in rule.of:
        return rule.of
    if not family.beside_resources:
        return None
    own = (one.name for one in declared(family.config_type))
    return (*rule.of, *(name for name in own if name not in family.beside_resources))


def _keeps(rule: Rule, candidate: Callable[[KernelConfig], Candidate], config: KernelConfig) -> bool:
    return rule.keeps(candidate(config))
