"""X^T X of a tall and skinny X with fused multiply-adds: X passes through shared memory.

C is symmetric (Hermitian, if complex), and the kernel computes half of it. The columns of X are divided into groups.
A thread multiplies the two groups of a pair. No thread multiplies the pair (j, i) if a thread multiplies the pair (i,
j). Of a group times itself, only half is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import has_f64_tensor_cores
from tsm2_tune.generator.families.staged.kernel import RING, VECTOR_BYTES, WARP_THREADS, SymmetricConfig
from tsm2_tune.generator.families.staged.symmetric import SYMMETRIC_RULES, TILE, SymmetricKernel
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.tunables import Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, wide_splits
from tsm2_tune.generator.tiles import covering

LINES = (8, 4)  # options of `lines`: columns of X per group
STEPS = (1, 2, 4)
# Values of the tunables in RING: threads, ring_threads, block_k, stages, copy.
RINGS = (
    (128, 128, 256, 2, 0), (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 128, 3, 1), (128, 128, 64, 3, 1), (128, 128, 32, 3, 1), (128, 32, 16, 3, 1), (128, 128, 64, 3, 2),
)  # fmt: skip
MIN_BLOCKS = (1, 3)
# By `tile`, what to try first: threads, ring_threads, block_k, stages, copy, blocks per multiprocessor. Only one
# matrix is loaded, so there are more or larger stages than for two: the bytes in flight must hide memory latency.
FIRST: dict[int, tuple[tuple[int, int, int, int, int, int], ...]] = {
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
    """A configuration of the family staged_symmetric_fma: a value for each tunable."""

    family: ClassVar[str] = "staged_symmetric_fma"

    lines: Annotated[int, Tunable("columns of X in a group; a thread multiplies two groups")]
    step: Annotated[int, Tunable("products along k that one thread multiplies at a time")]


class StagedSymmetricFma(SymmetricKernel[StagedSymmetricFmaConfig]):
    name = "staged_symmetric_fma"
    summary = "a tall and skinny matrix's transpose times itself: each product once, staged once"
    template = "staged/symmetric_fma.cu.jinja"
    dtypes = FMA_DTYPES
    rules = SYMMETRIC_RULES
    config_type = StagedSymmetricFmaConfig

    def grids(self) -> Iterable[Grid[StagedSymmetricFmaConfig]]:
        axes = {
            "tile": TILE,
            RING: RINGS,
            "splits": SPLITS_OF_GRIDS,
            "min_blocks": MIN_BLOCKS,
            "lines": LINES,
            "step": STEPS,
        }
        return [Grid(StagedSymmetricFmaConfig, axes, {f"tile lines step {RING}": self.fills_ring})]

    def fills_ring(self, config: StagedSymmetricFmaConfig) -> bool:
        """Return whether a k tile has work for every thread of a pipeline.

        A thread's work is to multiply two groups of columns, or to multiply a group with itself.
        """
        pairs, halves = self.members(config), config.tile // config.lines // 2
        return (
            pairs <= config.ring_threads
            and config.block_k * pairs >= config.ring_threads * config.step
            and config.block_k * halves >= config.ring_threads
        )

    def members(self, config: StagedSymmetricFmaConfig) -> int:
        """Return the number of threads that multiply the pairs of groups of columns at the same k."""
        return (config.tile // config.lines) ** 2 // 2

    def team(self, config: StagedSymmetricFmaConfig) -> int:
        return max(self.members(config), WARP_THREADS)

    def sums_of_team(self, config: StagedSymmetricFmaConfig) -> int:
        groups = config.tile // config.lines
        return groups * (groups + 1) // 2 * config.lines**2

    def registers(self, config: StagedSymmetricFmaConfig) -> int:
        lines = config.lines
        return lines**2 + lines * (lines + 1) // 2 + 2 * lines * config.step

    def pad(self, config: StagedSymmetricFmaConfig, problem: Problem) -> int:
        """Return the padding of a line of X in shared memory, in elements, which avoids bank conflicts.

        A line is a contiguous row or column of a k tile of X. With padding, lines of neighbouring groups begin in
        adjacent banks. In a wide tile, elements adjacent in k are in adjacent banks too.
        """
        vector = VECTOR_BYTES // problem.dtype.element_bytes
        return vector if problem.contiguous[0] == "k" or config.tile >= 32 else 0

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedSymmetricFmaConfig, ...]:
        """Return configurations with one tile for all of C, best first.

        Return none if C is larger than a tile or has at most 8 columns, or if f64 tensor cores are faster.
        """
        if not 8 < problem.m <= TILE[-1] or (problem.dtype_name == "f64" and has_f64_tensor_cores(limits, problem)):
            return ()
        tile = covering(TILE, problem.m)
        lines = LINES[0] if problem.dtype.registers == 1 else LINES[1]
        along_k = problem.contiguous[0] == "k"  # whether a thread reads elements that are adjacent along k
        most = VECTOR_BYTES // problem.dtype.element_bytes  # elements of a vector

        def step_and_blocks(copy: int) -> tuple[int, int]:
            """Return `step`, and the most blocks per multiprocessor.

            Three blocks fit if a step is shorter than a vector.
            """
            if not along_k:
                return 1, 3
            return (max(most // 2, 1), 3) if copy > 0 and tile < TILE[-1] else (most, 2)

        every = (
            StagedSymmetricFmaConfig(threads, ring_threads, tile, block_k, stages, copy, splits, 1, lines, step)
            for threads, ring_threads, block_k, stages, copy, blocks in FIRST[tile]
            for step, most_blocks in (step_and_blocks(copy),)
            for splits in (wide_splits(limits, min(blocks, most_blocks)),)
        )
        return tuple(config for config in dict.fromkeys(every) if self.fills_ring(config))
