"""The base classes of the kernels for inner products: a block computes a tile of C for its split of k.

The threads of a block form k slices (CUTLASS: sliced-K). The threads of a k slice accumulate the whole tile over
their own part of k. Partial sums are added up in a fixed order: in a warp, in a block, over groups of blocks, over
all blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.config import FLAT_SPLITS, GROUP_SPLITS, KernelConfig, Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.family import WARP_THREADS, Family
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import BlockM, BlockN, Threads, Tunable
from tsm2_tune.generator.split_k import (
    MOST_ADDERS,
    SMALL_K,
    flat_splits,
    splits_of_few_k_tiles,
    wide_splits,
)
from tsm2_tune.generator.tiles import LARGEST_THIN
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

# By its bytes, the CUDA type with which a vector of sums is loaded and stored.
FLOATS, DOUBLES = {4: "float", 8: "float2", 16: "float4"}, {8: "double", 16: "double2"}

Splits = Annotated[int, Tunable("blocks among which k is divided", default=1, is_launch=True)]


@dataclass(frozen=True, slots=True)
class InnerConfig(KernelConfig):
    """The first tunables of every family of inner products; subclasses add `stages`, `splits` and their own."""

    threads: Threads
    block_m: BlockM
    block_n: BlockN

    @property
    def tile_elements(self) -> int:
        """The number of elements of C in a block's tile."""
        return self.block_m * self.block_n

    @property
    def lanes_of_k(self) -> int:
        """The number of k slices of a block: groups of threads, each with its own part of k."""
        raise NotImplementedError

    def warps_of_k(self, rows: int, columns: int) -> int:
        """Return the number of k slices if each warp computes a tile of these rows and columns."""
        return self.threads // WARP_THREADS // ((self.block_m // rows) * (self.block_n // columns))


C = TypeVar("C", bound=InnerConfig)


class Inner(Family[C]):
    """The base class of families of inner products: each k slice of threads has a small tile of C in registers."""

    has_batches = True
    beside_resources = ("splits", "min_blocks", "evict_first")
    most_adders: ClassVar[int] = MOST_ADDERS  # the most groups of a block's threads that add up sums of splits
    most_loads: ClassVar[int] = 10  # partial sums that a thread loads at a time: they fit into 64 registers
    divides: ClassVar[bool] = False  # whether a block divides its index to find its tile, even if C is one tile wide
    moved_as_doubles: ClassVar[tuple[str, ...]] = ("f64", "c128")  # types whose sums are moved as doubles, not floats
    is_flat: ClassVar[bool] = True  # whether one block adds up the sums of more splits if the tile is small

    @abstractmethod
    def block_k(self, config: C, problem: Problem) -> int:
        """Return the extent of a k tile: the products along k that a block computes at a time."""

    @abstractmethod
    def registers(self, config: C, problem: Problem) -> int:
        """Return the number of registers of a thread for its sums and its elements of A and B."""

    @abstractmethod
    def bytes_in_flight(self, config: C, problem: Problem) -> int:
        """Return the bytes that one thread has requested and not yet used."""

    def reuse(self, config: C) -> int:
        """Return the number of columns of C for which an element of A is loaded once."""
        return config.block_n

    def ring_bytes(self, config: C, problem: Problem) -> int:
        """Return the bytes of shared memory for A and B. The partial sums reuse this memory."""
        return 0

    def sums_of_tile(self, config: C) -> int:
        """Return the partial sums per element of C in shared memory: one for each k slice, or for each warp."""
        return min(config.lanes_of_k, config.threads // WARP_THREADS)

    def sum_width(self, config: C, problem: Problem) -> int:
        """Return the number of sums that one access moves: at most 16 bytes, and a divisor of the tile's elements."""
        return gcd(config.tile_elements, VECTOR_BYTES // problem.dtype.sum.element_bytes)

    def adders(self, config: C, problem: Problem) -> int:
        """Return the groups of threads that add up sums of splits. Each thread adds up a vector of the tile."""
        vectors = config.tile_elements // self.sum_width(config, problem)
        return max(min(self.most_adders, config.threads // vectors), 1)

    def block_plan(self, config: C, problem: Problem) -> BlockPlan:
        copies = max(self.sums_of_tile(config), self.adders(config, problem))
        sum_bytes = copies * config.tile_elements * problem.dtype.sum.element_bytes
        resources = Resources(
            threads=config.threads,
            registers=self.registers(config, problem) + OVERHEAD_REGISTERS,
            smem_bytes=max(self.ring_bytes(config, problem), sum_bytes),
            bytes_in_flight=self.bytes_in_flight(config, problem),
            reuse=self.reuse(config),
        )
        tile = Periods(config.block_m, config.block_n, self.block_k(config, problem))
        return BlockPlan(resources, tile, launch_fields={"flat_splits": self.flat_splits(config)})

    def flat_splits(self, config: C) -> int:
        """Return the most splits of k whose sums one block adds up, see Launch.flat_splits."""
        return flat_splits(config.tile_elements) if self.is_flat else FLAT_SPLITS

    def fits(self, problem: Problem) -> bool:
        return super().fits(problem) and max(problem.m, problem.n) <= LARGEST_THIN

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        width, size = self.sum_width(config, problem), problem.dtype.sum.element_bytes
        return super().context(config, problem) | {
            "min_blocks": int(config.tunables.get("min_blocks", 0)),  # 0: not in __launch_bounds__
            "most_loads": self.most_loads,
            "divides": self.divides,
            "sum_width": width,
            "sum_bits": (DOUBLES if problem.dtype_name in self.moved_as_doubles else FLOATS)[width * size],
            "flat_splits": self.flat_splits(config),
            "group_splits": GROUP_SPLITS,
            "adders": self.adders(config, problem),
        }


class Streamed(Inner[C]):
    """The base class of families whose threads load A and B straight into registers, not through shared memory."""

    rest_steps: ClassVar[int] = 0  # steps along k after the whole k tiles of the first probe shape

    @abstractmethod
    def loaded(self, config: C, problem: Problem) -> int:
        """Return the number of elements of A and B that one thread has in registers, in flight or arrived."""

    def step(self, config: C) -> int:
        """Return the number of products along k that a k slice loads at a time."""
        return int(config.tunables["step"])

    def block_k(self, config: C, problem: Problem) -> int:
        return config.lanes_of_k * self.step(config)

    def bytes_in_flight(self, config: C, problem: Problem) -> int:
        return self.loaded(config, problem) * problem.dtype.element_bytes // 2

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        splits, stages = (int(config.tunables[name]) for name in ("splits", "stages"))
        rows, columns = config.block_m, config.block_n
        block_k, step = self.block_k(config, problem), self.step(config)
        return (
            # Several k tiles for each split.
            (rows, columns, block_k * (splits * stages + 3) + self.rest_steps * step),
            (rows + 1, max(columns - 1, 1), 2 * block_k + step + 1),
            (max(rows - 1, 1), columns + 1, max(step - 1, 1)),  # less than a step
        )


def proposed_splits(problem: Problem, limits: DeviceLimits, *, block_k: int, blocks: int) -> list[int]:
    """Return the numbers of splits to propose: `blocks` per multiprocessor, or fewer for a small k."""
    if problem.k > SMALL_K:
        return [wide_splits(limits, blocks)]
    return splits_of_few_k_tiles(problem.k, block_k=block_k, stages=1, limits=limits)[:2]
