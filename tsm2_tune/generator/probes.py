"""Small problems on which a kernel is verified, so that it is right for every shape and not for one.

Three kinds: at the edges of a configuration, which its family names; with every remainder of every extent; and with
an extent past what 16 bits count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd

from tsm2_tune.generator.config import KernelConfig, Periods
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem

MOST_REMAINDERS = 1024  # of one extent: of longer periods so many, evenly
PAST_16_BITS = 2**16
GOLDEN = 0.6180339887  # of a period, from one remainder to the next: the first few are spread evenly already
TURNS_DOWN, TURNS_ACROSS, TURNS_ALONG_K = (0, 1, 2), (1, 0), (1, 0, 4, 2)  # whole periods beside the remainder
FEW, FEW_MORE = 5, 7  # of the other extents where one is long
LONGEST = 2**23  # of k: A and B have 1.3 GB then, of the largest type


def edge_problems(config: KernelConfig, problem: Problem) -> tuple[Problem, ...]:
    """Small problems that meet the edges of this configuration.

    For a Gram matrix, which is square, both extents in turn.
    """
    shapes = family_named(config.family).probe_shapes(config, problem)
    if problem.is_gram:
        shapes = tuple(dict.fromkeys((size, size, k) for m, n, k in shapes for size in (m, n)))
    return _of_shapes(problem, shapes)


def remainder_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Small problems that have every remainder of m, n and k by the periods of this configuration.

    The first have one extent that is not whole, and others that are. All together multiply at most `most_products`,
    in whole tiles: then they are the first of so many, spread evenly.
    """
    periods = family_named(config.family).periods(config, problem)
    steps = Periods(*(_step(period) for period in (periods.m, periods.n, periods.k)))
    shapes = _one_past_whole(periods, problem)
    products = sum(_products(shape, periods) for shape in shapes)
    for number in range(min(max(periods.m, periods.n, periods.k), MOST_REMAINDERS)):
        m = _extent(number * steps.m, periods.m, TURNS_DOWN[number % len(TURNS_DOWN)])
        n = _extent(number * steps.n, periods.n, TURNS_ACROSS[number % len(TURNS_ACROSS)])
        k = _extent(number * steps.k, periods.k, TURNS_ALONG_K[number % len(TURNS_ALONG_K)])
        shape = (m, m, k) if problem.is_gram else (m, n, k)
        products += _products(shape, periods)
        if products > most_products:
            break
        shapes.append(shape)
    return _of_shapes(problem, dict.fromkeys(shapes))


def _one_past_whole(periods: Periods, problem: Problem) -> list[tuple[int, int, int]]:
    m, n, k = periods.m, periods.n, 2 * periods.k
    if problem.is_gram:
        return [(m, m, k), (m + 1, m + 1, k), (m, m, k + 1)]
    return [(m, n, k), (m + 1, n, k), (m, n + 1, k), (m, n, k + 1)]


def long_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Problems of which one extent has more than 16 bits, or one split's k, each of at most `most_products` in whole
    tiles."""
    periods = family_named(config.family).periods(config, problem)
    long_m, long_n, long_k = (PAST_16_BITS + 2 * period + 1 for period in (periods.m, periods.n, periods.k))
    splits = family_named(config.family).launch(config, problem).splits
    shapes = [(FEW, FEW, k) for k in (long_k, splits * long_k) if k <= LONGEST]
    if not problem.is_gram:  # of which C would be too large
        shapes += [(long_m, FEW, FEW_MORE), (FEW, long_n, FEW_MORE)]
    fitting = [shape for shape in dict.fromkeys(shapes) if _products(shape, periods) <= most_products]
    return _of_shapes(problem, fitting)


def _of_shapes(problem: Problem, shapes: Iterable[tuple[int, int, int]]) -> tuple[Problem, ...]:
    return tuple(replace(problem, m=m, n=n, k=k) for m, n, k in shapes)


def _step(period: int) -> int:
    """From one remainder to the next: prime to the period, so that all of them come."""
    step = max(round(GOLDEN * period), 1)
    while gcd(step, period) != 1:
        step += 1
    return step


def _extent(number: int, period: int, turns: int) -> int:
    """Of so many whole periods and a remainder; 1 at the least."""
    return number % period + turns * period or period


def _products(shape: tuple[int, int, int], periods: Periods) -> float:
    """That a kernel computes which only has whole tiles."""
    m, n, k = shape
    return float(-(-m // periods.m) * periods.m) * (-(-n // periods.n) * periods.n) * (-(-k // periods.k) * periods.k)
