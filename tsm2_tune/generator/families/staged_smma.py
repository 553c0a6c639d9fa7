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
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.split_k import WIDE_SPLITS, wide_splits
from tsm2_tune.generator.staging import BLOCKS_FOR_ALL, WIDE_TILES_FOR_WIDE_RESULTS, filling, staging_rules
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.tiles import LARGEST_THIN, covering, is_general

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
# What won on an H200, best first: tile, ring, and blocks on a multiprocessor. Of many rows, for as many columns: of a
# long k and a column-major A, of a long k and a row-major A, and of a short k.
Choice = tuple[tuple[int, int, int, int], tuple[int, int, int], int]
FEW: tuple[Choice, ...] = (
    ((64, 16, 2, 2), (64, 2, 0), 3), ((64, 16, 2, 2), (64, 2, 1), 3), ((128, 16, 2, 2), (32, 2, 0), 3),
)  # fmt: skip
LONG_COLUMN_MAJOR: dict[int, tuple[Choice, ...]] = {
    16: FEW,
    24: (((128, 24, 2, 3), (32, 2, 1), 3), ((128, 24, 2, 3), (32, 3, 1), 2), ((64, 24, 2, 3), (32, 3, 1), 4)),
    32: (
        ((256, 32, 4, 4), (32, 2, 1), 2), ((64, 32, 2, 2), (32, 3, 1), 4), ((128, 32, 2, 4), (32, 2, 1), 3),
        ((128, 32, 2, 4), (32, 3, 1), 2), ((128, 32, 2, 4), (16, 3, 1), 3),
    ),
    48: (((128, 48, 4, 3), (32, 2, 1), 2), ((128, 48, 2, 6), (32, 2, 1), 2), ((64, 48, 2, 3), (32, 2, 1), 3)),
    64: (
        ((128, 64, 2, 8), (32, 2, 1), 2), ((128, 64, 4, 4), (32, 3, 1), 2), ((64, 64, 2, 4), (32, 3, 1), 3),
        ((128, 64, 4, 4), (32, 2, 1), 2), ((128, 64, 2, 8), (32, 3, 1), 2),
    ),
}  # fmt: skip
LONG_ROW_MAJOR: dict[int, tuple[Choice, ...]] = {
    16: FEW,
    24: (((128, 24, 2, 3), (32, 3, 1), 2), ((128, 24, 2, 3), (32, 2, 1), 3), ((64, 24, 2, 3), (64, 2, 1), 3)),
    32: (
        ((128, 32, 2, 4), (32, 3, 1), 2), ((128, 32, 2, 4), (32, 2, 1), 3), ((128, 32, 2, 4), (16, 3, 1), 3),
        ((64, 32, 2, 2), (32, 2, 1), 4),
    ),
    48: (((128, 48, 2, 6), (32, 2, 1), 2), ((128, 48, 4, 3), (32, 2, 1), 2), ((128, 48, 2, 6), (32, 3, 1), 2)),
    64: (
        ((128, 64, 4, 4), (32, 3, 1), 2), ((128, 64, 2, 8), (32, 2, 1), 2), ((64, 64, 2, 4), (32, 3, 1), 3),
        ((128, 64, 4, 4), (32, 2, 1), 2), ((128, 64, 2, 8), (32, 3, 1), 2),
    ),
}  # fmt: skip
SHORT: dict[int, tuple[Choice, ...]] = {
    16: FEW,
    24: (((64, 24, 2, 3), (32, 2, 1), 4), ((128, 24, 2, 3), (32, 2, 1), 3), ((128, 24, 2, 3), (16, 3, 1), 3)),
    32: (
        ((64, 32, 2, 2), (32, 2, 1), 4), ((128, 32, 2, 4), (32, 2, 1), 3), ((128, 32, 2, 4), (16, 3, 1), 3),
        ((64, 32, 2, 2), (32, 3, 1), 4), ((256, 32, 4, 4), (16, 3, 1), 2),
    ),
    48: (((128, 48, 4, 3), (16, 3, 1), 2), ((64, 48, 2, 3), (32, 2, 1), 3)),
    64: (
        ((128, 64, 2, 8), (32, 2, 1), 2), ((64, 64, 2, 4), (32, 3, 1), 3), ((128, 64, 4, 4), (32, 2, 1), 2),
        ((128, 64, 2, 8), (32, 3, 1), 2), ((128, 64, 4, 4), (32, 3, 1), 2),
    ),
}  # fmt: skip
# Of one that is skinny neither way: of many tiles, then of few, as many as there are blocks.
GENERAL: tuple[Choice, ...] = (
    ((128, 128, 2, 8), (32, 3, 1), 1), ((128, 64, 4, 4), (32, 3, 1), 2), ((128, 128, 4, 4), (32, 3, 1), 1),
    ((128, 64, 2, 8), (32, 2, 1), 2), ((64, 128, 4, 4), (32, 3, 1), 2), ((128, 64, 4, 4), (32, 2, 1), 2),
    ((64, 64, 2, 4), (32, 3, 1), 2), ((64, 32, 2, 2), (32, 3, 1), 2), ((32, 32, 2, 4), (32, 3, 1), 2),
)  # fmt: skip
# Of a few rows and columns and a long k, for tiles that cover them. Of a square tile, the last is for operands that
# lie along k.
THIN: dict[tuple[int, int], tuple[Choice, ...]] = {
    (32, 32): (((32, 32, 2, 4), (32, 3, 1), 3), ((32, 32, 2, 4), (64, 2, 0), 3)),
    (32, 24): (((32, 24, 2, 3), (64, 2, 1), 3), ((32, 24, 2, 3), (32, 3, 1), 3)),
    (64, 24): (((64, 24, 2, 3), (32, 3, 1), 3), ((64, 24, 2, 3), (32, 2, 1), 3)),
    (32, 48): (((32, 48, 2, 3), (32, 3, 1), 3), ((32, 48, 2, 3), (32, 2, 1), 3)),
    (64, 48): (((64, 48, 2, 6), (32, 3, 1), 2), ((64, 48, 2, 3), (32, 3, 1), 3)),
    (64, 32): (((64, 32, 4, 4), (32, 3, 1), 2), ((64, 32, 4, 4), (32, 2, 0), 2)),
    (32, 64): (((32, 64, 2, 8), (32, 3, 1), 2), ((32, 64, 2, 8), (32, 2, 0), 2)),
    (64, 64): (
        ((64, 64, 2, 4), (32, 3, 1), 2), ((64, 64, 2, 8), (32, 3, 1), 2), ((64, 64, 4, 4), (64, 2, 1), 2),
    ),
}  # fmt: skip


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

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedMmaConfig, ...]:
        """What won on an H200 for as many columns; of a small C, for as large a tile."""
        if not has_f64_tensor_cores(limits, problem):
            return ()
        if is_general(problem):
            every = (_config(choice, wide_splits(limits, choice[2])) for choice in GENERAL)
            return self.for_general(every, problem, limits)
        if problem.m > LARGEST_THIN:
            long = LONG_ROW_MAJOR if problem.contiguous[0] == "k" else LONG_COLUMN_MAJOR
            winners = SHORT if problem.k <= LARGEST_THIN else long
            choices = winners[covering(tuple(winners), problem.n)]
            return tuple(_config(choice, wide_splits(limits, choice[2])) for choice in choices)
        tile = covering(ROWS, problem.m), covering(COLUMNS, problem.n)
        choices = THIN.get(tile, ())
        if tile[0] == tile[1] and "k" in problem.contiguous[:2]:
            choices = (*choices[-1:], *choices[:-1])
        return filling((_config(choice, wide_splits(limits, choice[2])) for choice in choices), problem, limits)

    def singles(self, config: StagedMmaConfig, problem: Problem) -> bool:
        return False

    def context(self, config: StagedMmaConfig, problem: Problem) -> dict[str, Any]:
        """A lane has neighbours along a line of C only where the operand beside it has lines side by side."""
        along_a, _, along_c = problem.contiguous
        neighbours = along_a != "k" if along_c == "m" else self.paired(config, problem)
        context = super().context(config, problem)
        return {**context, "sums_in_registers": context["sums_in_registers"] and neighbours}


FAMILY = StagedSmma()
