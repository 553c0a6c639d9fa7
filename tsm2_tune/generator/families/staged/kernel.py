"""The base classes of the staged kernels: the shared-memory pipeline, and the kernels that compute all of C.

In a kernel that computes all of C, the k tiles of all tiles of C are divided evenly among the blocks, as in stream-K.
If k is huge and C has only one or two tiles, several blocks split k. If C has many tiles, a block computes several
tiles, one after another. No multiprocessor waits for a last wave of blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Periods, Resources
from tsm2_tune.generator.families.family import STAGED_WITHOUT_VECTORS, WARP_THREADS, Family
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE, Rule
from tsm2_tune.generator.space.tunables import BlockM, BlockN, RingStages, Threads, Tunable
from tsm2_tune.generator.split_k import CHUNKS_FOR_ALL, WIDE_SPLIT_RULES
from tsm2_tune.generator.tiles import LARGEST_GRAM_TILE, LARGEST_THIN, is_general, tile_rules
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

# The extents n, m and k of an m16n8k8 mma instruction. An octet is 8 columns of C, a strip is 16 rows of C.
OCTET_COLUMNS, STRIP_ROWS, DEPTH = 8, 16, 8

RingThreads = Annotated[int, Tunable("threads that share a pipeline in shared memory: a warp or the whole block")]
Copy = Annotated[
    int,
    Tunable(
        "how operands are copied to shared memory: through registers (0), L1 and L2 (ca, 1) or only L2 (cg, 2)",
        is_constant=False,
        values=("registers", "ca", "cg"),
    ),
]
MinBlocks = Annotated[
    int, Tunable("minimum resident blocks per multiprocessor, which limits registers; 0: no limit", default=1)
]


@dataclass(frozen=True, slots=True)
class FullConfig(KernelConfig):
    """The tunables of every kernel that computes all of C (`FullKernel`)."""

    threads: Threads
    ring_threads: RingThreads
    block_m: BlockM
    block_n: BlockN
    block_k: Annotated[int, Tunable("k extent of one pipeline stage", word="block")]
    stages: RingStages
    copy: Copy
    splits: Annotated[
        int, Tunable("blocks among which the k tiles of all tiles of C are divided", default=1, is_launch=True)
    ]
    min_blocks: MinBlocks


RING = "threads ring_threads block_k stages copy"  # the tunables of the pipeline: each module has values in RINGS


@dataclass(frozen=True, slots=True)
class SymmetricConfig(KernelConfig):
    """The tunables of every kernel that computes half of a Gram matrix X^T X (`SymmetricKernel`)."""

    threads: Threads
    ring_threads: RingThreads
    tile: Annotated[int, Tunable("rows and columns of C that one block computes", word="block")]
    block_k: Annotated[int, Tunable("k extent of one pipeline stage")]
    stages: RingStages
    copy: Copy
    splits: Annotated[int, Tunable("blocks among which k is divided", default=1, is_launch=True)]
    min_blocks: MinBlocks

    @property
    def block_m(self) -> int:
        return self.tile

    @property
    def block_n(self) -> int:
        return self.tile


RING_RULES = (CHUNKS_FOR_ALL, *WIDE_SPLIT_RULES, REGISTERS_REACHABLE)

C = TypeVar("C", bound=FullConfig | SymmetricConfig)
F = TypeVar("F", bound=FullConfig)


class StagedKernel(Family[C]):
    """The base class of kernels that copy both operands through a multistage pipeline in shared memory."""

    least_bound: ClassVar[int]  # the least value of `min_blocks` that the CUDA source passes to __launch_bounds__
    has_batches = True
    without_vectors = STAGED_WITHOUT_VECTORS
    beside_resources = ("splits", "min_blocks")

    @abstractmethod
    def team(self, config: C) -> int:
        """Return the threads of a k slice, which multiply elements at the same k and accumulate a tile together."""

    @abstractmethod
    def registers(self, config: C) -> int:
        """Return the number of elements of A, B and C that a thread has in registers."""

    @abstractmethod
    def stage_elements(self, config: C, problem: Problem) -> int:
        """Return the number of elements of A and B in one pipeline stage, padding included."""

    def sums_of_team(self, config: C) -> int:
        """Return the number of partial sums that the threads of one k slice write to shared memory."""
        return config.block_m * config.block_n

    def smem_elements(self, config: C, problem: Problem) -> int:
        """Return the elements in a block's shared memory: all stages or all partial sums, whichever are more."""
        rings = config.threads // config.ring_threads * config.stages * self.stage_elements(config, problem)
        teams = config.threads // max(self.team(config), WARP_THREADS)
        return max(rings, teams * self.sums_of_team(config))

    def block_plan(self, config: C, problem: Problem) -> BlockPlan:
        in_flight = config.block_m * config.block_k * (config.stages - 1) // config.ring_threads
        resources = Resources(
            threads=config.threads,
            registers=self.registers(config) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=self.smem_elements(config, problem) * problem.dtype.element_bytes,
            bytes_in_flight=in_flight * problem.dtype.element_bytes,
            reuse=config.block_n,
        )
        return BlockPlan(resources, Periods(config.block_m, config.block_n, config.block_k))

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        bound = config.min_blocks if config.min_blocks >= self.least_bound else 0  # 0: not in __launch_bounds__
        return super().context(config, problem) | {"group_splits": GROUP_SPLITS, "min_blocks": bound}


MOST_OVER = 16_000  # products per row of C by which a block may exceed an equal share, to compute whole tiles
STATIC_SMEM_BYTES = 128  # at most; the launch does not allocate them
MANY_BLOCKS = 16  # the least `splits` for which `probe_shapes` adds shapes of many tiles


def full_rules(
    tile: tuple[int, ...], *, columns: tuple[int, ...] = (), covered: int | None = None
) -> tuple[Rule, ...]:
    """Return the rules of a kernel that computes all of C, for these options of block_m and block_n.

    `tile` has the options of block_m. They are the options of block_n too, unless `columns` lists other options. A C
    of up to `covered` rows and columns must be one tile. A C that is large in both directions may have smaller tiles,
    so that every multiprocessor gets a tile.
    """
    most = tile[-1] if covered is None else covered

    def least(candidate: Candidate) -> int:
        problem, size = candidate.problem, most
        while is_general(problem) and size > tile[0]:
            if -(-problem.m // size) * -(-problem.n // size) >= candidate.limits.sms:  # tiles that cover C
                break
            size //= 2
        return size

    return (*tile_rules(tile, columns=columns, covered=least), *RING_RULES)


class FullKernel(StagedKernel[F]):
    """The base class of kernels that pass both operands through shared memory and compute all of C."""

    about = "both operands through shared memory, equal work for all blocks"
    least_bound = 1
    dtypes: ClassVar[tuple[str, ...]] = ("f32", "f64")
    leaves_small_grams: ClassVar[bool] = True  # whether it rejects a small Gram matrix: `SymmetricKernel` does half

    @abstractmethod
    def pads(self, config: F, problem: Problem) -> tuple[int, int]:
        """Return the padding of a line of A, and of a line of B, in shared memory, in elements.

        A line is a contiguous row or column of a k tile. The padding avoids bank conflicts.
        """

    def stage_elements(self, config: F, problem: Problem) -> int:
        along_a, along_b, _ = problem.contiguous
        rows, columns, block_k = config.block_m, config.block_n, config.block_k
        a_pad, b_pad = self.pads(config, problem)
        a = rows * (block_k + a_pad) if along_a == "k" else block_k * (rows + a_pad)
        b = columns * (block_k + b_pad) if along_b == "k" else block_k * (columns + b_pad)
        return a + b

    def block_plan(self, config: F, problem: Problem) -> BlockPlan:
        block_plan = super().block_plan(config, problem)
        resources = block_plan.resources
        lines = config.block_m + config.block_n
        fetched = lines * config.block_k // config.ring_threads if config.copy == 0 else 0  # loads in registers
        registers = resources.registers + fetched * problem.dtype.registers
        # And a vector for each thread, with which blocks add up partial sums.
        smem_bytes = resources.smem_bytes + config.threads * VECTOR_BYTES
        return replace(
            block_plan,
            resources=replace(resources, registers=registers, smem_bytes=smem_bytes + STATIC_SMEM_BYTES),
            launch_fields={"persistent": True, "smem_bytes": smem_bytes},
        )

    def sums_in_registers(self, config: F) -> bool:
        """Return whether one thread accumulates all products of an element, so that sums are not added up."""
        return False

    def fits(self, problem: Problem) -> bool:
        small_gram = problem.is_gram and problem.m <= LARGEST_GRAM_TILE
        if problem.dtype_name not in self.dtypes or (small_gram and self.leaves_small_grams):
            return False
        return max(problem.m, problem.n) <= self.largest(problem)

    def largest(self, problem: Problem) -> int:
        """Return the most rows or columns of C for which this kernel is tried."""
        return LARGEST_THIN

    def probe_shapes(self, config: F, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, block_k = config.block_m, config.block_n, config.block_k
        rings = config.splits * (config.threads // config.ring_threads)
        of_tiles = (
            (rows, columns, block_k * (rings * (config.stages + 1) - 2) + 4),  # several k tiles for each pipeline
            (rows + 1, max(columns - 1, 1), 2 * block_k + 3),
            (max(rows - 1, 1), columns + 1, max(block_k // 4 - 1, 1)),  # less than a k tile
            (rows + 2, columns + 4, 2 * block_k + 1),
            (rows + 1, columns + 1, 2 * block_k),
            (max(rows - 2, 1), columns, block_k),  # a tile that is partial in one direction only
            (rows, max(columns - 4, 1), block_k),
        )
        of_blocks = (
            (2 * rows, columns, (config.splits // 2 + 3) * block_k),  # many blocks share each of two tiles
            ((config.splits // 2 + 1) * rows - 1, columns + 1, 2 * block_k),  # more tiles than blocks
            ((config.splits // 2 + 1) * rows, 1, 3 * block_k),  # a block's share spans two tiles
        )
        # With few blocks `of_blocks` would reach no other branch. A square C would have far too many tiles.
        return of_tiles if config.splits < MANY_BLOCKS or problem.is_gram else (*of_tiles, *of_blocks)

    def context(self, config: F, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        a_pad, b_pad = self.pads(config, problem)
        lies_alike = (along_a == "k") == (along_b == "k") and config.block_m == config.block_n
        return {
            **super().context(config, problem),
            "a_pad": a_pad,
            "b_pad": b_pad,
            "symmetric": lies_alike and a_pad == b_pad,
            "sums_in_registers": self.sums_in_registers(config),
            "smem_elements": self.smem_elements(config, problem),
            "most_over": MOST_OVER // problem.dtype.parts**2,
        }
