"""Both operands through shared memory, on the f64 tensor cores: staged, and read as fragments.

A C of many rows, whose tiles alone fill the device or nearly, is served too where it has 17 to 64 columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import ClassVar

from tsm2_tune.generator.families.family import Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.rules import Candidate, Rule
from tsm2_tune.generator.splitting import (
    BLOCKS_PER_SM,
    HAS_F64_TENSOR_CORES,
    SPLITS,
    WIDE_SPLITS,
    has_f64_tensor_cores,
    in_turns,
    tunable,
)
from tsm2_tune.generator.staging import STAGING_TUNABLES, StagingConfig, StagingFamily, staging_rules
from tsm2_tune.generator.tiles import LARGEST_THIN, covering

TILE = (16, 32, 64)  # rows and columns of C, of a block
WARP_TILES = ((1, 2), (2, 2), (2, 4), (4, 4))  # strips of 16 rows, octets of columns
# Threads of a block and of a ring, the chunk and the places of the ring, and what is on the way there.
RINGS = (
    (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 128, 16, 2, 0), (256, 256, 32, 2, 0), (128, 128, 64, 3, 1),
    (128, 128, 32, 3, 1), (128, 128, 32, 2, 1), (128, 128, 16, 4, 2),
)  # fmt: skip
# Of a large C: tiles with the strips and octets of a warp, and rings; k is split in few parts.
LARGE_TILES = ((128, 64, 4, 4), (64, 64, 2, 4), (128, 32, 2, 4), (64, 32, 2, 2))
LARGE_RINGS = ((128, 128, 16, 3, 1), (128, 128, 16, 2, 0), (128, 128, 32, 2, 0))
FEW_SPLITS = tuple(splits for splits in SPLITS if splits not in WIDE_SPLITS)
FEW_TILES = 8  # of C, that leave k to fill the device
SUMS_OF_A_SPLIT = 0.01  # of the time, that they take about: not measured
COLUMNS_OF_LARGE, LEAST_DEPTH = range(17, 65), 1024  # n and k that a large C must have
STRIP_ROWS, OCTET_COLUMNS, WARP_THREADS, DEPTH = 16, 8, 32, 8


@dataclass(frozen=True, slots=True, order=True)
class StagedMmaConfig(StagingConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "staged_mma"
    letters: ClassVar[dict[str, str]] = {**StagingConfig.letters, "strips": "r", "octets": "c"}

    strips: int  # of 16 rows of C, of a warp
    octets: int  # of 8 columns of C, of a warp


def _splits_for_tiles(candidate: Candidate) -> bool:
    tiles = candidate.launch.tiles(candidate.problem.m, candidate.problem.n)
    return (tunable(candidate, "splits") in WIDE_SPLITS) == (tiles <= FEW_TILES)


class StagedMma(StagingFamily[StagedMmaConfig]):
    name = "staged_mma"
    summary = "transposed tall and skinny times tall and skinny: both staged, on the f64 tensor cores"
    template = "staged_mma.cu.jinja"
    tunables = (
        *STAGING_TUNABLES,
        Tunable("strips", "", "strips of 16 rows of C that one warp accumulates in registers"),
        Tunable("octets", "", "octets of columns of C that one warp accumulates in registers"),
    )
    rules = (
        HAS_F64_TENSOR_CORES,
        *staging_rules(TILE),
        Rule(
            "splits-for-tiles",
            "shape",
            "k fills the device where C has few tiles, and many tiles need few splits",
            _splits_for_tiles,
        ),
    )
    config_type = StagedMmaConfig

    def configurations(self) -> Iterator[StagedMmaConfig]:
        tiles = [
            (tile_rows, tile_columns, strips, octets)
            for tile_rows, tile_columns, (strips, octets) in product(TILE, TILE, WARP_TILES)
            if tile_rows % (STRIP_ROWS * strips) == 0 and tile_columns % (OCTET_COLUMNS * octets) == 0
        ]
        every = chain(
            product(tiles, RINGS, WIDE_SPLITS),
            product(LARGE_TILES, LARGE_RINGS, FEW_SPLITS),
        )
        for tile, ring, splits in every:
            tile_rows, tile_columns, strips, octets = tile
            threads, sharers, chunk, stages, through = ring
            config = StagedMmaConfig(
                threads, sharers, tile_rows, tile_columns, chunk, stages, through, splits, 1, strips, octets
            )
            if self.team(config) <= sharers and config.chunk * self.team(config) >= sharers * DEPTH:
                yield config

    def team(self, config: StagedMmaConfig) -> int:
        rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
        return WARP_THREADS * (config.tile_rows // rows) * (config.tile_columns // columns)

    def registers(self, config: StagedMmaConfig) -> int:
        rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
        return (rows * columns + 2 * (rows + columns) * DEPTH) // WARP_THREADS

    def pitches(self, config: StagedMmaConfig, problem: Problem) -> tuple[int, int]:
        """Threads that read at the same time have 2 lines of 8 products each, or 4 products 2 apart of 4 lines."""
        along_k = config.chunk + 8 if config.chunk % 16 == 0 else config.chunk
        along_a, along_b, _ = problem.contiguous
        return (
            along_k if along_a == "k" else config.tile_rows + 2,
            along_k if along_b == "k" else config.tile_columns + 2,
        )

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name == "f64" and super().supports(problem)

    def largest(self, problem: Problem) -> int:
        large = problem.n in COLUMNS_OF_LARGE and problem.k >= LEAST_DEPTH
        return INT32_MAX if large else super().largest(problem)

    def preferred(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedMmaConfig, ...]:
        """Every product of C in one tile."""
        if max(problem.m, problem.n) <= OCTET_COLUMNS or not has_f64_tensor_cores(limits):
            return ()
        if max(problem.m, problem.n) > LARGEST_THIN:
            return self._preferred_of_large(problem, limits)
        tile_rows = covering(TILE, problem.m)
        tile_columns = covering(TILE, problem.n)
        large = tile_rows * tile_columns > 32 * 32
        warp_tile = (min(2, tile_rows // STRIP_ROWS), 4 if large and tile_columns > STRIP_ROWS else 2)
        return tuple(
            StagedMmaConfig(
                128, 128, tile_rows, tile_columns, chunk, stages, through, limits.sms * blocks, 1, *warp_tile
            )
            for chunk, stages, through, blocks in (
                ((32, 2, 0, 2), (16, 2, 0, 2), (16, 2, 0, 3), (32, 2, 1, 2), (16, 4, 2, 2))
                if large
                else ((32, 2, 0, 3), (32, 3, 1, 2), (64, 2, 0, 2), (32, 2, 0, 2), (32, 3, 1, 3), (64, 3, 1, 1))
            )
        )

    def _preferred_of_large(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedMmaConfig, ...]:
        """High tiles first, since B is read once for each."""
        choices = (
            (((128, 32, 2, 4), LARGE_RINGS[1]), ((64, 32, 2, 2), LARGE_RINGS[2]))
            if problem.n <= 32
            else (
                ((128, 64, 4, 4), LARGE_RINGS[0]),
                ((128, 64, 4, 4), LARGE_RINGS[1]),
                ((64, 64, 2, 4), LARGE_RINGS[2]),
            )
        )
        variants = [
            StagedMmaConfig(threads, sharers, tile_rows, tile_columns, chunk, stages, through, 1, 1, strips, octets)
            for (tile_rows, tile_columns, strips, octets), (threads, sharers, chunk, stages, through) in choices
        ]
        slots = BLOCKS_PER_SM * limits.sms

        def merit(variant: StagedMmaConfig) -> float:
            """Of the last wave, what is full, less what the sums of more splits cost."""
            blocks = self.launch(variant, problem).blocks(problem.m, problem.n)
            return blocks / (-(-blocks // slots) * slots) - SUMS_OF_A_SPLIT * variant.splits

        return in_turns(
            sorted((replace(variant, splits=splits) for splits in FEW_SPLITS), key=merit, reverse=True)[:4]
            for variant in variants
        )


FAMILY = StagedMma()
