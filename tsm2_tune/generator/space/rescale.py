"""Adapt a measured configuration to another shape and device: reduce its tiles and change its number of splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.families.staged.kernel import FullKernel, filling
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.split_k import (
    LEAST_SHARE,
    ROW_TILES,
    SMALL_K,
    splits_of_few_chunks,
    wide_splits,
    with_splits,
)
from tsm2_tune.generator.tiles import LARGEST_THIN

MOST_BLOCKS = 4  # the most blocks per multiprocessor in a number of splits
MEASURED_SMS = 132  # multiprocessors of the measured cards
HALF = Fraction(1, 2)


def adapted(family: Family[Any], config: KernelConfig, problem: Problem, limits: DeviceLimits) -> list[KernelConfig]:
    """Return variants of the configuration for the problem, best first.

    A tile that has more rows or columns than m or n requires is reduced. The variants differ in splits of k or in row
    tiles per block. The result is empty if the family has no kernel with the reduced tile.
    """
    config = family.specialized(config, problem)
    useful = (rule.covering for rule in family.rules if rule.covering is not None)
    largest = {one.tunable: one.largest_useful(problem) for one in useful}
    smaller = {name: most for name, most in largest.items() if getattr(config, name) > most}
    cut: KernelConfig | None = config
    if smaller:
        cut = _in_the_space(family, config, replace(config, **smaller), replace(problem, m=1, n=1, k=1))
    return [] if cut is None else list(dict.fromkeys(divided(family, cut, problem, limits)))


@lru_cache(maxsize=4096)  # the result is the same for problems of all shapes
def _in_the_space(
    family: Family[Any], config: KernelConfig, cut: KernelConfig, problem: Problem
) -> KernelConfig | None:
    """Return `cut`, or a smaller configuration that is in the family's space; None if there is none.

    In a smaller configuration, tunables of the tile that `cut` has not changed are reduced too. They are multiplied
    by the ratio by which `cut` reduced a tunable, or halved.
    """
    before, after = config.tunables, cut.tunables
    ratios = [Fraction(int(after[name]), int(before[name])) for name in after if after[name] != before[name]]
    others = [name for name in reversed(after) if after[name] == before[name] and isinstance(after[name], int)]
    return next((one for one in _smaller(cut, ratios, others) if family.has(one, problem)), None)


def _smaller(cut: KernelConfig, ratios: Sequence[Fraction], names: Sequence[str]) -> Iterator[KernelConfig]:
    """Yield `cut`, then variants in which tunables in `names` are multiplied by one of the ratios, or halved."""
    found = [cut]
    yield cut
    for ratio in ratios:
        for one, factor, name in product(tuple(found), dict.fromkeys((ratio, HALF)), names):
            value, remainder = divmod(getattr(one, name) * factor.numerator, factor.denominator)
            if value and not remainder:
                found.append(replace(one, **{name: value}))
                yield found[-1]


def divided(family: Family[Any], config: Any, problem: Problem, limits: DeviceLimits) -> Sequence[KernelConfig]:
    """Return variants of the configuration with other numbers of splits or row tiles, best first."""
    if "row_tiles" in config.launch_tunables():
        short = problem.k < 2 * LEAST_SHARE
        if "splits" in config.launch_tunables() and config.row_tiles == 1 and not short:
            return with_splits(family, [replace(config, splits=1)], problem, limits)
        fewer = (tiles for tiles in (*reversed(ROW_TILES), 1) if tiles < config.row_tiles)
        return [config, *(replace(config, row_tiles=tiles) for tiles in fewer)]
    if "splits" not in config.launch_tunables():
        return [config]
    blocks = min(config.splits // MEASURED_SMS, MOST_BLOCKS)
    wide = [replace(config, splits=wide_splits(limits, count)) for count in range(blocks, 0, -1)] or [config]
    if isinstance(family, FullKernel):
        return sorted(filling(wide, problem, limits), key=lambda one: not family.has_whole_tiles(one, problem))
    if problem.k <= SMALL_K and max(problem.m, problem.n) <= LARGEST_THIN:
        block_k, stages = family.periods(config, problem).k, int(getattr(config, "stages", 1))
        few = splits_of_few_chunks(problem.k, block_k=block_k, stages=stages, limits=limits)
        return [replace(config, splits=splits) for splits in few]
    return wide
