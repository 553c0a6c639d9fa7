"""How a kernel is started for a shape that it was not tried at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Candidate, Guidelines
from tsm2_tune.generator.splitting import ROW_TILES, SPLITS, WIDE_SPLITS
from tsm2_tune.runtime.elements import SAME
from tsm2_tune.runtime.expecting import Card, Kernels, Work
from tsm2_tune.tuner.stored import CurrentTrial

OPTIONS: Mapping[str, tuple[int, ...]] = {  # of each tunable of a launch
    "splits": tuple(sorted({*SPLITS, *WIDE_SPLITS})),
    "row_tiles": (1, *ROW_TILES),
}


def configuration_for(
    tried: Mapping[Problem, CurrentTrial], problem: Problem, limits: DeviceLimits, card: Card
) -> KernelConfig | None:
    """The kernel's configuration for the problem; `tried` says which one was best for it where it was tried.

    Of the ways to start it that its family has, the one that breaks the fewest of the family's rules, and then is
    expected to take least, by what was measured at the nearest shape. None where it cannot compute the problem.
    """
    nearest = tried[min(tried, key=lambda one: (_distance(one, problem), one))]
    family = family_named(nearest.config.family)
    if not family.supports(problem):
        return None
    limit_rules = [rule for rule in family.rules if rule.kind == "limit"]  # the device's it has met elsewhere
    shape_rules = [rule for rule in family.rules if rule.kind == "shape"]
    able = [
        Candidate(family, config, problem, limits, Guidelines())
        for config in launches(nearest.config)
        if family.has(config, problem)
    ]
    fits = [candidate for candidate in able if all(rule.keeps(candidate) for rule in limit_rules)]
    broken = [sum(not rule.keeps(candidate) for rule in shape_rules) for candidate in fits]
    expected = _expected_us(nearest, fits, problem, card)
    ranked = sorted(zip(broken, expected, [candidate.config for candidate in fits], strict=True))
    return ranked[0][2] if ranked else None


def launches(config: KernelConfig) -> Iterator[KernelConfig]:
    """The configurations that start the same kernel."""
    own = config.tunables
    for values in product(*(sorted({int(own[name]), *OPTIONS[name]}) for name in config.launch_tunables)):
        launch = replace(config, **dict(zip(config.launch_tunables, values, strict=True)))
        if launch.kernel_text == config.kernel_text:
            yield launch


def _expected_us(tried: CurrentTrial, fits: list[Candidate], problem: Problem, card: Card) -> list[float]:
    """Of each way to start the kernel that was tried, at the problem."""
    if not fits:
        return []
    family, at, alike = family_named(tried.config.family), tried.problem, len(fits)
    resident = tried.compiled.blocks_per_sm if tried.compiled else 1
    assert tried.median_us is not None
    kernels = Kernels(
        [family.division(tried.config, at, max(resident, 1))] * alike,
        [family.launch(tried.config, at)] * alike,
        [_work(at, card)] * alike,
        [tried.median_us] * alike,
        card,
    )
    return kernels.us([candidate.launch for candidate in fits], _work(problem, card))


def _work(problem: Problem, card: Card) -> Work:
    """Where its lines begin makes no difference between ways to start a kernel."""
    shape = (problem.m, problem.n, problem.k)
    return Work.of(shape, problem.dtype_name, card, is_gram=problem.op[1:2] == SAME)


def _distance(one: Problem, other: Problem) -> float:
    """Of two shapes, by the logarithms of their ratios."""
    return math.hypot(*(math.log(a / b) for a, b in ((one.m, other.m), (one.n, other.n), (one.k, other.k))))
