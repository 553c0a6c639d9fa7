"""The base class of the stream_a families: search space, rules, resources and probe shapes.

The kernel differs from the published TSM2 kernels in three ways. A thread has `prefetch` columns of A in registers,
in `stages` groups. As soon as the thread has multiplied a group, it loads the next columns into the group's
registers, so that loads are always in flight. Loads are 16 bytes wide. And blocks split k, since the rows of C alone
do not fill a large GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.families.family import WARP_THREADS, Family
from tsm2_tune.generator.families.stream_a.tunables import StreamAConfig
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule, columns_within_n, prefetch_within_k
from tsm2_tune.generator.split_k import SPLITTING_RULES, most_loads

C = TypeVar("C", bound=StreamAConfig)


Axes = dict[str, Sequence[Any]]


def streaming_rules(axes: Axes, *own: Rule) -> tuple[Rule, ...]:
    """Return the rules of a stream_a family with these axes. `own` has the rules that no other family has."""
    prefetches = tuple(sorted({prefetch for prefetch, _ in axes["prefetch stages"]}))
    return columns_within_n(tuple(axes["columns"])), prefetch_within_k(prefetches), *own, *SPLITTING_RULES


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

    A family defines its axes, rules and template, and the rows, registers and shared memory of a block.
    """

    has_batches = True
    ring_of_a: ClassVar[bool] = False  # whether A is copied to shared memory, not loaded straight into registers
    has_one_tile: ClassVar[bool] = True  # whether the CUDA source has no loop over row tiles if k is split
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

    def ring_bytes(self, config: C, problem: Problem) -> int:
        """Return the bytes of shared memory for A; 0 if A is loaded straight into registers."""
        return 0

    def probe_rows(self, config: C, problem: Problem) -> tuple[int, int]:
        """Return the m of the fourth probe shape, and the rows beyond whole tiles of the fifth."""
        return 42, 2

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

    def periods(self, config: C, problem: Problem) -> Periods:
        return Periods(self.block_rows(config, problem), config.columns, self.tile_depth(config))

    def share_step(self, config: C, problem: Problem) -> int:
        return config.prefetch

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return (m, n, k) of small problems that reach every branch of the kernel.

        Tiles of rows, groups of columns and splits of k are whole or partial. In the first three problems, B is
        copied to shared memory once, and some splits are empty. In the last two, a split needs more rows of B than
        both buffers hold. In the fourth, m is less than a block's rows, and ends with a partial vector. In the last,
        the last tile of rows is partial, and its vectors are whole. Some problems load A as single elements, and
        others load whole vectors, also before a partial prefetch or a partial tile.
        """
        (few, more), odd = self.probe_rows(config, problem), self.odd_products
        rows, prefetch = self.block_rows(config, problem), config.prefetch
        deep = (2 * self.tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, prefetch - odd),
            (2 * rows * config.row_tiles, 1, prefetch + odd),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (few, config.columns + 1, deep - 1),
            ((2 * config.row_tiles - 1) * rows + more, 2, deep),
        )

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "ring_of_a": self.ring_of_a,
            "one_tile": self.has_one_tile and config.has_splits,
            "most_loads": most_loads(self.resources(config, problem).registers),
            "tile_depth": self.tile_depth(config),
            "pitch": self.pitch(config, problem),
        }
