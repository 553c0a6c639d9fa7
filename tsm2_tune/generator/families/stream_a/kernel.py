"""stream_a: the configurations, the base class, and the families with fused multiply-adds or f64 tensor cores.

The kernel differs from the published TSM2 kernels in three ways. A thread has `prefetch` columns of A in registers,
in `stages` groups. As soon as the thread has multiplied a group, it loads the next columns into the group's
registers, so that loads are always in flight. Loads are 16 bytes wide. And blocks split k, since the rows of C alone
do not fill a large GPU.

With fused multiply-adds, a thread loads vectors of rows of A and computes all of these rows itself.

On the f64 tensor cores, A's fragments are loaded from device memory straight into registers. The rows and columns of
a fragment may be permuted if the permutations in A, B and C agree. So a lane's two rows of a fragment are adjacent in
a column-major A, and its two columns are adjacent in a row-major A. One load moves both.

A complex product is four real products. The real and imaginary parts of A are adjacent in memory, so a 16-byte load
moves both parts. The f64 tensor cores are as fast as f32 FMAs and leave most of the issue slots free. So the kernel
multiplies c64 on the f64 tensor cores too, in double precision.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.config import KernelConfig, Periods, Resources
from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.families.family import WARP_THREADS, Family, vector_elements
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import RESOURCES, Rule, covering_rule, rows_within_m
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, PartsOfK, RowTiles, Tunable
from tsm2_tune.generator.split_k import SPLITS_ROW_TILES, SPLITTING_RULES, most_loads
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

Threads = Annotated[int, Tunable("threads of a block", symbol="t1")]
ColumnsOfWarp = Annotated[int, Tunable("columns of C that one warp accumulates in registers", symbol="t2")]
PrefetchOfWarp = Annotated[
    int, Tunable("columns of A that one warp has in registers, in flight or in use", symbol="t3")
]
Stages = Annotated[int, Tunable("pipeline stages, each with an equal part of the prefetched columns")]


@dataclass(frozen=True, slots=True)
class StreamAFmaConfig(KernelConfig):
    family: ClassVar[str] = "stream_a_fma"

    threads: Threads
    vectors: Annotated[int, Tunable("16-byte pieces of a column of A that one thread loads", default=1)]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2")]
    prefetch: Annotated[
        int,
        Tunable("columns of A that one thread has in registers, in flight or in use", symbol="t3"),
    ]
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamADmmaConfig(KernelConfig):
    family: ClassVar[str] = "stream_a_dmma"

    threads: Threads
    strips: Annotated[int, Tunable("m16 tiles of C that one warp computes")]
    columns: ColumnsOfWarp
    prefetch: PrefetchOfWarp
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamAComplexDmmaConfig(StreamADmmaConfig):
    family: ClassVar[str] = "stream_a_complex_dmma"

    strips: Annotated[int, Tunable("strips of C that one warp computes: of 8 rows for c128, of 16 for c64")]


@dataclass(frozen=True, slots=True)
class Mma16Config(KernelConfig):
    """The common tunables of the stream_a families on tensor cores in 16-bit floats and TF32."""

    threads: Threads
    lane_rows: Annotated[int, Tunable("rows of C that one lane accumulates, an eighth of its warp's rows")]
    columns: ColumnsOfWarp
    prefetch: PrefetchOfWarp
    stages: Stages
    splits: PartsOfK
    row_tiles: RowTiles
    min_blocks: MinBlocks


@dataclass(frozen=True, slots=True)
class StreamAMma16Config(Mma16Config):
    family: ClassVar[str] = "stream_a_mma16"

    evict_first: EvictFirst = 1


@dataclass(frozen=True, slots=True)
class StreamATf32Config(StreamAMma16Config):
    family: ClassVar[str] = "stream_a_tf32"


@dataclass(frozen=True, slots=True)
class StreamAMma16RingConfig(Mma16Config):
    family: ClassVar[str] = "stream_a_mma16_ring"

    prefetch: Annotated[
        int, Tunable("columns of A that one warp has in shared memory, in flight or in use", symbol="t3")
    ]


@dataclass(frozen=True, slots=True)
class StreamATf32RingConfig(StreamAMma16RingConfig):
    family: ClassVar[str] = "stream_a_tf32_ring"


StreamAConfig = StreamAFmaConfig | StreamADmmaConfig | Mma16Config
C = TypeVar("C", bound=StreamAConfig)


Axes = dict[str, Sequence[Any]]


def streaming_rules(axes: Axes, *own: Rule) -> tuple[Rule, ...]:
    """Return the rules of a stream_a family with these axes. `own` has further rules of the family."""
    prefetches = tuple(sorted({prefetch for prefetch, _ in axes["prefetch stages"]}))
    return (
        covering_rule("columns", "n", axes["columns"]),
        covering_rule("prefetch", "k", prefetches),
        *own,
        *SPLITTING_RULES,
    )


class StreamA(Family[C]):
    """The base class. A family has axes, rules, a template, and the rows, registers and shared memory of a block."""

    has_batches = True
    ring_of_a: ClassVar[bool] = False  # whether A is copied to shared memory, not loaded straight into registers
    has_one_tile: ClassVar[bool] = True  # whether the CUDA source has no loop over row tiles if k is split
    beside_resources = ("splits", "row_tiles", "min_blocks", "evict_first")
    c_vector_bytes: ClassVar[int] = 0  # see Tiling.c_vector_bytes
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

    def block_plan(self, config: C, problem: Problem) -> BlockPlan:
        element_bytes = problem.dtype.element_bytes
        in_flight = config.prefetch - config.prefetch // config.stages // 2  # columns of A in flight, on average
        staged = 2 * self.tile_depth(config) * self.pitch(config, problem)
        resources = Resources(
            threads=config.threads,
            registers=self.registers(config, problem) + OVERHEAD_REGISTERS,
            smem_bytes=staged * element_bytes + self.ring_bytes(config, problem),
            bytes_in_flight=in_flight * self.warp_rows(config, problem) * element_bytes // WARP_THREADS,
            reuse=config.columns,
        )
        tile = Periods(self.block_rows(config, problem), config.columns, self.tile_depth(config))
        return BlockPlan(resources, tile, config.prefetch, tiling_fields={"c_vector_bytes": self.c_vector_bytes})

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        (few, more), odd = self.probe_rows(config, problem), self.odd_products
        rows, prefetch = self.block_rows(config, problem), config.prefetch
        deep = (2 * self.tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, prefetch - odd),  # B is copied once; some splits are empty
            (2 * rows * config.row_tiles, 1, prefetch + odd),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (few, config.columns + 1, deep - 1),  # more rows of B for a split than both buffers hold
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


FMA_AXES: Axes = {
    "threads": (64, 128),
    "vectors": (1, 2),
    "columns": (1, 2, 3, 4, 6, 8, 12, 16),
    "prefetch stages": ((4, 2), (8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 8), (32, 8)),
    "splits row_tiles": SPLITS_ROW_TILES,
    "min_blocks": (1, 2, 4, 6),
}
TILE_DEPTH = 64  # rows of B in one shared-memory buffer


class StreamAFma(StreamA[StreamAFmaConfig]):
    summary = "large A times skinny B: A streams through registers, k is split over blocks"
    template = "stream_a/fma.cu.jinja"
    c_vector_bytes = VECTOR_BYTES
    axes = FMA_AXES
    rules = streaming_rules(FMA_AXES, rows_within_m(threads=64, vectors=1))
    config_type = StreamAFmaConfig

    def fits(self, problem: Problem) -> bool:
        return problem.contiguous[0] == "m" and super().fits(problem)

    def warp_rows(self, config: StreamAFmaConfig, problem: Problem) -> int:
        return WARP_THREADS * config.vectors * vector_elements(problem)

    def probe_rows(self, config: StreamAFmaConfig, problem: Problem) -> tuple[int, int]:
        return config.threads + 34, vector_elements(problem)

    def tile_depth(self, config: StreamAFmaConfig) -> int:
        return TILE_DEPTH

    def pitch(self, config: StreamAFmaConfig, problem: Problem) -> int:
        """Return the elements from one row of B to the next: a vector of padding avoids bank conflicts."""
        padded = config.columns % 8 == 0 and problem.contiguous[1] == "k"
        return config.columns + (vector_elements(problem) if padded else 0)

    def registers(self, config: StreamAFmaConfig, problem: Problem) -> int:
        rows = config.vectors * vector_elements(problem)
        return (rows * (config.columns + config.prefetch) + config.columns) * problem.dtype.registers


REAL: Axes = {
    "threads": (64, 128, 256),
    "strips": (1, 2, 4),
    "columns": (8, 16, 32, 64),
    "prefetch stages": ((16, 2), (32, 2), (32, 4), (64, 2), (64, 4)),
    "splits row_tiles": SPLITS_ROW_TILES,
    "min_blocks": (1, 2, 3, 4, 6),
}
COMPLEX = REAL | {"columns": (8, 16, 32), "prefetch stages": ((16, 2), (32, 2), (32, 4))}
STRIP_ROWS = 16  # rows per strip, for f64
STRIP_VECTORS = 8  # vectors of rows per strip, for complex numbers
MMA_REGISTERS = 64  # ptxas 13.0 rejects m16n8k8 of doubles if a thread may have 63 registers or fewer


def _registers_for_mma(candidate: Candidate) -> bool:
    threads = candidate.resources.threads * tunable(candidate, "min_blocks")
    return candidate.limits.registers_per_sm // threads >= MMA_REGISTERS


def _rules(axes: Axes) -> tuple[Rule, ...]:
    registers_for_mma = Rule(
        "registers-for-mma",
        "limit",
        f"ptxas compiles an m16 mma of doubles only if a thread may have {MMA_REGISTERS} registers",
        _registers_for_mma,
        of=(RESOURCES, "min_blocks"),
    )
    return HAS_F64_TENSOR_CORES, registers_for_mma, *streaming_rules(axes, rows_within_m(threads=64, strips=1))


class StreamADmma(StreamA[StreamADmmaConfig]):
    summary = "large or tall A times skinny B on the f64 tensor cores, A loaded straight into fragments"
    template = "stream_a/dmma.cu.jinja"
    on_tensor_cores = True
    c_vector_bytes = VECTOR_BYTES
    dtypes: ClassVar[tuple[str, ...]] = ("f64",)
    axes = REAL
    odd_products = 2
    rules = _rules(REAL)
    config_type: type[StreamADmmaConfig] = StreamADmmaConfig

    def warp_rows(self, config: StreamADmmaConfig, problem: Problem) -> int:
        return STRIP_ROWS * config.strips

    def tile_depth(self, config: StreamADmmaConfig) -> int:
        return max(32 if config.columns > 32 else 64, config.prefetch)

    def registers(self, config: StreamADmmaConfig, problem: Problem) -> int:
        elements_of_warp = self.warp_rows(config, problem) * (config.columns + config.prefetch)
        return elements_of_warp // WARP_THREADS * problem.dtype.registers


class StreamAComplexDmma(StreamADmma):
    summary = "large or tall A times skinny B, complex, on the f64 tensor cores, A loaded straight into fragments"
    template = "stream_a/complex_dmma.cu.jinja"
    dtypes = ("c64", "c128")
    axes = COMPLEX
    odd_products = 1
    rules = _rules(COMPLEX)
    config_type = StreamAComplexDmmaConfig

    def warp_rows(self, config: StreamADmmaConfig, problem: Problem) -> int:
        return STRIP_VECTORS * vector_elements(problem) * config.strips

    def tile_depth(self, config: StreamADmmaConfig) -> int:
        return 32

    def registers(self, config: StreamADmmaConfig, problem: Problem) -> int:
        width = vector_elements(problem)
        # Sums, of two registers for each double; loads of A in flight; fragments of A and B.
        return config.strips * (width * config.columns + config.prefetch + 8 * width) + 8
