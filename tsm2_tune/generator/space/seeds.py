"""First choices of a search: configurations that were the fastest for similar problems.

The first choices are ordered by predicted time. It is the product of three numbers: the model's time for the new
problem, the ratio of measured to modelled time for the similar problem, and a penalty for the distance between the
two problems. Some families propose first choices by a formula instead. Then the similar problems only correct the
predicted times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import nsmallest
from math import exp
from typing import Any

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import has_f64_tensor_cores
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.predict.expected_time import expected_us
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.rescale import adapted
from tsm2_tune.generator.space.rules import HARDWARE_RULES
from tsm2_tune.generator.space.seed_table import Choice, Measured, distance, measured, times_the_model
from tsm2_tune.generator.split_k import ONE_WAVE, in_one_wave

NEIGHBOURS = 24  # similar measured problems that are used
MOST_CHOICES = 32
MOST_DIVISIONS = 3  # variants of a kernel in splits of k or row tiles
UNCERTAIN = 0.2  # the penalty is exp(UNCERTAIN * distance)
LATER = 0.2  # penalty of each further variant of a kernel, as a share of the time: first choices should be varied
UNKNOWN = 2.0  # distance assumed for a proposal without a similar measurement
# Element type -> type whose measurements a GPU without f64 tensor cores uses instead.
WITHOUT_TENSOR_CORES = {"f64": "f32", "c128": "c64"}


def first_choices(
    families: Iterable[Family[Any]],
    problem: Problem,
    limits: DeviceLimits,
    near: Iterable[Measured] | None = None,
) -> tuple[KernelConfig, ...]:
    """Return the configurations that a search of these families should try first, best first.

    The configurations fulfil the rules of their families and of the hardware. Configurations measured for this
    problem come first. `near` contains the measured problems to use; None means the measured problems in the package.
    """
    supporting = {family.name: family for family in families if family.supports(problem)}
    own = {name: _proposed(family, problem, limits) for name, family in supporting.items() if family.proposes}
    times: dict[KernelConfig, float] = {}
    made: dict[KernelConfig, list[tuple[KernelConfig, float]]] = {}
    nearest = _neighbours(supporting, problem, packaged(problem, limits) if near is None else near)
    for away, one, choice in nearest:
        factor = 1.0
        if limits.compute_capability == one.limits.compute_capability:
            factor = times_the_model(one, choice) * exp(UNCERTAIN * away)
        config = choice.config
        if config.family not in own and config not in made:
            family = supporting[config.family]
            every = adapted(family, config, problem, limits)
            made[config] = _kept(family, every, problem, limits)[:MOST_DIVISIONS]
        _count(times, own.get(config.family) or made.get(config, []), factor)
    for proposed in own.values():
        _count(times, proposed, exp(UNCERTAIN * UNKNOWN))
    here = [choice.config for _, one, choice in nearest if one.problem == problem and choice.config in times]
    return tuple(dict.fromkeys((*here, *sorted(times, key=times.__getitem__))))[:MOST_CHOICES]


def packaged(problem: Problem, limits: DeviceLimits, *, without: Problem | None = None) -> tuple[Measured, ...]:
    """Return the package's measured problems of this element type.

    Problems with the same shape and op as `without` are omitted.
    """
    dtype_name = problem.dtype_name
    if not has_f64_tensor_cores(limits, problem):
        dtype_name = WITHOUT_TENSOR_CORES.get(dtype_name, dtype_name)
    every = measured(dtype_name)
    return every if without is None else tuple(one for one in every if not _is_same(one.problem, without))


def _proposed(family: Family[Any], problem: Problem, limits: DeviceLimits) -> list[tuple[KernelConfig, float]]:
    return _kept(family, family.proposals(problem, limits), problem, limits)


def _count(times: dict[KernelConfig, float], kept: Sequence[tuple[KernelConfig, float]], factor: float) -> None:
    """Update `times`, which contains the least predicted time of each configuration in microseconds.

    `kept` contains variants of a kernel with modelled times, best first. The predicted times of all variants are
    calculated from the modelled time of the first variant.
    """
    for place, (config, _) in enumerate(kept):
        us = kept[0][1] * factor * (1 + LATER * place)
        times[config] = min(us, times.get(config, us))


def _neighbours(
    families: dict[str, Family[Any]], problem: Problem, those: Iterable[Measured]
) -> list[tuple[float, Measured, Choice]]:
    """Return (distance, measured problem, choice) for the measured problems nearest to `problem`, nearest first.

    The choices of a measured problem are its fastest configurations. Choices of families other than `families` are
    omitted.
    """
    is_gram = problem.is_gram
    near = (
        (distance(problem, one.problem), place, one)
        for place, one in enumerate(those)
        if not one.families.isdisjoint(families) and one.problem.is_gram == is_gram
    )
    nearest = nsmallest(NEIGHBOURS, near)
    return [
        (away, one, choice) for away, _, one in nearest for choice in one.choices if choice.config.family in families
    ]


def _is_same(one: Problem, other: Problem) -> bool:
    """Return whether two problems have the same shape and op. Their element types may differ."""
    return (one.m, one.n, one.k, one.op) == (other.m, other.n, other.k, other.op)


def _kept(
    family: Family[Any], configs: Sequence[KernelConfig], problem: Problem, limits: DeviceLimits
) -> list[tuple[KernelConfig, float]]:
    """Return the configurations that fulfil all rules, each with the model's time in microseconds.

    If no configuration fulfils all rules, try all configurations again with so few splits that all blocks are
    resident on the device at once.
    """

    def kept(configs: Iterable[KernelConfig]) -> list[tuple[KernelConfig, float]]:
        times = ((config, _time_us(family, config, problem, limits)) for config in configs)
        return [(config, us) for config, us in times if us is not None]

    found = kept(configs)
    if found or ONE_WAVE not in family.rules:
        return found
    return kept(dict.fromkeys(in_one_wave(family, config, problem, limits) for config in configs))


@lru_cache(maxsize=1024)  # several measured problems have the same configuration
def _time_us(family: Family[Any], config: KernelConfig, problem: Problem, limits: DeviceLimits) -> float | None:
    """Return the model's time in microseconds; None if a rule of the family or of the hardware is not fulfilled."""
    candidate = Candidate(family, config, problem, limits, Guidelines())
    if all(rule.keeps(candidate) for rule in (*family.rules, *HARDWARE_RULES)):
        return float(expected_us(candidate))
    return None
