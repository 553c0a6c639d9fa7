"""The common part of stream_a's ways to multiply: the space, rules, launch, traffic and probes.

This kernel has three things that the published ones lack. `prefetch` columns of A are in flight or have arrived, and
each group of them is loaded again as soon as it is used, so that loads are always in flight. Loads are 16 bytes wide.
And k is split over blocks, since m rows alone do not fill a large GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tsm2_tune.generator.config import Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.families.stream_a.tunables import StreamAConfig
from tsm2_tune.generator.predict.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.launch_table import launch_of
from tsm2_tune.generator.space.rules import Rule, columns_within_n, prefetch_within_k
from tsm2_tune.generator.space.tunables import declared
from tsm2_tune.generator.split_k import SPLITS_ROW_TILES, SPLITTING_RULES, most_loads, split_traffic

VECTOR_BYTES = 16
WARP_THREADS = 32

C = TypeVar("C", bound=StreamAConfig)


@dataclass(frozen=True, slots=True)
class Options:
    """The values of each tunable."""

    threads: tuple[int, ...]
    rows: tuple[int, ...]  # values of the tunable that counts rows of A
    columns: tuple[int, ...]
    prefetch_stages: tuple[tuple[int, int], ...]
    min_blocks: tuple[int, ...]
    splits_row_tiles: tuple[tuple[int, int], ...] = SPLITS_ROW_TILES


def streaming_rules(options: Options, *own: Rule) -> tuple[Rule, ...]:
    """`own` are those of a way to multiply."""
    prefetches = tuple(sorted({prefetch for prefetch, _ in options.prefetch_stages}))
    return columns_within_n(options.columns), prefetch_within_k(prefetches), *own, *SPLITTING_RULES


def rows_within_m(**smallest: int) -> Rule:
    """`smallest` are the tunables that decide how many rows a block has: a block of so few is kept for any m."""

    def keeps(candidate: Candidate) -> bool:
        is_smallest = all(tunable(candidate, name) == value for name, value in smallest.items())
        block_rows = candidate.launch.rows_per_block // tunable(candidate, "row_tiles")
        return is_smallest or block_rows <= candidate.problem.m

    because = "a block of more rows than m leaves threads idle"
    return Rule("rows-within-m", "shape", because, keeps, of=tuple(smallest))


class StreamA(Family[C]):
    """Each way to multiply adds its options, rules and template, and the rows, registers and memory of a block."""

    options: ClassVar[Options]
    ring_of_a: ClassVar[bool] = False  # whether A goes through a ring in shared memory, not straight into registers
    beside_resources = ("splits", "row_tiles", "min_blocks", "evict_first")
    odd_products: ClassVar[int] = 1  # by which a probe's k differs from a whole prefetch

    @abstractmethod
    def warp_rows(self, config: C, problem: Problem) -> int:
        """Return the number of rows of C that a warp computes."""

    @abstractmethod
    def tile_depth(self, config: C) -> int:
        """Rows of B staged at a time, whole prefetches; twice as many stay where that is all of the block's."""

    @abstractmethod
    def registers(self, config: C, problem: Problem) -> int:
        """Return the number of registers of a thread for elements of A, B and C."""

    def block_rows(self, config: C, problem: Problem) -> int:
        """Return the number of rows of a tile."""
        return config.threads // WARP_THREADS * self.warp_rows(config, problem)

    def pitch(self, config: C, problem: Problem) -> int:
        """Return the number of elements from one staged row of B to the next."""
        return config.columns

    def has_one_tile(self, config: C) -> bool:
        """Return whether the text has no loop over row tiles: a block has one where k is split."""
        return config.has_splits

    def ring_bytes(self, config: C, problem: Problem) -> int:
        """Shared memory that A streams through."""
        return 0

    def few_rows(self, config: C) -> int:
        """Return the number of rows of a probe that fill a block in part, and a warp's vectors in part too."""
        return 42

    def vector_rows(self, problem: Problem) -> int:
        """Return the number of rows of a probe past whole tiles that keep A's columns aligned."""
        return 2

    def grids(self) -> Iterable[Grid[C]]:
        own = self.options
        axes = {
            "threads": own.threads,
            declared(self.config_type)[1].name: own.rows,
            "columns": own.columns,
            "prefetch stages": own.prefetch_stages,
            "splits row_tiles": own.splits_row_tiles,
            "min_blocks": own.min_blocks,
        }
        return [Grid(self.config_type, axes)]

    def resources(self, config: C, problem: Problem) -> Resources:
        element_bytes = problem.dtype.element_bytes
        in_flight = config.prefetch - config.prefetch // config.stages // 2  # columns of A
        staged = 2 * self.tile_depth(config) * self.pitch(config, problem)
        return Resources(
            threads=config.threads,
            registers=self.registers(config, problem) + OVERHEAD_REGISTERS,
            smem_bytes=staged * element_bytes + self.ring_bytes(config, problem),
            bytes_in_flight=in_flight * self.warp_rows(config, problem) * element_bytes // WARP_THREADS,
            reuse=config.columns,
        )

    def launch(self, config: C, problem: Problem) -> Launch:
        return launch_of(
            threads=config.threads,
            rows_per_block=self.block_rows(config, problem) * config.row_tiles,
            smem_bytes=self.resources(config, problem).smem_bytes,
            columns_per_block=config.columns,
            splits=config.splits,
        )

    def periods(self, config: C, problem: Problem) -> Periods:
        return Periods(self.block_rows(config, problem), config.columns, self.tile_depth(config))

    def share_step(self, config: C, problem: Problem) -> int:
        return config.prefetch

    def traffic(self, config: C, problem: Problem) -> Traffic:
        return split_traffic(problem, columns=config.columns, splits=config.splits)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Whole and part-filled blocks of rows, groups of columns and shares of k.

        B stays in shared memory in the first three, and some shares are empty; in the last two a share takes three
        tiles of B. Row tiles are loaded in each way: element by element, as vectors that end within a prefetch, as
        whole vectors, and as these before a part-filled tile. Some have an aligned A whose lines are not.
        """
        rows, prefetch, odd = self.block_rows(config, problem), config.prefetch, self.odd_products
        deep = (2 * self.tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, prefetch - odd),
            (2 * rows * config.row_tiles, 1, prefetch + odd),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (self.few_rows(config), config.columns + 1, deep - 1),
            # The last tile of rows is part-filled, yet aligned.
            ((2 * config.row_tiles - 1) * rows + self.vector_rows(problem), 2, deep),
        )

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        along_a, along_b, along_c = problem.contiguous
        return {
            "about": self.summary,
            "kernel": self.name,
            "ring_of_a": self.ring_of_a,
            "one_tile": self.has_one_tile(config),
            "most_loads": most_loads(self.resources(config, problem).registers),
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_n": along_b == "n",
            "c_along_n": along_c == "n",
            "tile_depth": self.tile_depth(config),
            "pitch": self.pitch(config, problem),
        }
