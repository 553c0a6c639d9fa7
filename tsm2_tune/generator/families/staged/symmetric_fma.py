"""X^T X of a tall and skinny X by fused multiply-adds: each product once, X staged once.

The products of columns i and j are those of j and i. Threads multiply groups of columns by each other: each pair of
groups once, and of a group by itself half.
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
from tsm2_tune.generator.split_k import WIDE_SPLITS, wide_splits
from tsm2_tune.generator.tiles import covering

LINES = (8, 4)  # columns of X in a group
STEPS = (1, 2, 4)
# Threads of a block and of a ring, the chunk and the places of the ring, and what is on the way there.
RINGS = (
    (128, 128, 256, 2, 0), (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 128, 3, 1), (128, 128, 64, 3, 1), (128, 128, 32, 3, 1), (128, 32, 16, 3, 1), (128, 128, 64, 3, 2),
)  # fmt: skip
MIN_BLOCKS = (1, 3)
# Rings to try first for a tile, each with blocks on a multiprocessor. The bytes in flight must hide the memory's
# latency, and is of one matrix only: more or larger places than for a product of two.
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
    """Every choice that the template needs."""

    family: ClassVar[str] = "staged_symmetric_fma"

    lines: Annotated[int, Tunable("columns of X in a group, two of which a thread multiplies")]
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
            "splits": WIDE_SPLITS,
            "min_blocks": MIN_BLOCKS,
            "lines": LINES,
            "step": STEPS,
        }
        return [Grid(StagedSymmetricFmaConfig, axes, {f"tile lines step {RING}": self.fills_ring})]

    def fills_ring(self, config: StagedSymmetricFmaConfig) -> bool:
        """Return whether every thread of a ring has products of a chunk, of pairs of groups and of odd groups."""
        pairs, halves = self.members(config), config.tile // config.lines // 2
        return (
            pairs <= config.ring_threads
            and config.block_k * pairs >= config.ring_threads * config.step
            and config.block_k * halves >= config.ring_threads
        )

    def members(self, config: StagedSymmetricFmaConfig) -> int:
        """Return the number of threads that have a pair of groups each."""
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
        """Lines along k of neighbouring groups lie in banks side by side; so do neighbours in k of wide tiles."""
        vector = VECTOR_BYTES // problem.dtype.element_bytes
        return vector if problem.contiguous[0] == "k" or config.tile >= 32 else 0

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedSymmetricFmaConfig, ...]:
        """Return every product of C in one tile. None if it has more, or where TSMT or the tensor cores do better."""
        if not 8 < problem.m <= TILE[-1] or (problem.dtype_name == "f64" and has_f64_tensor_cores(limits, problem)):
            return ()
        tile = covering(TILE, problem.m)
        lines = LINES[0] if problem.dtype.registers == 1 else LINES[1]
        along_k = problem.contiguous[0] == "k"  # where a read has products that are neighbours
        most = VECTOR_BYTES // problem.dtype.element_bytes  # that fit a vector

        def step_and_blocks(copy: int) -> tuple[int, int]:
            """Half a vector's products are faster if they leave registers for a third block."""
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
