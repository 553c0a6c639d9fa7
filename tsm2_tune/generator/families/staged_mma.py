"""Both operands through shared memory, on the f64 tensor cores: staged, and read as fragments.

A C of many rows is served too, up to 64 columns wide, and one that is large both ways: every block has as many of all
chunks of all tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.split_k import WIDE_SPLITS, wide_splits
from tsm2_tune.generator.staging import (
    BLOCKS_FOR_ALL,
    WIDE_TILES_FOR_WIDE_RESULTS,
    StagingConfig,
    StagingFamily,
    filling,
    staging_rules,
)
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.tiles import LARGEST_THIN, covering, is_general
from tsm2_tune.generator.tunables import Tunable

ROWS, COLUMNS = (16, 32, 48, 64), (16, 24, 32, 48, 64)  # of C, of a block
TILE_ELEMENTS = (16 * 16, 32 * 32, 64 * 64)
WARP_TILES = ((1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 4))  # strips of 16 rows, octets of columns
# Threads of a block and of a ring, the chunk and the places of the ring, and what is on the way there.
RINGS = (
    (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 128, 16, 2, 0), (128, 128, 64, 3, 1), (128, 128, 32, 3, 1),
    (128, 128, 32, 2, 1), (128, 128, 16, 3, 1), (128, 128, 16, 4, 1), (128, 128, 32, 3, 2), (256, 256, 32, 4, 1),
    (256, 256, 32, 3, 1),
)  # fmt: skip
MIN_BLOCKS = (1, 3, 4)
# What won on an H200 for a C of one tile of at most as many elements, where an operand lies along k and where none
# does: the chunk, the places of the ring, what is on the way, blocks on a multiprocessor, and whether products are
# loaded ahead. A block that is alone has twice as many warps.
WINNERS: dict[tuple[int, bool], tuple[tuple[int, int, int, int, int], ...]] = {
    (16 * 16, True): ((64, 2, 0, 4, 0), (64, 2, 0, 3, 1), (32, 3, 1, 4, 0)),
    (16 * 16, False): ((64, 2, 0, 4, 0), (32, 3, 1, 4, 0), (64, 2, 0, 3, 1)),
    (32 * 32, True): ((32, 3, 1, 2, 1), (64, 2, 0, 2, 1), (32, 2, 0, 3, 0)),
    (32 * 32, False): ((32, 3, 1, 2, 0), (64, 2, 0, 2, 1), (32, 2, 0, 3, 0)),
    (64 * 64, True): ((32, 4, 1, 1, 1), (32, 3, 1, 1, 1), (32, 2, 0, 2, 0)),
    (64 * 64, False): ((32, 4, 1, 1, 1), (32, 3, 1, 1, 1), (16, 3, 1, 2, 1)),
}
# The same of one tile of so many columns, which are three octets for each warp.
WINNERS_OF_THREES: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    24: ((64, 3, 1, 2, 1), (32, 3, 1, 3, 1), (64, 2, 0, 2, 1)),
    48: ((32, 4, 1, 1, 1), (32, 3, 1, 2, 1), (16, 4, 1, 2, 1)),
}
# Of a C of many rows: threads, rows and columns of a tile, strips and octets of a warp, and the least blocks.
TALL_TILES = (
    (256, 256, 64, 4, 4, 1), (128, 128, 64, 4, 4, 1), (256, 128, 64, 2, 4, 1), (256, 256, 32, 2, 4, 1),
    (128, 128, 32, 2, 4, 1), (256, 128, 32, 2, 2, 2), (128, 64, 32, 2, 2, 1), (128, 64, 32, 2, 2, 4),
    (128, 64, 16, 1, 2, 4), (128, 128, 16, 2, 2, 1), (256, 256, 16, 2, 2, 1), (256, 128, 32, 2, 2, 1),
    (256, 256, 24, 2, 3, 1), (256, 128, 24, 1, 3, 1), (128, 128, 24, 2, 3, 1),
    (256, 256, 48, 4, 3, 1), (256, 128, 48, 2, 3, 1), (128, 128, 48, 4, 3, 1),
)  # fmt: skip
# Of a C of many rows and columns, wider than those.
WIDE_TILES, WIDE = ((256, 128, 128, 4, 4, 1), (128, 64, 128, 4, 4, 1)), 128
TALL_RINGS = (
    (16, 3, 1), (16, 4, 1), (16, 5, 1), (16, 6, 1), (32, 2, 0), (32, 2, 1), (32, 3, 1), (32, 4, 1), (32, 2, 2),
)  # fmt: skip
MORE_ROWS = (128, 256)
COLUMNS_OF_TALL, LEAST_DEPTH = range(9, 65), 17  # n and k that a C of many rows must have
# What won on an H200 for n up to so many, where A lies along k and where not: threads and tile, the ring, blocks on a
# multiprocessor, as many as the bound or 1, and the strips and octets of a warp.
Winner = tuple[int, int, int, int, int, int, int, int, int, int]
WINNERS_OF_TALL: dict[tuple[int, bool], tuple[Winner, ...]] = {
    (16, True): (
        (128, 128, 16, 32, 2, 0, 2, 1, 2, 2), (128, 64, 16, 32, 2, 1, 4, 4, 1, 2),
        (128, 128, 16, 32, 2, 1, 2, 1, 2, 2),
    ),
    (24, True): (
        (256, 128, 24, 32, 4, 1, 1, 1, 1, 3), (128, 128, 24, 32, 2, 1, 2, 1, 2, 3),
        (256, 128, 24, 32, 3, 1, 1, 1, 1, 3),
    ),
    (32, True): (
        (128, 64, 32, 32, 3, 1, 2, 1, 2, 2), (256, 128, 32, 32, 4, 1, 1, 1, 2, 2),
        (128, 64, 32, 32, 2, 0, 2, 1, 2, 2), (128, 128, 32, 32, 2, 1, 2, 1, 2, 4),
    ),
    (48, True): (
        (256, 128, 48, 32, 3, 1, 1, 1, 2, 3), (128, 128, 48, 16, 3, 1, 2, 1, 4, 3),
        (256, 256, 48, 16, 4, 1, 1, 1, 4, 3),
    ),
    (64, True): (
        (256, 256, 64, 16, 4, 1, 1, 1, 4, 4), (128, 64, 64, 16, 4, 1, 2, 1, 2, 4),
        (128, 128, 64, 32, 2, 2, 2, 1, 4, 4), (256, 256, 64, 32, 2, 1, 1, 1, 4, 4),
        (128, 128, 64, 16, 3, 1, 2, 1, 4, 4), (256, 128, 64, 16, 6, 1, 1, 1, 2, 4),
    ),
    (16, False): ((256, 256, 16, 16, 5, 1, 1, 1, 2, 2), (128, 128, 16, 16, 4, 1, 2, 1, 2, 2)),
    (24, False): (
        (128, 128, 24, 16, 3, 1, 2, 1, 2, 3), (256, 256, 24, 16, 5, 1, 1, 1, 2, 3),
        (256, 256, 24, 16, 4, 1, 1, 1, 2, 3), (128, 64, 24, 16, 4, 1, 2, 1, 1, 3),
    ),
    (32, False): (
        (128, 128, 32, 16, 3, 1, 2, 1, 2, 4), (256, 256, 32, 16, 5, 1, 1, 1, 2, 4),
        (128, 64, 32, 16, 4, 1, 2, 1, 2, 2), (128, 64, 32, 32, 2, 0, 2, 1, 2, 2),
        (256, 128, 32, 16, 3, 1, 2, 2, 2, 2),
    ),
    (48, False): (
        (256, 256, 48, 16, 4, 1, 1, 1, 4, 3), (256, 256, 48, 16, 3, 1, 1, 1, 4, 3),
        (128, 128, 48, 16, 3, 1, 2, 1, 4, 3), (128, 64, 48, 16, 4, 1, 2, 1, 2, 3),
    ),
    (64, False): (
        (256, 256, 64, 16, 3, 1, 1, 1, 4, 4), (256, 256, 64, 16, 4, 1, 1, 1, 4, 4),
        (128, 128, 64, 16, 3, 1, 2, 1, 4, 4),
        (256, 128, 64, 16, 6, 1, 1, 1, 2, 4),
    ),
}  # fmt: skip
# The same of a C that is skinny neither way: of many tiles, then of few, as many as there are blocks.
WINNERS_OF_GENERAL: tuple[Winner, ...] = (
    (256, 128, 128, 32, 2, 1, 1, 1, 4, 4), (256, 128, 128, 16, 3, 1, 1, 1, 4, 4),
    (256, 128, 128, 16, 4, 1, 1, 1, 4, 4), (256, 256, 64, 16, 3, 1, 1, 1, 4, 4),
    (128, 128, 64, 16, 3, 1, 2, 1, 4, 4), (128, 64, 128, 16, 3, 1, 2, 1, 4, 4),
    (256, 128, 64, 16, 6, 1, 1, 1, 2, 4), (128, 64, 64, 16, 4, 1, 2, 1, 2, 4),
    (128, 64, 32, 32, 4, 1, 1, 1, 2, 2), (128, 32, 32, 32, 3, 1, 2, 1, 2, 2), (256, 64, 64, 32, 4, 1, 1, 1, 2, 2),
    (128, 16, 32, 32, 3, 1, 1, 1, 1, 2), (128, 32, 16, 32, 3, 1, 1, 1, 1, 2),
)  # fmt: skip
STRIP_ROWS, OCTET_COLUMNS, WARP_THREADS, DEPTH = 16, 8, 32, 8


@dataclass(frozen=True, slots=True, order=True)
class StagedMmaConfig(StagingConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "staged_mma"

    strips: Annotated[
        int,
        Tunable("strips of 16 rows of C that one warp accumulates in registers", word="warp", unit=16, letter="r"),
    ]
    octets: Annotated[
        int, Tunable("octets of columns of C that one warp accumulates in registers", word="warp", unit=8, letter="c")
    ]
    ahead: Annotated[
        int,
        Tunable(
            "1: a chunk's first products are loaded before the last of the one before are multiplied",
            usual=0,
            word="fragment_prefetch",
            letter="a",
        ),
    ]


def is_wide(config: StagedMmaConfig) -> bool:
    """Whether a tile is for a large C alone, and a warp's sums leave no registers to spare."""
    return config.tile_columns > COLUMNS[-1]


class StagedMma(StagingFamily[StagedMmaConfig]):
    name = "staged_mma"
    on_tensor_cores = True
    summary = "f64, C of few columns, or large both ways: both operands staged, on the f64 tensor cores"
    template = "staged_mma.cu.jinja"
    rules = (
        HAS_F64_TENSOR_CORES,
        BLOCKS_FOR_ALL,
        WIDE_TILES_FOR_WIDE_RESULTS,
        *staging_rules((*ROWS, *MORE_ROWS), columns=(*COLUMNS, WIDE), covered=ROWS[-1]),
    )
    config_type = StagedMmaConfig

    def configurations(self) -> Iterator[StagedMmaConfig]:
        tiles = [
            (tile_rows, tile_columns, strips, octets)
            for tile_rows, tile_columns, (strips, octets) in product(ROWS, COLUMNS, WARP_TILES)
            if tile_rows % (STRIP_ROWS * strips) == 0 and tile_columns % (OCTET_COLUMNS * octets) == 0
        ]
        thin = (
            (*ring[:2], tile_rows, tile_columns, *ring[2:], splits, min_blocks, strips, octets, ahead)
            for (tile_rows, tile_columns, strips, octets), ring, splits, min_blocks, ahead in product(
                tiles, RINGS, WIDE_SPLITS, MIN_BLOCKS, (0, 1)
            )
        )
        tall = (
            (threads, threads, tile_rows, tile_columns, *ring, splits, min_blocks, strips, octets, 1)
            for (threads, tile_rows, tile_columns, strips, octets, min_blocks), ring, splits in product(
                (*TALL_TILES, *WIDE_TILES), TALL_RINGS, WIDE_SPLITS
            )
        )
        for values in dict.fromkeys(chain(thin, tall)):
            config = StagedMmaConfig(*values)
            sharers = config.sharers
            team = self.team(config)
            if sharers % team == 0 and config.chunk * team >= sharers * DEPTH:
                yield config

    def team(self, config: StagedMmaConfig) -> int:
        rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
        return WARP_THREADS * (config.tile_rows // rows) * (config.tile_columns // columns)

    def sums_in_registers(self, config: StagedMmaConfig) -> bool:
        return self.team(config) == config.threads

    def registers(self, config: StagedMmaConfig) -> int:
        rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
        return (rows * columns + 2 * (rows + columns) * DEPTH) // WARP_THREADS

    def pitches(self, config: StagedMmaConfig, problem: Problem) -> tuple[int, int]:
        """Threads that read at the same time, 8 of pairs and 16 of singles, meet no bank twice."""
        along_a, along_b, _ = problem.contiguous
        if self.singles(config, problem):
            return config.chunk + 2, (config.chunk if along_b == "k" else config.tile_columns) + 4
        b_along_k = config.chunk + (4 if self.paired(config, problem) else 8)
        return (
            config.chunk + 4 if along_a == "k" else config.tile_rows + 2,
            b_along_k if along_b == "k" else config.tile_columns + 2,
        )

    def singles(self, config: StagedMmaConfig, problem: Problem) -> bool:
        """Whether A alone lies along k: no two neighbours in memory stay so in the fragments of A and of B.

        So it is where both do, if a warp has no registers to spare in which neighbours could be moved apart.
        """
        along_a, along_b, _ = problem.contiguous
        return along_a == "k" and (along_b != "k" or is_wide(config))

    def paired(self, config: StagedMmaConfig, problem: Problem) -> bool:
        """Whether a lane's columns of C are neighbours in two octets."""
        moved_apart = is_wide(config) and problem.contiguous[1] != "k"
        return config.octets % 2 == 0 and not self.singles(config, problem) and not moved_apart

    def context(self, config: StagedMmaConfig, problem: Problem) -> dict[str, Any]:
        return {
            **super().context(config, problem),
            "singles": self.singles(config, problem),
            "paired": self.paired(config, problem),
            "arrives_early": bool(config.ahead),
            "loads_before_copies": False,
        }

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name == "f64" and super().supports(problem)

    def largest(self, problem: Problem) -> int:
        tall = problem.n in COLUMNS_OF_TALL and problem.k >= LEAST_DEPTH
        return INT32_MAX if tall or is_general(problem) else super().largest(problem)

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedMmaConfig, ...]:
        """Every product of C in one tile; of many rows as many as B's way to a multiprocessor is worth."""
        if max(problem.m, problem.n) <= OCTET_COLUMNS or not has_f64_tensor_cores(limits, problem):
            return ()
        if is_general(problem):
            return self.for_general(self._configs(WINNERS_OF_GENERAL, limits), problem, limits)
        if max(problem.m, problem.n) > LARGEST_THIN:
            best = WINNERS_OF_TALL[covering(COLUMNS, problem.n), problem.contiguous[0] == "k"]
            tall = self._configs(best, limits)
            return tuple(sorted(tall, key=lambda config: not self.has_whole_tiles(config, problem)))
        tile_rows = covering(ROWS, problem.m)
        tile_columns = covering(COLUMNS, problem.n)
        elements = tile_rows * tile_columns
        strips = 3 if tile_rows == 48 else min(2, tile_rows // STRIP_ROWS)
        octets = 4 if elements > 32 * 32 and tile_columns > STRIP_ROWS and strips < 3 else 2
        winners = WINNERS[covering(TILE_ELEMENTS, elements), "k" in problem.contiguous[:2]]
        if tile_columns in WINNERS_OF_THREES:
            octets, winners = 3, WINNERS_OF_THREES[tile_columns]
        configs = (
            StagedMmaConfig(
                threads=128 if blocks > 1 else 256,
                sharers=128 if blocks > 1 else 256,
                tile_rows=tile_rows,
                tile_columns=tile_columns,
                chunk=chunk,
                stages=stages,
                through=through,
                splits=wide_splits(limits, blocks),
                min_blocks=blocks if blocks in MIN_BLOCKS else 1,  # or some wait for the others to end
                strips=strips,
                octets=octets if blocks > 1 or octets == 3 else 2,
                ahead=ahead,
            )
            for chunk, stages, through, blocks, ahead in winners
        )
        return filling(configs, problem, limits)

    def _configs(self, winners: Iterable[Winner], limits: DeviceLimits) -> Iterator[StagedMmaConfig]:
        for threads, tile_rows, tile_columns, chunk, stages, through, blocks, min_blocks, strips, octets in winners:
            yield StagedMmaConfig(
                threads,
                threads,
                tile_rows,
                tile_columns,
                chunk,
                stages,
                through,
                splits=wide_splits(limits, blocks),
                min_blocks=min_blocks,
                strips=strips,
                octets=octets,
                ahead=1,
            )


FAMILY = StagedMma()
