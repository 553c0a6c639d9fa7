"""X^T X of a tall and skinny X on the f64 tensor cores: X passes through shared memory.

The kernel computes half of C and copies it to the other half. A lane's fragment of X^T has the same elements as its
fragment of X. So if one warp accumulates all sums of that half, it reads every element of X from shared memory only
once. Elements of f32 are converted to f64, and products are added up in f64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.families.staged.kernel import (
    DEPTH,
    OCTET_COLUMNS,
    RING,
    STRIP_ROWS,
    VECTOR_BYTES,
    WARP_THREADS,
    SymmetricConfig,
)
from tsm2_tune.generator.families.staged.symmetric import SYMMETRIC_RULES, TILE, SymmetricKernel
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.tunables import Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, wide_splits
from tsm2_tune.generator.tiles import covering

# Values of the tunables in RING: threads, ring_threads, block_k, stages, copy.
RINGS = (
    (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 32, 32, 2, 0), (128, 32, 16, 2, 0),
    (128, 128, 64, 3, 1), (128, 128, 32, 3, 1), (128, 32, 16, 3, 1), (128, 128, 32, 4, 2),
)  # fmt: skip
# By `tile`, what to try first: threads, ring_threads, block_k, stages, copy, blocks per multiprocessor, warps.
FIRST: dict[int, tuple[tuple[int, int, int, int, int, int, int], ...]] = {
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
WARPS = (1, 2)


@dataclass(frozen=True, slots=True)
class StagedSymmetricDmmaConfig(SymmetricConfig):
    """A configuration of the family staged_symmetric_dmma: a value for each tunable."""

    family: ClassVar[str] = "staged_symmetric_dmma"

    warps: Annotated[int, Tunable("warps that share the sums of a tile")]


class StagedSymmetricDmma(SymmetricKernel[StagedSymmetricDmmaConfig]):
    name = "staged_symmetric_dmma"
    on_tensor_cores = True
    summary = "a tall and skinny matrix's transpose times itself, each product once, on the f64 tensor cores"
    template = "staged/symmetric_dmma.cu.jinja"
    dtypes = ("f32", "f64")
    rules = (HAS_F64_TENSOR_CORES, *SYMMETRIC_RULES)
    config_type = StagedSymmetricDmmaConfig

    def grids(self) -> Iterable[Grid[StagedSymmetricDmmaConfig]]:
        axes = {"tile": TILE, RING: RINGS, "splits": SPLITS_OF_GRIDS, "min_blocks": (1,), "warps": WARPS}
        return [Grid(StagedSymmetricDmmaConfig, axes, {f"tile warps {RING}": self._fills_ring})]

    def _fills_ring(self, config: StagedSymmetricDmmaConfig) -> bool:
        turns = config.block_k * self.team(config) // (config.ring_threads * DEPTH)
        wide = config.warps == 1 or config.tile == TILE[-1]
        return self.team(config) <= config.ring_threads and turns >= 1 and wide

    def team(self, config: StagedSymmetricDmmaConfig) -> int:
        return WARP_THREADS * config.warps

    def sums_of_team(self, config: StagedSymmetricDmmaConfig) -> int:
        strips = config.tile // STRIP_ROWS
        return strips * (strips + 1) * STRIP_ROWS * OCTET_COLUMNS

    def registers(self, config: StagedSymmetricDmmaConfig) -> int:
        return (self.sums_of_team(config) // config.warps + config.tile * DEPTH) // WARP_THREADS

    def pad(self, config: StagedSymmetricDmmaConfig, problem: Problem) -> int:
        """Return the padding of a line of X in shared memory, in elements, which avoids bank conflicts.

        A line is a contiguous row or column of a k tile of X. If lines are along k, threads read 8 elements along k
        of each of a few lines at the same time. If not, they read 4 elements of each of more lines, and these
        elements are 2 apart.
        """
        if problem.contiguous[0] == "k":
            return 8 if config.block_k % 16 == 0 else 0
        return VECTOR_BYTES // problem.dtype.element_bytes

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedSymmetricDmmaConfig, ...]:
        """Return configurations with one tile for all of C, best first.

        Return none if C is larger than a tile, if C has at most 8 columns, or if the device has no fast f64 tensor
        cores.
        """
        if not OCTET_COLUMNS < problem.m <= TILE[-1] or not has_f64_tensor_cores(limits, problem):
            return ()
        tile = covering(TILE, problem.m)
        return tuple(
            StagedSymmetricDmmaConfig(
                threads, ring_threads, tile, block_k, stages, copy, wide_splits(limits, blocks), 1, warps
            )
            for threads, ring_threads, block_k, stages, copy, blocks, warps in FIRST[tile]
        )
