"""The common part of families whose blocks each compute a tile of a small C, with k divided among the blocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tsm2_tune.generator.config import Traffic
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule

LARGEST_THIN = 128  # of m and n: a C larger than that is no small result of a long sum
SKINNY = 64  # up to which a C of as many rows or columns is skinny
LARGEST_GRAM_TILE = 64  # rows and columns, of the kernels that compute half of a Gram matrix


def covering(options: tuple[int, ...], extent: int) -> int:
    """Return the smallest option that covers the extent; the largest one where none does."""
    return next((option for option in options if option >= extent), options[-1])


def thread_tiles(options: tuple[int, ...], of_thread: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int, int]]:
    """(block_m, block_n, rows, columns): tiles of a block with those of a thread, which is no larger; each once."""
    every = product(options, options, of_thread)
    return sorted({(m, n, min(m, rows), min(n, columns)) for m, n, (rows, columns) in every})


def is_general(problem: Problem) -> bool:
    """Return whether C is skinny neither way, nor a small result of a long sum."""
    return min(problem.m, problem.n) > SKINNY and max(problem.m, problem.n) > LARGEST_THIN


def tile_rules(
    options: tuple[int, ...],
    *,
    columns: tuple[int, ...] = (),
    covered: Callable[[Candidate], int] | int | None = None,
) -> tuple[Rule, ...]:
    """Return the rules for `options` of a tile's rows, and of its columns unless these have their own options.

    A C of up to `covered` (the largest) rows and columns has one tile.
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
    """Return the bytes moved: A once for each column of tiles, B once for each row of them. The sums of the splits
    are few.

    Where B is A's matrix, blocks beside the diagonal read what others read at the same time.
    """
    down, across = -(-problem.m // block_m), -(-problem.n // block_n)
    elements = problem.k * (problem.m * across + (0 if problem.is_gram else problem.n * down))
    return Traffic(elements * problem.dtype.element_bytes, problem.written_bytes)


def mirrored(problem: Problem) -> str:
    """Return the CUDA expression of the element (j, i) of a Gram matrix, if `value` is the element (i, j)."""
    first, second = problem.conjugated
    return "conjugate(value)" if first != second else "value"
