"""Both operands through shared memory, f32 on the f64 tensor cores: staged, and read as fragments of doubles.

Hopper's f64 tensor cores do as many operations a second as its multiply-adds in f32, and one of their instructions
does 1024 multiply-adds where one of those does 32. So there is time to load and to convert: a number of A once for
each warp beside it on the tile, one of B once for each warp above. Products are exact; a block's sums are rounded to
f32 at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, ClassVar

from tsm2_tune.generator.families.staged_mma import (
    COLUMNS,
    DEPTH,
    OCTET_COLUMNS,
    STRIP_ROWS,
    WARP_THREADS,
    WIDE,
    StagedMma,
    StagedMmaConfig,
)
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.split_k import WIDE_SPLITS
from tsm2_tune.generator.staging import BLOCKS_FOR_ALL, WIDE_TILES_FOR_WIDE_RESULTS, staging_rules
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.tiles import LARGEST_THIN, is_general

ROWS, COVERED = (16, 32, 64, 128, 256), 64  # of C, of a block; up to COVERED one tile has all
# Rows and columns of C, of a block, strips and octets of a warp. A lane has rows of two strips: their number is even.
TILES = (
    (32, 32, 2, 4), (64, 32, 4, 4), (32, 64, 2, 8), (64, 64, 2, 4), (64, 64, 2, 8), (64, 64, 4, 4), (64, 16, 2, 2),
    (128, 16, 2, 2), (64, 32, 2, 2), (128, 32, 2, 4), (256, 32, 4, 4), (128, 64, 2, 8), (128, 64, 4, 4),
    (32, 24, 2, 3), (64, 24, 2, 3), (128, 24, 2, 3), (32, 48, 2, 3), (64, 48, 2, 3), (64, 48, 2, 6), (128, 48, 2, 6),
    (128, 48, 4, 3),
)  # fmt: skip
RINGS = ((16, 3, 1), (32, 2, 0), (32, 2, 1), (32, 3, 1), (64, 2, 0), (64, 2, 1))  # chunk, stages, through
MIN_BLOCKS = (2, 3, 4)
# Of a C of many rows and columns, wider than those, and the least blocks.
WIDE_TILES = (((128, 128, 4, 4), 1), ((128, 128, 2, 8), 1), ((64, 128, 4, 4), 2), ((64, 128, 2, 8), 2))
THREADS = 128  # of a block, or as many more as share a tile
COLUMNS_OF_LARGE, LEAST_DEPTH = range(9, 65), 16  # n and k that a C of many rows must have
Choice = tuple[tuple[int, int, int, int], tuple[int, int, int], int]  # tile, ring and least blocks


@dataclass(frozen=True, slots=True, order=True)
class StagedSmmaConfig(StagedMmaConfig):
    """Every choice that the template needs: those for f64."""

    family: ClassVar[str] = "staged_smma"


def _config(choice: Choice, splits: int) -> StagedSmmaConfig:
    (tile_rows, tile_columns, strips, octets), (chunk, stages, through), min_blocks = choice
    warps = tile_rows // (STRIP_ROWS * strips) * (tile_columns // (OCTET_COLUMNS * octets))
    threads = max(THREADS, WARP_THREADS * warps)
    return StagedSmmaConfig(
        threads=threads,
        sharers=threads,
        tile_rows=tile_rows,
        tile_columns=tile_columns,
        chunk=chunk,
        stages=stages,
        through=through,
        splits=splits,
        min_blocks=min_blocks,
        strips=strips,
        octets=octets,
        ahead=0,  # fragments of doubles that are loaded a step ahead would leave too few registers
    )


class StagedSmma(StagedMma):
    name = "staged_smma"
    summary = "f32, more than 8 columns: both operands staged, on the f64 tensor cores"
    template = "staged_smma.cu.jinja"
    dtypes = ("f32",)
    rules = (
        HAS_F64_TENSOR_CORES,
        BLOCKS_FOR_ALL,
        WIDE_TILES_FOR_WIDE_RESULTS,
        *staging_rules(ROWS, columns=(*COLUMNS, WIDE), covered=COVERED),
    )
    config_type = StagedSmmaConfig

    def configurations(self) -> Iterator[StagedSmmaConfig]:
        narrow = product(TILES, RINGS, MIN_BLOCKS, WIDE_SPLITS)
        wide = (
            (tile, ring, least, splits) for (tile, least), ring, splits in product(WIDE_TILES, RINGS, WIDE_SPLITS)
        )
        for tile, ring, min_blocks, splits in chain(narrow, wide):
            config = _config((tile, ring, min_blocks), splits)
            if config.chunk * self.team(config) >= config.sharers * DEPTH:
                yield config

    def registers(self, config: StagedMmaConfig) -> int:
        """A double has two."""
        return 2 * super().registers(config)

    def pitches(self, config: StagedMmaConfig, problem: Problem) -> tuple[int, int]:
        """Threads that read at the same time have 8 products each of 4 lines, or 4 products 2 apart of 8 lines."""
        along_a, along_b, _ = problem.contiguous
        return (
            config.chunk + 8 if along_a == "k" else config.tile_rows + 4,
            config.chunk + 8 if along_b == "k" else config.tile_columns + 4,
        )

    def paired(self, config: StagedMmaConfig, problem: Problem) -> bool:
        return config.octets % 2 == 0 and problem.contiguous[1] != "k"

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= self.largest(problem)

    def largest(self, problem: Problem) -> int:
        large = problem.n in COLUMNS_OF_LARGE and problem.k >= LEAST_DEPTH
        return INT32_MAX if large or is_general(problem) else LARGEST_THIN

    def singles(self, config: StagedMmaConfig, problem: Problem) -> bool:
        return False

    def context(self, config: StagedMmaConfig, problem: Problem) -> dict[str, Any]:
        """A lane has neighbours along a line of C only where the operand beside it has lines side by side."""
        along_a, _, along_c = problem.contiguous
        neighbours = along_a != "k" if along_c == "m" else self.paired(config, problem)
        context = super().context(config, problem)
        return {**context, "sums_in_registers": context["sums_in_registers"] and neighbours}


FAMILIES = (StagedSmma(),)
