"""Fused multiply-adds with both operands in a ring in shared memory, as they lie: as fast for any number of lines.

Where an operand's lines are side by side and it has no others, its part of a chunk is one run of bytes, which begins
at a whole vector however many lines there are. It is copied in vectors, each element once; no thread loads a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import lcm
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.family import ODD_LINES
from tsm2_tune.generator.families.inner.kernel import (
    CHUNKS_FOR_ALL,
    VECTOR_BYTES,
    WARP_THREADS,
    Inner,
    InnerConfig,
    Splits,
)
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import RingStages, ThreadColumns, ThreadRows, Tunable
from tsm2_tune.generator.split_k import MULTIPROCESSORS, SMALL_K, WIDE_SPLIT_RULES, in_turns, wide_splits
from tsm2_tune.generator.tiles import covering, tile_rules
from tsm2_tune.runtime.choice.predict import Division

THREADS = 256
# Rows or columns of C: of a block, and those of a thread.
LINES = {
    1: (1,),
    2: (2, 1),
    3: (3, 1),
    4: (4, 2),
    6: (6, 3),
    8: (8, 4, 2),
    12: (6, 4, 3),
    16: (8, 4, 2),
    20: (5, 4),
    24: (8, 6, 4, 3),
    28: (7, 4),
    32: (8, 4, 2),
    40: (8, 5),
    48: (8, 6, 4, 3),
    56: (8, 7),
    64: (8, 4, 2),
}
TILE = tuple(LINES)
# KiB of one place of a ring, about, and places; those first that are to be tried first.
RINGS = ((16, 3), (32, 2), (8, 4))
SPLITS = (16, 40, *sorted({sms * blocks for sms in MULTIPROCESSORS for blocks in (1, 2)}))
MIN_BLOCKS, MOST_REGISTERS = 2, 128  # on a multiprocessor, and of each thread then
MOST_SUM_REGISTERS = 64  # of a thread, that leave room for so many blocks
WHOLE_LANES = 4  # teams of a block, from twice as many on a multiple of it, so that their products are whole vectors
MOST_LEFT = 8  # teams whose sums a block adds up at last
LOADED = 32  # registers that a thread has for elements beside its sums
WAVEFRONT_BYTES = 128  # bytes of shared memory served in a clock
ISSUED = 128  # instructions of threads, a clock, of a multiprocessor
THIN, TILE_OF_OTHERS = 4, 16  # times as long as wide; the longer extent from which a C is thin then
PARTS_TRIED = 3  # of a tile, for a thread: at first


@dataclass(frozen=True, slots=True)
class InnerFmaRingConfig(InnerConfig):
    """A configuration of the family inner_fma_ring: a value for each tunable."""

    family: ClassVar[str] = "inner_fma_ring"

    rows: ThreadRows
    columns: ThreadColumns
    together: Annotated[
        int,
        Tunable(
            "1 where a team's products of a chunk are neighbours, 0 where neighbouring teams' are",
            is_constant=False,
            default=0,
        ),
    ]
    stage_kib: Annotated[
        int,
        Tunable("KiB of one place of the ring, as nearly as its products can be shared", is_constant=False),
    ]
    stages: RingStages
    splits: Splits


def team(config: InnerFmaRingConfig) -> int:
    """Return the number of threads that share a tile of C."""
    return (config.block_m // config.rows) * (config.block_n // config.columns)


def lanes_of_k(config: InnerFmaRingConfig) -> int:
    """Return the number of k slices of a block: teams of threads that each sum over a part of k."""
    teams = config.threads // team(config)
    return teams if teams < 2 * WHOLE_LANES else teams // WHOLE_LANES * WHOLE_LANES


def block_k(config: InnerFmaRingConfig, problem: Problem) -> int:
    """Products along k in one place of the ring: whole vectors, as many for every team, one for each at the least."""
    size = problem.dtype.element_bytes
    unit = lcm(lanes_of_k(config), VECTOR_BYTES // size)
    fitting = config.stage_kib * 1024 // ((config.block_m + config.block_n) * size)
    return max((fitting + unit // 2) // unit, 1) * unit


def at_once(config: InnerFmaRingConfig, problem: Problem) -> int:
    """Products of which a thread has all elements in registers."""
    rounds = block_k(config, problem) // lanes_of_k(config)
    of_product = (config.rows + config.columns) * problem.dtype.registers
    return max(min(LOADED // of_product, rounds), 1)


def pitch(config: InnerFmaRingConfig, problem: Problem) -> int:
    """Return the number of elements from a line along k to the next in shared memory: an odd number of vectors."""
    vector, products = VECTOR_BYTES // problem.dtype.element_bytes, block_k(config, problem)
    return products + vector * (1 if products // vector % 2 == 0 else 2)


def place(config: InnerFmaRingConfig, member: int) -> tuple[int, int]:
    """Return the first row and first column of C of a team's member: as the template has it."""
    down, across = config.block_m // config.rows, config.block_n // config.columns
    if down % 2 or across % 2:
        return member % down, member // down
    square = member // 4
    return square % (down // 2) * 2 + member % 2, square // (down // 2) * 2 + member // 2 % 2


def wavefronts(places: Sequence[int], element_bytes: int) -> int:
    """Return the number of clocks in which shared memory serves a warp whose lanes read elements at these places.

    Twice as many lanes at a time where two lanes read the same that are side by side, or one apart.
    """
    banks = WAVEFRONT_BYTES // element_bytes
    shared = any(all(place == places[lane ^ by] for lane, place in enumerate(places)) for by in (1, 2))
    lanes = banks * (2 if shared else 1)
    groups = (set(places[first : first + lanes]) for first in range(0, len(places), lanes))
    return sum(max(Counter(place % banks for place in group).values()) for group in groups)


def clocks(config: InnerFmaRingConfig, problem: Problem) -> float:
    """Return the clocks of shared memory and of instruction issue for one product of every line."""
    members, teams, products = team(config), lanes_of_k(config), block_k(config, problem)
    apart = products // teams if config.together else 1
    of_lanes = [min(lane // members, teams - 1) * apart for lane in range(WARP_THREADS)]
    lines = [place(config, lane % members) for lane in range(WARP_THREADS)]
    read = 0
    for which, (of_thread, extent) in enumerate(((config.rows, problem.m), (config.columns, problem.n))):
        is_along_k = problem.contiguous[which] == "k"
        across, along = (pitch(config, problem), 1) if is_along_k else (1, extent)
        places = [line[which] * across + product * along for line, product in zip(lines, of_lanes, strict=True)]
        read += of_thread * wavefronts(places, problem.dtype.element_bytes)
    instructions = config.rows * config.columns * problem.dtype.parts**2 + config.rows + config.columns
    return members * (read / WARP_THREADS + instructions / ISSUED)


def _reads_differ(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, InnerFmaRingConfig)
    return config.together == 0 or team(config) % WARP_THREADS > 0


class InnerFmaRing(Inner[InnerFmaRingConfig]):
    name = "inner_fma_ring"
    summary = "transposed tall and skinny times tall and skinny: both through shared memory, of any number of lines"
    about = "both operands through a ring, of any number of lines"
    template = "inner/fma_ring.cu.jinja"
    dtypes = FMA_DTYPES
    rules = (
        *tile_rules(TILE),
        CHUNKS_FOR_ALL,
        Rule(
            "reads-differ",
            "shape",
            "a warp of one team reads the same, whichever products are its own",
            _reads_differ,
            of=("threads", "block_m", "block_n", "rows", "columns", "together"),
        ),
        *WIDE_SPLIT_RULES,
    )
    moved_as_doubles = ()
    odd_lines = 1.0  # of lines side by side, which are copied as one run
    config_type = InnerFmaRingConfig

    def grids(self) -> Iterable[Grid[InnerFmaRingConfig]]:
        tiles = [(*tile, *part) for tile in product(TILE, TILE) for part in self.parts_of(tile)]
        axes = {
            "threads": (THREADS,),
            "block_m block_n rows columns": tiles,
            "together": (0, 1),
            "stage_kib stages": RINGS,
            "splits": SPLITS,
        }
        return [Grid(InnerFmaRingConfig, axes)]

    @staticmethod
    def parts_of(tile: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the rows and columns of a thread that shares such a tile with a block's others."""
        for rows, columns in product(LINES[tile[0]], LINES[tile[1]]):
            if tile[0] // rows * (tile[1] // columns) <= THREADS:
                yield rows, columns

    def lanes_of_k(self, config: InnerFmaRingConfig) -> int:
        return lanes_of_k(config)

    def block_k(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        return block_k(config, problem)

    def sums_of_tile(self, config: InnerFmaRingConfig) -> int:
        """Return those that half of the teams give the other half, as long as there are many."""
        return max(lanes_of_k(config) // 2, min(lanes_of_k(config), MOST_LEFT))

    def ring_bytes(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        a, b = (
            lines * (pitch if along == "k" else block_k)(config, problem)
            for lines, along in zip((config.block_m, config.block_n), problem.contiguous[:2], strict=True)
        )
        return config.stages * (a + b) * problem.dtype.element_bytes

    def registers(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        loaded = (config.rows + config.columns) * at_once(config, problem)
        return (config.rows * config.columns + loaded) * problem.dtype.registers

    def bytes_in_flight(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        lines, places = config.block_m + config.block_n, config.stages - 1
        return lines * block_k(config, problem) * places * problem.dtype.element_bytes // config.threads

    def division(self, config: InnerFmaRingConfig, problem: Problem, resident: int) -> Division:
        found = super().division(config, problem, resident)
        return replace(found, odd_lines=ODD_LINES) if "k" in problem.contiguous[:2] else found

    def supports(self, problem: Problem) -> bool:
        return super().supports(problem) and not problem.is_gram  # half of whose products are enough

    def probe_shapes(self, config: InnerFmaRingConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split."""
        rows, columns, products = config.block_m, config.block_n, block_k(config, problem)
        return (
            (rows, columns, products * (config.splits * (config.stages + 1) - 1) + 4),
            (max(rows - 1, 1), max(columns - 1, 1), products * (config.splits + 2) + 3),
            (rows + 1, max(columns - 1, 1), 2 * products + 1),
            (max(rows - 1, 1), columns + 1, max(products // 2 - 1, 1)),
            (rows, columns, products),
            (2 * rows, 2 * columns, products + 4),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[InnerFmaRingConfig, ...]:
        """Return every product of C in one tile, those parts of it for each thread that keep shared memory least
        busy.

        None if lines are whole vectors, and extents such as other families' tiles have.
        """
        if max(problem.m, problem.n) > TILE[-1] or self._is_for_others(problem):
            return ()
        along_a, along_b, _ = problem.contiguous
        op = ("t" if along_a == "k" else "n") + ("n" if along_b == "k" else "t")
        every = in_turns(self._by_ring(replace(problem, k=1, op=op)))
        return tuple(replace(config, splits=self._splits(config, problem, limits)) for config in every)

    @cache  # noqa: B019, for a family lives as long as the program
    def _by_ring(self, alike: Problem) -> list[list[InnerFmaRingConfig]]:
        """Return those to try first of each ring, best first: the same whatever k is, and however C lies."""
        tile = covering(TILE, alike.m), covering(TILE, alike.n)
        parts = [
            part for part in self.parts_of(tile) if part[0] * part[1] * alike.dtype.registers <= MOST_SUM_REGISTERS
        ]

        def clocks_of(config: InnerFmaRingConfig) -> float:
            return clocks(config, alike)

        def least_busy(part: tuple[int, int], ring: tuple[int, int]) -> InnerFmaRingConfig:
            return min(
                (InnerFmaRingConfig(THREADS, *tile, *part, together, *ring, 1) for together in (0, 1)), key=clocks_of
            )

        return [sorted((least_busy(part, ring) for part in parts), key=clocks_of)[:PARTS_TRIED] for ring in RINGS]

    @staticmethod
    def _is_for_others(problem: Problem) -> bool:
        """Whether lines are whole vectors, and C has as many rows and columns as other families' tiles, or nearly."""
        lines = (problem.stored[name][0] * problem.dtype.element_bytes % VECTOR_BYTES for name in "AB")
        extents = sorted((problem.m, problem.n))
        is_thin = extents[1] >= max(THIN * extents[0], TILE_OF_OTHERS)
        return not (any(lines) or any(extent & (extent - 1) for extent in extents) or is_thin)

    @staticmethod
    def _splits(config: InnerFmaRingConfig, problem: Problem, limits: DeviceLimits) -> int:
        """Two blocks on a multiprocessor, or one of a small k, or as many as have a chunk."""
        chunks = -(-problem.k // block_k(config, problem))
        for blocks in (2, 1) if problem.k > SMALL_K else (1,):
            splits = wide_splits(limits, blocks)
            if splits in SPLITS and splits * (config.stages if blocks > 1 else 1) <= chunks:
                return splits
        return max((splits for splits in SPLITS if splits <= min(chunks, limits.sms)), default=SPLITS[0])

    def context(self, config: InnerFmaRingConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "block_k": block_k(config, problem),
            "lanes_of_k": lanes_of_k(config),
            "pitch": pitch(config, problem),
            "at_once": at_once(config, problem),
            "most_left": MOST_LEFT,
            "min_blocks": MIN_BLOCKS if self.resources(config, problem).registers <= MOST_REGISTERS else 0,
        }
