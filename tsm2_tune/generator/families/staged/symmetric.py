"""The staged kernels for a Gram matrix X^T X, which compute one of two mirrored elements.

X passes through the pipeline in shared memory. Off the diagonal of C, two mirrored tiles share the work: each
computes its elements above the tile's own diagonal. C is symmetric (Hermitian, if complex).

With fused multiply-adds, the columns of X are divided into groups. A thread multiplies the two groups of a pair. No
thread multiplies the pair (j, i) if a thread multiplies the pair (i, j). Of a group times itself, only half is
computed.

On the f64 tensor cores, a lane's fragment of X^T has the same elements as its fragment of X. So if one warp
accumulates all sums of that half, it reads every element of X from shared memory only once. Elements of f32 are
converted to f64, and products are added up in f64.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.families.family import WARP_THREADS, vector_elements
from tsm2_tune.generator.families.staged.kernel import (
    DEPTH,
    OCTET_COLUMNS,
    RING,
    RING_RULES,
    STRIP_ROWS,
    StagedKernel,
    SymmetricConfig,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule
from tsm2_tune.generator.space.tunables import Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, wide_splits
from tsm2_tune.generator.tiles import LARGEST_GRAM_TILE, LARGEST_THIN, covering, mirrored

TILE = (16, 32, LARGEST_GRAM_TILE)  # options of `tile`: columns of X per block
SYMMETRIC_RULES = (
    covering_rule("tile", "m", TILE),
    Rule(
        "tile-covers-result",
        "shape",
        "one tile should cover C: tiles beside the diagonal are slow",
        lambda c: tunable(c, "tile") >= min(c.problem.m, TILE[-1]),
        of=("tile",),
    ),
    *RING_RULES,
)

C = TypeVar("C", bound=SymmetricConfig)


class SymmetricKernel(StagedKernel[C]):
    """The base class of kernels that pass X through shared memory and compute half of X^T X."""

    about = "a matrix transposed times itself, each product once"
    least_bound = 2

    @abstractmethod
    def pad(self, config: C, problem: Problem) -> int:
        """Return the padding of a line of X in shared memory, in elements, which avoids bank conflicts.

        A line is a contiguous row or column of a k tile of X.
        """

    def stage_elements(self, config: C, problem: Problem) -> int:
        pad = self.pad(config, problem)
        if problem.contiguous[0] == "k":
            return config.tile * (config.block_k + pad)
        return config.block_k * (config.tile + pad)

    def fits(self, problem: Problem) -> bool:
        return problem.is_gram and problem.dtype_name in self.dtypes and problem.m <= LARGEST_THIN

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        tile, block_k = config.tile, config.block_k
        rings = config.splits * (config.threads // config.ring_threads)
        sizes_and_k = (
            (tile, block_k * (rings * config.stages + 3) + 4),  # several k tiles for each pipeline
            (tile + 1, 2 * block_k + 3),
            (tile - 1, max(block_k // 4 - 1, 1)),  # less than a k tile
            (tile + 4, 2 * block_k + 1),
            (tile - 4, block_k),
            (tile, 2 * block_k + 1),
            (2 * tile, block_k * (2 * rings + 1) + 2),  # several full tiles
        )
        return tuple((size, size, k) for size, k in sizes_and_k)

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "along_k": problem.contiguous[0] == "k",
            "pad": self.pad(config, problem),
            "mirrored": mirrored(problem),
            "flat_splits": self.launch(config, problem).flat_splits,
        }


LINES = (8, 4)  # options of `lines`: columns of X per group
# Values of the tunables in RING: threads, ring_threads, block_k, stages, copy.
FMA_RINGS = (
    (128, 128, 256, 2, 0), (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 128, 3, 1), (128, 128, 64, 3, 1), (128, 128, 32, 3, 1), (128, 32, 16, 3, 1), (128, 128, 64, 3, 2),
)  # fmt: skip
# By `tile`, what to try first: threads, ring_threads, block_k, stages, copy, blocks per multiprocessor. Only one
# matrix is loaded, so there are more or larger stages than for two: the bytes in flight must hide memory latency.
FMA_FIRST: dict[int, tuple[tuple[int, int, int, int, int, int], ...]] = {
    16: (
        (128, 128, 128, 3, 1, 3), (128, 128, 256, 2, 0, 3), (128, 128, 128, 2, 0, 3), (128, 128, 128, 3, 1, 2),
    ),
    32: ((128, 128, 64, 3, 1, 3), (128, 128, 128, 2, 0, 3), (128, 128, 64, 2, 0, 3), (128, 128, 128, 3, 1, 2)),
    64: (
        (128, 32, 16, 3, 1, 3), (128, 128, 64, 3, 1, 3), (128, 128, 32, 2, 0, 3), (128, 128, 64, 2, 0, 2),
        (128, 128, 32, 3, 1, 3), (128, 32, 16, 2, 0, 2),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StagedSymmetricFmaConfig(SymmetricConfig):
    family: ClassVar[str] = "staged_symmetric_fma"

    lines: Annotated[int, Tunable("columns of X in a group; a thread multiplies two groups")]
    step: Annotated[int, Tunable("products along k that one thread multiplies at a time")]

    @property
    def members(self) -> int:
        """The number of threads that multiply the pairs of groups of columns at the same k."""
        return (self.tile // self.lines) ** 2 // 2

    @property
    def fills_ring(self) -> bool:
        """Whether a k tile has work for every thread: to multiply two groups of columns, or a group with itself."""
        halves = self.tile // self.lines // 2
        return (
            self.members <= self.ring_threads
            and self.block_k * self.members >= self.ring_threads * self.step
            and self.block_k * halves >= self.ring_threads
        )


class StagedSymmetricFma(SymmetricKernel[StagedSymmetricFmaConfig]):
    summary = "a tall and skinny matrix's transpose times itself: each product once, staged once"
    template = "staged/symmetric_fma.cu.jinja"
    rules = SYMMETRIC_RULES
    config_type = StagedSymmetricFmaConfig
    axes: ClassVar = {
        "tile": TILE,
        RING: FMA_RINGS,
        "splits": SPLITS_OF_GRIDS,
        "min_blocks": (1, 3),
        "lines": LINES,
        "step": (1, 2, 4),
    }
    where: ClassVar = {f"tile lines step {RING}": attrgetter("fills_ring")}

    def team(self, config: StagedSymmetricFmaConfig) -> int:
        return max(config.members, WARP_THREADS)

    def sums_of_team(self, config: StagedSymmetricFmaConfig) -> int:
        groups = config.tile // config.lines
        return groups * (groups + 1) // 2 * config.lines**2

    def registers(self, config: StagedSymmetricFmaConfig) -> int:
        lines = config.lines
        return lines**2 + lines * (lines + 1) // 2 + 2 * lines * config.step

    def pad(self, config: StagedSymmetricFmaConfig, problem: Problem) -> int:
        # Lines of neighbouring groups begin in adjacent banks; in a wide tile, elements adjacent in k do too.
        return vector_elements(problem) if problem.contiguous[0] == "k" or config.tile >= 32 else 0

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedSymmetricFmaConfig, ...]:
        """Return configurations with one tile for all of C; none if C is larger, or other kernels are faster."""
        if not 8 < problem.m <= TILE[-1] or (problem.dtype_name == "f64" and has_f64_tensor_cores(limits, problem)):
            return ()
        tile = covering(TILE, problem.m)
        lines = LINES[0] if problem.dtype.registers == 1 else LINES[1]
        along_k = problem.contiguous[0] == "k"  # whether a thread reads elements that are adjacent along k
        most = vector_elements(problem)  # elements of a vector

        def step_and_blocks(copy: int) -> tuple[int, int]:
            """Return `step`, and the most blocks per multiprocessor: 3 fit if a step is shorter than a vector."""
            if not along_k:
                return 1, 3
            return (max(most // 2, 1), 3) if copy > 0 and tile < TILE[-1] else (most, 2)

        every = (
            StagedSymmetricFmaConfig(threads, ring_threads, tile, block_k, stages, copy, splits, 1, lines, step)
            for threads, ring_threads, block_k, stages, copy, blocks in FMA_FIRST[tile]
            for step, most_blocks in (step_and_blocks(copy),)
            for splits in (wide_splits(limits, min(blocks, most_blocks)),)
        )
        return tuple(config for config in dict.fromkeys(every) if config.fills_ring)


DMMA_RINGS = (
    (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 64, 3, 1), (128, 128, 32, 3, 1), (128, 32, 16, 3, 1), (128, 128, 32, 4, 2),
)  # fmt: skip
# By `tile`, what to try first: threads, ring_threads, block_k, stages, copy, blocks per multiprocessor, warps.
DMMA_FIRST: dict[int, tuple[tuple[int, int, int, int, int, int, int], ...]] = {
    16: (
        (128, 128, 128, 2, 0, 4, 1), (128, 128, 64, 3, 1, 4, 1), (128, 128, 128, 2, 0, 3, 1),
        (128, 128, 64, 2, 0, 4, 1),
    ),
    32: (
        (128, 128, 64, 3, 1, 3, 1), (128, 128, 64, 2, 0, 3, 1), (128, 128, 64, 2, 0, 4, 1),
        (128, 128, 32, 3, 1, 4, 1),
    ),
    64: (
        (128, 32, 16, 3, 1, 2, 1), (128, 128, 64, 3, 1, 2, 1), (128, 128, 32, 3, 1, 3, 2), (128, 128, 32, 2, 0, 2, 1),
        (128, 128, 32, 3, 1, 2, 1), (128, 128, 64, 2, 0, 2, 2), (128, 32, 16, 2, 0, 2, 1), (128, 128, 32, 4, 2, 3, 2),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StagedSymmetricDmmaConfig(SymmetricConfig):
    family: ClassVar[str] = "staged_symmetric_dmma"

    warps: Annotated[int, Tunable("warps that share the sums of a tile")]

    @property
    def fills_ring(self) -> bool:
        """Whether a k tile has work for every thread. Two warps share only the sums of a large tile."""
        team = WARP_THREADS * self.warps
        wide = self.warps == 1 or self.tile == TILE[-1]
        return team <= self.ring_threads and self.block_k * team >= self.ring_threads * DEPTH and wide


class StagedSymmetricDmma(SymmetricKernel[StagedSymmetricDmmaConfig]):
    on_tensor_cores = True
    summary = "a tall and skinny matrix's transpose times itself, each product once, on the f64 tensor cores"
    template = "staged/symmetric_dmma.cu.jinja"
    dtypes = ("f32", "f64")
    rules = (HAS_F64_TENSOR_CORES, *SYMMETRIC_RULES)
    config_type = StagedSymmetricDmmaConfig
    axes: ClassVar = {"tile": TILE, RING: DMMA_RINGS, "splits": SPLITS_OF_GRIDS, "min_blocks": (1,), "warps": (1, 2)}
    where: ClassVar = {f"tile warps {RING}": attrgetter("fills_ring")}

    def team(self, config: StagedSymmetricDmmaConfig) -> int:
        return WARP_THREADS * config.warps

    def sums_of_team(self, config: StagedSymmetricDmmaConfig) -> int:
        strips = config.tile // STRIP_ROWS
        return strips * (strips + 1) * STRIP_ROWS * OCTET_COLUMNS

    def registers(self, config: StagedSymmetricDmmaConfig) -> int:
        return (self.sums_of_team(config) // config.warps + config.tile * DEPTH) // WARP_THREADS

    def pad(self, config: StagedSymmetricDmmaConfig, problem: Problem) -> int:
        # Threads read 8 elements along k of each of a few lines at once, or 4 elements, 2 apart, of more lines.
        if problem.contiguous[0] == "k":
            return 8 if config.block_k % 16 == 0 else 0
        return vector_elements(problem)

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedSymmetricDmmaConfig, ...]:
        """Return configurations with one tile for all of C; none if C is larger, or other kernels are faster."""
        if not OCTET_COLUMNS < problem.m <= TILE[-1] or not has_f64_tensor_cores(limits, problem):
            return ()
        tile = covering(TILE, problem.m)
        return tuple(
            StagedSymmetricDmmaConfig(
                threads, ring_threads, tile, block_k, stages, copy, wide_splits(limits, blocks), 1, warps
            )
            for threads, ring_threads, block_k, stages, copy, blocks, warps in DMMA_FIRST[tile]
        )
