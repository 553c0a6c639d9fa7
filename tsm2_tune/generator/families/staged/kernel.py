"""The base class of the staged kernels: the shared-memory pipeline, and a block's resources."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources
from tsm2_tune.generator.families.family import STAGED_WITHOUT_VECTORS, Family
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.launch_table import launch_of
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE, RESOURCES, Rule
from tsm2_tune.generator.space.tunables import BlockM, BlockN, RingStages, Threads, Tunable
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS

WARP_THREADS = 32
VECTOR_BYTES = 16
# The extents n, m and k of an m16n8k8 mma instruction. An octet is 8 columns of C, a strip is 16 rows of C.
OCTET_COLUMNS, STRIP_ROWS, DEPTH = 8, 16, 8

RingThreads = Annotated[
    int,
    Tunable("threads that share a pipeline in shared memory: a warp or the whole block"),
]
Copy = Annotated[
    int,
    Tunable(
        "how operands are copied to shared memory: through registers (0), L1 and L2 (ca, 1) or only L2 (cg, 2)",
        is_constant=False,
        values=("registers", "ca", "cg"),
    ),
]
MinBlocks = Annotated[
    int,
    Tunable("minimum resident blocks per multiprocessor, which limits registers; 0: no limit", default=1),
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


def _chunks_for_all(candidate: Candidate) -> bool:
    problem, launch = candidate.problem, candidate.launch
    rings = tunable(candidate, "splits") * (tunable(candidate, "threads") // tunable(candidate, "ring_threads"))
    smallest = tunable(candidate, "splits") == WIDE_SPLITS[0]
    tiles = launch.tiles(problem.m, problem.n) if launch.persistent else 1  # tiles of C that share the blocks
    return smallest or tiles * problem.k >= rings * tunable(candidate, "block_k")


RING_RULES = (
    Rule(
        "chunks-for-all",
        "shape",
        "every pipeline should have at least one k tile",
        _chunks_for_all,
        of=(RESOURCES, "splits"),
    ),
    *WIDE_SPLIT_RULES,
    REGISTERS_REACHABLE,
)

C = TypeVar("C", bound=FullConfig | SymmetricConfig)


class StagedKernel(Family[C]):
    """The base class of kernels that copy both operands through a multistage pipeline in shared memory."""

    about: ClassVar[str]  # a phrase for the comment at the head of the CUDA source
    persistent: ClassVar[bool]  # whether the grid has `splits` blocks, which share all tiles of C
    least_bound: ClassVar[int]  # the least value of `min_blocks` that the CUDA source passes to __launch_bounds__
    has_batches = True
    without_vectors = STAGED_WITHOUT_VECTORS
    beside_resources = ("splits", "min_blocks")

    @abstractmethod
    def team(self, config: C) -> int:
        """Return the number of threads per k slice.

        The threads of a k slice multiply elements at the same k. Together they accumulate all sums of a tile.
        """

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

    def dynamic_smem_bytes(self, config: C, problem: Problem) -> int:
        """Return the bytes of dynamic shared memory per block."""
        return self.smem_elements(config, problem) * problem.dtype.element_bytes

    def resources(self, config: C, problem: Problem) -> Resources:
        on_their_way = config.block_m * config.block_k * (config.stages - 1) // config.ring_threads
        return Resources(
            threads=config.threads,
            registers=self.registers(config) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=self.dynamic_smem_bytes(config, problem),
            bytes_in_flight=on_their_way * problem.dtype.element_bytes,
            reuse=config.block_n,
        )

    def launch(self, config: C, problem: Problem) -> Launch:
        return launch_of(
            threads=config.threads,
            rows_per_block=config.block_m,
            columns_per_block=config.block_n,
            smem_bytes=self.dynamic_smem_bytes(config, problem),
            splits=config.splits,
            persistent=self.persistent,
        )

    def periods(self, config: C, problem: Problem) -> Periods:
        return Periods(config.block_m, config.block_n, config.block_k)

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        bound = config.min_blocks if config.min_blocks >= self.least_bound else 0  # 0: not in __launch_bounds__
        return {
            "about": self.about,
            "kernel": self.name,
            "storage": problem.storage,
            "c_along_n": problem.row_major_c,
            "group_splits": GROUP_SPLITS,
            "min_blocks": bound,
        }
