"""First choices of a search: configurations that were the fastest for similar problems.

Configurations that were measured for the problem itself come first. The others are ordered by a product: the
predicted time for the new problem, the ratio of measured to predicted time for the similar problem, a penalty for the
distances between the two problems and between the two kernels, and a penalty for each further launch of one kernel.
Ratios below 1 count as 1: the fastest of many kernels is partly lucky. Times of another kind of GPU give
no ratio and no penalty for the distance of the problems. For some problems, a family proposes first choices by a
formula instead. Then the similar problems only correct the predicted times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from heapq import nsmallest
from math import exp
from typing import NamedTuple

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import has_f64_tensor_cores
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, Predictor
from tsm2_tune.generator.space.columnar import Rows, parts_of, places
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.nearest import Kernels, preferred
from tsm2_tune.generator.space.seed_table import Choice, Measured, distance, measured
from tsm2_tune.generator.space.space import SearchSpace

NEIGHBOURS = 24  # similar measured problems that are used
MOST_CHOICES = 32
MOST_DIVISIONS = 3  # launches of a kernel, with other splits or row tiles
UNCERTAIN = 0.2  # the penalty is exp(UNCERTAIN * distance)
LATER = 0.2  # penalty of each further variant of a kernel, as a share of the time: first choices should be varied
UNKNOWN = 2.0  # distance assumed for a proposal without a similar measurement
# Element type -> type whose measurements a GPU without f64 tensor cores uses instead.
WITHOUT_TENSOR_CORES = {"f64": "f32", "c128": "c64"}


def first_choices(
    space: SearchSpace, predict: Predictor, near: Iterable[Measured] | None = None
) -> tuple[KernelConfig, ...]:
    """Return the configurations of the space that a search should try first, best first.

    Configurations measured for the space's problem come first. `near` contains the measured problems to use; None
    means the measured problems in the package.
    """
    problem, limits = space.problem, space.limits
    nearest = _neighbours(space.families, problem, packaged(problem, limits) if near is None else near)
    seeds = [seed for seed in _seeds(space, predict, nearest) if seed.variants]
    firsts = [seed.variants[0] for seed in seeds]
    own_us, similar_us = np.split(predict([*firsts, *(seed.similar or seed.variants[0] for seed in seeds)]), 2)
    times: dict[KernelConfig, float] = {}
    for seed, us, predicted_us in zip(seeds, own_us.tolist(), similar_us.tolist(), strict=True):
        us *= seed.penalty * max(seed.measured_us / predicted_us, 1.0)  # 0: not measured, or it cannot be predicted
        for place, variant in enumerate(seed.variants):
            later_us = us * (1 + LATER * place)
            times[variant.config] = min(later_us, times.get(variant.config, later_us))
    measured_here = [choice.config for _, one, choice in nearest if one.problem == problem]
    kept = places(space.kept, frozenset(measured_here)) if measured_here else {}
    here = [config for config in measured_here if config in kept]
    return tuple(dict.fromkeys((*here, *sorted(times, key=times.__getitem__))))[:MOST_CHOICES]


class _Seed(NamedTuple):
    """Variants of a kernel for the new problem, and the measured kernel that corrects their predicted times."""

    variants: Sequence[Candidate]  # best first
    penalty: float  # factor on the predicted times
    similar: Candidate | None = None  # None: a proposal, or measured on another kind of GPU
    measured_us: float = 0.0  # of `similar`; 0 if there is none


def _seeds(
    space: SearchSpace, predict: Predictor, nearest: Iterable[tuple[float, Measured, Choice]]
) -> Iterator[_Seed]:
    """Yield a seed for each measured kernel in `nearest`, then one for each family that proposes configurations."""
    kept: dict[str, list[Candidate]] = {}
    for _, part in parts_of(space.kept):
        for candidate in () if isinstance(part, Rows) else part:
            kept.setdefault(candidate.config.family, []).append(candidate)

    @cache
    def kernels(name: str) -> Kernels | None:
        return Kernels(kept[name]) if name in kept else None

    @cache  # several measured problems have the same configuration
    def variants(config: KernelConfig) -> tuple[Sequence[Candidate], float]:
        """Return the variants of the nearest kernel in the space, best first, and the distance of this kernel."""
        config = family_named(config.family).specialized(config, space.problem)
        among = kernels(config.family)
        launches, away = among.nearest(config, predict) if among else ([], 0.0)
        return (preferred(launches, config)[:MOST_DIVISIONS] if launches else (), away)

    proposals = {name: family_named(name).proposals(space.problem, space.limits) for name in space.families}
    proposed = {name: _proposed(space, configs, variants) for name, configs in proposals.items() if configs}
    for away, one, choice in nearest:
        config = choice.config
        found, farther = (proposed[config.family], 0.0) if config.family in proposed else variants(config)
        if space.limits.compute_capability == one.limits.compute_capability:
            similar = Candidate(family_named(config.family), config, one.problem, one.limits, Guidelines())
            yield _Seed(found, exp(UNCERTAIN * (away + farther)), similar, choice.us)
        else:
            yield _Seed(found, exp(UNCERTAIN * farther))
    for found in proposed.values():
        yield _Seed(found, exp(UNCERTAIN * UNKNOWN))


def _proposed(
    space: SearchSpace,
    configs: Sequence[KernelConfig],
    variants: Callable[[KernelConfig], tuple[Sequence[Candidate], float]],
) -> Sequence[Candidate]:
    """Return the configurations that are in the space; if none is, the best variant of each."""
    found = places(space.kept, frozenset(configs))
    return [space.kept[found[one]] for one in configs if one in found] or [
        variant for one in configs for variant in variants(one)[0][:1]
    ]


def packaged(problem: Problem, limits: DeviceLimits, *, without: Problem | None = None) -> tuple[Measured, ...]:
    """Return the package's measured problems of this element type.

    Problems with the same shape and op as `without` are omitted.
    """
    dtype_name = problem.dtype_name
    if not has_f64_tensor_cores(limits, problem):
        dtype_name = WITHOUT_TENSOR_CORES.get(dtype_name, dtype_name)
    every = measured(dtype_name)
    return every if without is None else tuple(one for one in every if not _is_same(one.problem, without))


def _neighbours(
    families: Collection[str], problem: Problem, those: Iterable[Measured]
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
