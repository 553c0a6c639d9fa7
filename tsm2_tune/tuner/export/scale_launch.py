"""Choice of a kernel's launch dimensions for a shape at which the kernel was not tried."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.split_k import ROW_TILES, SPLITS, WIDE_SPLITS

OPTIONS: Mapping[str, tuple[int, ...]] = {  # values of launch tunables that several families share
    "splits": tuple(sorted({*SPLITS, *WIDE_SPLITS})),
    "row_tiles": (1, *ROW_TILES),
}


def configuration_for(
    known: Mapping[Problem, KernelConfig], problem: Problem, limits: DeviceLimits, blocks: float | None = None
) -> KernelConfig | None:
    """Return the kernel's configuration with a launch for the problem; None if the kernel cannot compute the problem.

    `known` contains the kernel's best configurations for other problems. Among the possible launches, those that
    break the fewest rules of the kernel family are preferred. Among these, the launch whose number of thread blocks
    is nearest to `blocks` is chosen. The default of `blocks` is the number of blocks at the nearest known shape.
    """
    nearest = min(known, key=lambda one: (distance(one, problem), one))
    config = known[nearest]
    family = family_named(config.family)
    if not family.supports(problem):
        return None
    wanted = blocks or family.launch(config, nearest).blocks(nearest.m, nearest.n)
    limit_rules = [rule for rule in family.rules if rule.kind == "limit"]  # it met the device's limits elsewhere
    shape_rules = [rule for rule in family.rules if rule.kind == "shape"]

    def rank(candidate: Candidate) -> tuple[int, float, str]:
        own = candidate.launch.blocks(problem.m, problem.n)
        broken = sum(not rule.keeps(candidate) for rule in shape_rules)
        return broken, abs(math.log(own / wanted)), candidate.config.text

    able = (
        Candidate(family, launch, problem, limits, Guidelines())
        for launch in launches(config)
        if family.has(launch, problem)
    )
    fits = [candidate for candidate in able if all(rule.keeps(candidate) for rule in limit_rules)]
    return min(fits, key=rank).config if fits else None


@cache
def launches(config: KernelConfig) -> tuple[KernelConfig, ...]:
    """Return the configurations that share this configuration's kernel.

    There is one for each combination of values of the launch tunables that leaves the CUDA text unchanged.
    """
    names = config.launch_tunables()
    options = ({int(config.tunables[name]), *_options(config.family, name)} for name in names)
    every = (replace(config, **dict(zip(names, values, strict=True))) for values in product(*map(sorted, options)))
    return tuple(launch for launch in every if launch.kernel_text == config.kernel_text)


@cache
def _options(family: str, name: str) -> tuple[int, ...]:
    """Return the values of a launch tunable: OPTIONS if it is in OPTIONS, else all values in the family's space."""
    if name in OPTIONS:
        return OPTIONS[name]
    return tuple(sorted({int(config.tunables[name]) for config in family_named(family).configurations()}))


def distance(one: Problem, other: Problem) -> float:
    """Return the distance of two problems.

    It is the Euclidean norm of log(m1/m2), log(n1/n2), log(k1/k2) and the same of the numbers of products.
    """
    pairs = ((one.m, other.m), (one.n, other.n), (one.k, other.k), (one.batch, other.batch))
    return math.hypot(*(math.log(a / b) for a, b in pairs))
