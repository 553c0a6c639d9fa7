"""Random shapes for `benchmarks.unseen`: drawn log-uniformly, from a seed that a result file records."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product

from benchmarks.cells import Cell, Layout, Regime, op_of
from benchmarks.winner import room_bytes
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.shapes import LARGEST_DIMENSION
from tsm2_tune.tuner.verify.operands import needed_bytes

UNSEEN_REGIMES: tuple[Regime, ...] = ("R", "L", "T")
OWNERS = 2  # two processes allocate operands: the search's worker, and this one
MOST_DRAWS = 1000  # draws until a shape fits in memory and is new
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges from which extents are drawn, both ends included."""

    large: Range = (2_000, 30_000)  # m and k in R
    long: Range = (20_000, 20_000_000)  # m in L, k in T
    small: Range = (1, 64)  # all other extents

    @property
    def text(self) -> str:
        """The ranges that differ from the defaults, as command line options."""
        own, usual = asdict(self), asdict(Ranges())
        return "".join(f" --{name} {spelt(own[name])}" for name in own if own[name] != usual[name])


def spelt(extents: Range) -> str:
    """Return a range as text, such as 2000:30000."""
    return f"{extents[0]}:{extents[1]}"


def range_of(name: str, text: str) -> Range:
    """Parse a range such as 2000:30000. Raise InputError for another text."""
    found = re.fullmatch(r"([1-9]\d{0,9}):([1-9]\d{0,9})", text)
    if found is None or not int(found[1]) <= int(found[2]) <= LARGEST_DIMENSION:
        raise InputError(f"--{name} {text!r}: expected two extents such as 2000:30000, the smaller one first")
    return int(found[1]), int(found[2])


def drawn(
    regimes: Sequence[Regime],
    layouts: Sequence[Layout],
    dtype_names: Sequence[str],
    *,
    each: int,
    ranges: Ranges,
    seed: int,
    limits: DeviceLimits,
) -> tuple[Cell, ...]:
    """Return `each` different shapes for every regime, element type and layout. All fit in the device's memory.

    The shapes of a regime, element type and layout do not depend on the rest of the selection. Raise InputError if
    the ranges contain too few shapes.
    """
    room = room_bytes(limits)
    found = []
    for regime, dtype_name, layout in product(regimes, dtype_names, layouts):
        op = op_of(regime, layout, dtype_name)
        numbers = random.Random(f"{seed} {regime} {dtype_name} {layout}")
        draws = (Problem(*_shape(regime, ranges, numbers), dtype_name, op) for _ in range(MOST_DRAWS * each))
        fitting = (problem for problem in draws if OWNERS * needed_bytes(problem) <= room)
        problems = list(islice(_each_once(fitting), each))
        if len(problems) < each:
            raise InputError(
                f"the ranges have no {each} shapes of {regime} in {dtype_name} that fit {limits.name}: draw fewer,"
                " or from wider or smaller ranges"
            )
        found += [Cell(regime, layout, problem) for problem in problems]
    return tuple(found)


def _each_once(problems: Iterable[Problem]) -> Iterator[Problem]:
    seen = set[Problem]()
    for problem in problems:
        if problem not in seen:
            seen.add(problem)
            yield problem


def _shape(regime: Regime, ranges: Ranges, numbers: random.Random) -> tuple[int, int, int]:
    """Return a random (m, n, k) of a product in the regime."""
    if regime == "R":
        m, k = (_log_uniform(ranges.large, numbers) for _ in "mk")
        return m, _log_uniform(ranges.small, numbers), k
    long, first, second = (_log_uniform(extents, numbers) for extents in (ranges.long, ranges.small, ranges.small))
    if regime == "G":
        return first, first, long
    return (long, first, second) if regime == "L" else (first, second, long)


def _log_uniform(extents: Range, numbers: random.Random) -> int:
    """Return a random integer whose logarithm is uniform between those of both ends."""
    low, high = extents
    return round(math.exp(numbers.uniform(math.log(low), math.log(high))))
