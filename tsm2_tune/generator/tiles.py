"""Shared code of kernel families in which each block computes a tile of a small C, and blocks divide k."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tsm2_tune.generator.config import Traffic
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule

LARGEST_THIN = 128  # the largest m and n of a small C, which is the result of long sums
SKINNY = 64  # C is skinny if it has at most this many rows or columns
LARGEST_GRAM_TILE = 64  # most rows and columns of a tile in kernels that compute half of a Gram matrix


def covering(options: tuple[int, ...], extent: int) -> int:
    """Return the smallest option that is at least the extent, or else the largest option."""
    return next((option for option in options if option >= extent), options[-1])


def thread_tiles(options: tuple[int, ...], of_thread: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int, int]]:
    """Return (block_m, block_n, rows, columns) for each combination of a block's tile with a thread's tile.

    A thread's tile that exceeds the block's tile is reduced to it. Each combination is returned once.
    """
    every = product(options, options, of_thread)
    return sorted({(m, n, min(m, rows), min(n, columns)) for m, n, (rows, columns) in every})


def is_general(problem: Problem) -> bool:
    """Return whether C is neither skinny (m or n up to SKINNY) nor small (m and n up to LARGEST_THIN)."""
    return min(problem.m, problem.n) > SKINNY and max(problem.m, problem.n) > LARGEST_THIN


def tile_rules(
    options: tuple[int, ...],
    *,
    columns: tuple[int, ...] = (),
    covered: Callable[[Candidate], int] | int | None = None,
) -> tuple[Rule, ...]:
    """Return the rules for the tunables `block_m` and `block_n`, the rows and columns of a block's tile.

    `options` contains the possible rows, and the possible columns unless `columns` is given. If C has at most
    `covered` rows and columns, one tile must cover it. The default of `covered` is the largest option.
    """
    most = options[-1] if covered is None else covered

    def covers(candidate: Candidate) -> bool:
        problem, least = candidate.problem, most(candidate) if callable(most) else most
        rows, across = tunable(candidate, "block_m"), tunable(candidate, "block_n")
        return rows >= min(problem.m, least) and across >= min(problem.n, least)

    return (
        covering_rule(
            "tile-rows-within-m",
            "a tile of more rows than C has computes rows that nobody asked for",
            tunable="block_m",
            options=options,
            extent=lambda problem: problem.m,
        ),
        covering_rule(
            "tile-columns-within-n",
            "a tile of more columns than C has computes columns that nobody asked for",
            tunable="block_n",
            options=columns or options,
            extent=lambda problem: problem.n,
        ),
        Rule(
            "tile-covers-result",
            "shape",
            "every further tile of C reads all of A or B once more",
            covers,
            of=("block_m", "block_n"),
        ),
    )


def tile_traffic(problem: Problem, *, block_m: int, block_n: int) -> Traffic:
    """Return the bytes read and written: A once for each column of tiles, B once for each row of tiles, C once.

    Partial sums of splits are neglected. In a Gram matrix, B's elements are in the L2 cache, since they are A's.
    """
    down, across = -(-problem.m // block_m), -(-problem.n // block_n)
    elements = problem.k * (problem.m * across + (0 if problem.is_gram else problem.n * down))
    return Traffic(elements * problem.dtype.element_bytes, problem.written_bytes)


def mirrored(problem: Problem) -> str:
    """Return the CUDA expression for element (j, i) of a Gram matrix. Its variable `value` is element (i, j)."""
    first, second = problem.conjugated
    return "conjugate(value)" if first != second else "value"
