"""Shared code of kernel families for a small C: each thread block computes one tile of C for one slice of k."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule

LARGEST_THIN = 128  # C is small if it has at most this many rows and columns
SKINNY = 64  # C is skinny if it has at most this many rows or columns
LARGEST_GRAM_TILE = 64  # most rows and columns of a tile in kernels that compute one triangle of a Gram matrix


def covering(options: tuple[int, ...], extent: int) -> int:
    """Return the smallest option that is at least `extent`. If there is none, return the largest option."""
    return next((option for option in options if option >= extent), options[-1])


def thread_tiles(options: tuple[int, ...], of_thread: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int, int]]:
    """Return (block_m, block_n, rows, columns) for each combination of a block's tile with a thread's tile.

    `options` are the values of block_m and of block_n. `of_thread` are pairs (rows, columns). If a thread's tile
    exceeds the block's tile, it is reduced to the block's tile. The result has no duplicates.
    """
    every = product(options, options, of_thread)
    return sorted({(m, n, min(m, rows), min(n, columns)) for m, n, (rows, columns) in every})


def is_general(problem: Problem) -> bool:
    """Return whether C is neither skinny (m or n at most SKINNY) nor small (m and n at most LARGEST_THIN)."""
    return min(problem.m, problem.n) > SKINNY and max(problem.m, problem.n) > LARGEST_THIN


def tile_rules(
    options: tuple[int, ...],
    *,
    columns: tuple[int, ...] = (),
    covered: Callable[[Candidate], int] | int | None = None,
) -> tuple[Rule, ...]:
    """Return rules that drop unsuitable values of `block_m` and `block_n`, the rows and columns of a block's tile.

    `options` contains the values of block_m, and `columns` those of block_n. `columns` defaults to `options`. A tile
    must have at least min(m, covered) rows and min(n, covered) columns. So a tile must cover an extent of C that is
    at most `covered`. `covered` is a number or a function of the candidate, and defaults to the largest option.
    """
    most = options[-1] if covered is None else covered

    def covers(candidate: Candidate) -> bool:
        problem, least = candidate.problem, most(candidate) if callable(most) else most
        rows, across = tunable(candidate, "block_m"), tunable(candidate, "block_n")
        return rows >= min(problem.m, least) and across >= min(problem.n, least)

    return (
        covering_rule("block_m", "m", options),
        covering_rule("block_n", "n", columns or options),
        Rule(
            "tile-covers-result",
            "shape",
            "each further tile of C reads A or B again",
            covers,
            of=("block_m", "block_n"),
        ),
    )


def mirrored(problem: Problem) -> str:
    """Return the CUDA expression for element (j, i) of a Gram matrix.

    In the expression, the variable `value` is element (i, j).
    """
    first, second = problem.conjugated
    return "conjugate(value)" if first != second else "value"
