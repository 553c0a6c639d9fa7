"""The problems of a pack: an endless sequence that covers kinds, element types, layouts and sizes evenly.

A pack is a set of tuned kernels for a GPU model. Its kernels also compute shapes between those that were tuned, so
the tuned shapes should be spread over all sizes. The sequence may be cut anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from tsm2_tune.generator.dtypes import FMA_DTYPES, dtype_named
from tsm2_tune.generator.problem import Problem

Range = tuple[int, int]  # the least and the largest extent
Part = tuple[str, str]  # of a pack: a name in KINDS, an element type

WIDE = (65, 1024)  # columns
LARGE = (1000, 30_000)  # m and k of a large matrix times a skinny one
LONG = (10_000, 20_000_000)
SMALL = (1, 64)  # narrow extents
FEWEST_PRODUCTS = 2  # of a batch
LARGEST_SMALL = 32  # extents of small products, which come in batches
LONG_RATIO = 100  # k of a product of kind T is at least so many times m and n
ROUND = 16  # every other shape has multiples of this, or powers of two below it, limited to the ranges
# The roots of x^4 = x + 1 and x^5 = x + 1. Multiples of their powers, modulo 1, fill 3 and 4 dimensions evenly:
# Martin Roberts, "The unreasonable effectiveness of quasirandom sequences" (2018).
ROOTS = {3: 1.2207440846057596, 4: 1.1673039782614187}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product: ranges of its extents, and its ops for column-major and for row-major matrices."""

    m: Range
    n: Range
    k: Range
    ops: tuple[str, str]
    batch: Range | None = None  # None: single products
    complex_ops: tuple[str, str] | None = None  # if they differ
    is_gram: bool = False  # n is m


KINDS: dict[str, Kind] = {
    "R": Kind(LARGE, (2, 64), LARGE, ("nn", "ttt")),
    "L": Kind(LONG, SMALL, SMALL, ("nn", "ttt")),
    "T": Kind(SMALL, SMALL, LONG, ("tn", "ntt"), complex_ops=("cn", "jtt")),
    "gram": Kind(SMALL, SMALL, LONG, ("tx", "nxt"), complex_ops=("cx", "jxt"), is_gram=True),
    "vector": Kind(LARGE, (1, 1), LARGE, ("nn", "ttt")),
    "wide": Kind(LARGE, WIDE, LARGE, ("nn", "ttt")),
    "small": Kind((1, LARGEST_SMALL), (1, LARGEST_SMALL), (1, LARGEST_SMALL), ("nn", "ttt"), batch=(1000, 4_000_000)),
    "stackR": Kind((1000, 30_000), SMALL, (4, 900), ("nn", "ttt"), batch=(4, 4000)),
    "stackT": Kind(SMALL, SMALL, (100, 60_000), ("tn", "ntt"), batch=(4, 16_000), complex_ops=("cn", "jtt")),
}
DTYPES = ("f32", "f64", "c64", "c128", "bf16", "f16")


def pack_problems(kinds: Sequence[str], dtypes: Sequence[str], most_bytes: int) -> Iterator[Problem]:
    """Yield different problems without end: one of each kind, element type and layout, then the next one of each.

    `kinds` are names in KINDS. Gram matrices have only the types of BLAS. If the matrices of a problem have more than
    `most_bytes` together, the batch, or else the larger of m and k, is halved until they fit.
    """
    yielded = set[Problem]()
    for number in count():
        for name in kinds:
            for dtype_name in dtypes:
                kind = KINDS[name]
                if kind.is_gram and dtype_name not in FMA_DTYPES:
                    continue
                ops = kind.complex_ops if kind.complex_ops and dtype_named(dtype_name).is_complex else kind.ops
                for op in ops:
                    m, n, k, batch = shape_of(kind, number)
                    problem = _fitting(Problem(m, n, k, dtype_name, op, batch), most_bytes)
                    if problem not in yielded:
                        yielded.add(problem)
                        yield problem


def shape_of(kind: Kind, number: int) -> tuple[int, int, int, int]:
    """Return (m, n, k, batch) of the kind's problem with this number, from 0 on."""
    ranges = (kind.m, kind.n, kind.k, *((kind.batch,) if kind.batch else ()))
    root = ROOTS[len(ranges)]
    is_round = (number // 2 if kind.batch else number) % 2 == 0  # every second batch of the sequence is a large one
    m, n, k, *batch = (
        _extent(least, most, (0.5 + (number + 1) / root**axis) % 1, is_round=is_round)
        for axis, (least, most) in enumerate(ranges, 1)
    )
    return m, m if kind.is_gram else n, k, *(batch or (1,))


def _extent(least: int, most: int, share: float, *, is_round: bool) -> int:
    """Return the extent at this share, from 0 to 1, of the range's logarithms."""
    extent = round(math.exp(math.log(least) + share * math.log(most / least)))
    if is_round:
        extent = round(extent / ROUND) * ROUND if extent > ROUND else 2 ** round(math.log2(extent))
    return min(max(extent, least), most)


def _fitting(problem: Problem, most_bytes: int) -> Problem:
    """Return the problem, smaller if its matrices have more than `most_bytes` together.

    Then the batch is halved, or of a single product the larger of m and k.
    """
    while problem.least_bytes > most_bytes:
        m, k, batch = problem.m, problem.k, problem.batch
        if batch > FEWEST_PRODUCTS:
            problem = replace(problem, batch=max(batch // 2, FEWEST_PRODUCTS))
        elif max(m, k) > 1:
            problem = replace(problem, m=m // 2) if m >= k else replace(problem, k=k // 2)
        else:
            break
    return problem


def part_of(problem: Problem) -> Part:
    """Return the part that the problem belongs to."""
    return kind_of(problem), problem.dtype_name


def kind_of(problem: Problem) -> str:
    """Return the kind, a name in KINDS, that the problem belongs to."""
    narrow = min(problem.m, problem.n)
    if problem.is_batched:
        wide = max(problem.m, problem.n)
        return "small" if max(wide, problem.k) <= LARGEST_SMALL else "stackT" if problem.k > wide else "stackR"
    if problem.is_gram:
        return "gram"
    if problem.k >= LONG_RATIO * max(problem.m, problem.n):
        return "T"
    if narrow == 1 and problem.k > SMALL[1]:
        return "vector"
    if problem.k <= SMALL[1]:
        return "L"
    return "R" if narrow <= SMALL[1] else "wide"
