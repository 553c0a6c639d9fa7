"""The tunables of kernels of small products, and how many products a group has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.family import vector_elements
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import MinBlocks, ThreadColumns, ThreadRows, Threads, Tunable
from tsm2_tune.generator.tiling import VECTOR_BYTES

OwnExtent = Annotated[
    int,
    Tunable(
        "extent of the tuned shape, for which the kernel has code of its own; 0: none, so all code is general",
        word="extents",
        is_constant=False,
    ),
]


@dataclass(frozen=True, slots=True)
class SmallConfig(KernelConfig):
    family: ClassVar[str] = "small"

    threads: Threads
    kilobytes: Annotated[int, Tunable("shared memory of a block, in KiB", is_constant=False)]
    rows: ThreadRows
    columns: ThreadColumns
    stages: Annotated[int, Tunable("groups of products whose operands are in shared memory")]
    padding: Annotated[
        int,
        Tunable(
            "1: in shared memory a vector of padding follows each line and matrix of A and B that is an even number "
            "of vectors; 0: no padding",
            is_constant=False,
        ),
    ]
    direct: Annotated[
        int, Tunable("1: threads write their sums to C; 0: the sums pass through shared memory", is_constant=False)
    ]
    min_blocks: MinBlocks
    blocks: Annotated[int, Tunable("blocks that share the batch", is_launch=True)]
    own_m: OwnExtent = 0
    own_n: OwnExtent = 0
    own_k: OwnExtent = 0


def line_lengths(problem: Problem) -> tuple[int, ...]:
    """Return the number of elements of a line of A, of B and of C."""
    return tuple(getattr(problem, along) for along in problem.contiguous)


def pitch(elements: int, problem: Problem) -> int:
    """Return the elements from a padded line or matrix to the next in shared memory."""
    width = vector_elements(problem)
    return elements + (width if elements % (2 * width) == 0 else 0)


def product_bytes(config: SmallConfig, problem: Problem) -> int:
    """Return the bytes of shared memory for one product: operands in every stage, and sums."""
    m, n, k, operands = problem.m, problem.n, problem.k, 0
    for line, elements in zip(line_lengths(problem), (m * k,) if problem.is_gram else (m * k, k * n), strict=False):
        operands += pitch(elements // line * pitch(line, problem), problem) if config.padding else elements
    sums = 0 if config.direct else m * n * problem.dtype.sum.element_bytes
    return config.stages * operands * problem.dtype.element_bytes + sums


def products_of_group(config: SmallConfig, problem: Problem) -> int:
    """Return the largest group that shared memory holds, in products, rounded to whole vectors if possible."""
    rounding_bytes = VECTOR_BYTES * (2 * config.stages + 1)
    most = max(config.kilobytes * 1024 - rounding_bytes, 0) // product_bytes(config, problem)
    width = vector_elements(problem)
    return most if most < width else most // width * width


def stored_bytes(config: SmallConfig, problem: Problem) -> int:
    """Return the bytes of C that a thread with its tile in registers stores at once: a vector, or an element."""
    extent, count = (problem.n, config.columns) if problem.contiguous[2] == "n" else (problem.m, config.rows)
    elements = vector_elements(problem)
    while extent % elements or count % elements:
        elements //= 2
    return elements * problem.dtype.element_bytes


def tile_counts(tile: tuple[int, int], problem: Problem) -> tuple[int, int]:
    """Return how many tiles of (rows, columns) cover C down and across."""
    return -(-problem.m // tile[0]), -(-problem.n // tile[1])


def tiles_of_group(config: SmallConfig, problem: Problem) -> int:
    """Return the number of tiles of a group of products."""
    return products_of_group(config, problem) * math.prod(tile_counts((config.rows, config.columns), problem))
