"""The base class of the stream_a families: search space, rules, launch, traffic and probe shapes.

The kernel differs from the published TSM2 kernels in three ways. A thread has `prefetch` columns of A in registers,
in `stages` groups. As soon as the thread has multiplied a group, it loads the next columns into the group's
registers, so that loads are always in flight. Loads are 16 bytes wide. And blocks split k, since the rows of C alone
do not fill a large GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from tsm2_tune.generator.config import Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.families.stream_a.tunables import StreamAConfig
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
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
    """The options of each tunable in the search space of a family."""

    threads: tuple[int, ...]
    rows: tuple[int, ...]  # options of the family's tunable for rows of A, such as `strips`
    columns: tuple[int, ...]
    prefetch_stages: tuple[tuple[int, int], ...]
    min_blocks: tuple[int, ...]
    splits_row_tiles: tuple[tuple[int, int], ...] = SPLITS_ROW_TILES


def streaming_rules(options: Options, *own: Rule) -> tuple[Rule, ...]:
    """Return the rules of a stream_a family with these options. `own` has the rules that no other family has."""
    prefetches = tuple(sorted({prefetch for prefetch, _ in options.prefetch_stages}))
    return columns_within_n(options.columns), prefetch_within_k(prefetches), *own, *SPLITTING_RULES


def rows_within_m(**smallest: int) -> Rule:
    """Return the rule that drops blocks of more rows than m, but keeps the smallest block.

    `smallest` maps the tunables that determine a block's rows to their least options.
    """

    def keeps(candidate: Candidate) -> bool:
        is_smallest = all(tunable(candidate, name) == value for name, value in smallest.items())
        block_rows = candidate.launch.rows_per_block // tunable(candidate, "row_tiles")
        return is_smallest or block_rows <= candidate.problem.m

    because = "a block of more rows than m leaves threads idle"
    return Rule("rows-within-m", "shape", because, keeps, of=tuple(smallest))


class StreamA(Family[C]):
    """The base class of the stream_a families.

    A family defines its options, rules and template, and the rows, registers and shared memory of a block.
    """

    options: ClassVar[Options]
    has_batches = True
    ring_of_a: ClassVar[bool] = False  # whether A is copied to shared memory, not loaded straight into registers
    beside_resources = ("splits", "row_tiles", "min_blocks", "evict_first")
    odd_products: ClassVar[int] = 1  # the difference of a probe shape's k from a multiple of `prefetch`

    @abstractmethod
    def warp_rows(self, config: C, problem: Problem) -> int:
        """Return the number of rows of C that a warp computes."""

    @abstractmethod
    def tile_depth(self, config: C) -> int:
        """Return the number of rows of B in one of two shared-memory buffers, a multiple of `prefetch`.

        If the two buffers together have room for all rows of B that a block needs, the block copies B only once.
        """

    @abstractmethod
    def registers(self, config: C, problem: Problem) -> int:
        """Return the number of registers of a thread for its elements of A, B and C."""

    def block_rows(self, config: C, problem: Problem) -> int:
        """Return the number of rows of C in a block's tile."""
        return config.threads // WARP_THREADS * self.warp_rows(config, problem)

    def pitch(self, config: C, problem: Problem) -> int:
        """Return the number of elements from one row of B to the next in shared memory."""
        return config.columns

    def has_one_tile(self, config: C) -> bool:
        """Return whether a block computes one tile of rows, so that the CUDA source has no loop over row tiles.

        A block has one tile if k is split.
        """
        return config.has_splits

    def ring_bytes(self, config: C, problem: Problem) -> int:
        """Return the bytes of shared memory for A; 0 if A is loaded straight into registers."""
        return 0

    def few_rows(self, config: C) -> int:
        """Return the m of a probe shape: less than a block's rows, with a partial vector at the end."""
        return 42

    def vector_rows(self, problem: Problem) -> int:
        """Return the rows by which a probe shape's m exceeds whole tiles while A's columns stay 16-byte aligned."""
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
        in_flight = config.prefetch - config.prefetch // config.stages // 2  # columns of A in flight, on average
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

    def fits(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return (m, n, k) of small problems that reach every branch of the kernel.

        Tiles of rows, groups of columns and splits of k are whole or partial. In the first three problems, B is
        copied to shared memory once, and some splits are empty. In the last two, a split needs more rows of B than
        both buffers hold. Some problems load A as single elements, and others load whole vectors, also before a
        partial prefetch or a partial tile. Verification also passes an aligned A with an odd leading dimension.
        """
        rows, prefetch, odd = self.block_rows(config, problem), config.prefetch, self.odd_products
        deep = (2 * self.tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, prefetch - odd),
            (2 * rows * config.row_tiles, 1, prefetch + odd),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (self.few_rows(config), config.columns + 1, deep - 1),
            # The last tile of rows is partial, and its vectors are whole.
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
