"""The staged kernel for f32 on the f64 tensor cores: floats in shared memory are converted to fragments of doubles.

On Hopper the f64 tensor cores are as fast as f32 FMAs, but an instruction of the tensor cores does 1024
multiply-adds, and a warp's FMA instruction does 32. So issue slots are free to load and convert operands. A warp
converts the elements of its warp tile: each element of A once for each warp in its row of warps, each element of B
once for each warp in its column of warps. Products are exact. A block rounds its sums to f32 at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.families.staged.full import full_rules
from tsm2_tune.generator.families.staged.kernel import OCTET_COLUMNS, STRIP_ROWS, WARP_THREADS
from tsm2_tune.generator.families.staged.warp_tiles import (
    BLOCKS_FOR_ALL,
    WIDE_TILES_FOR_WIDE_RESULTS,
    WarpTileConfig,
    WarpTileKernel,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS

ROWS, COVERED = (16, 32, 64, 128, 256), 64  # options of block_m; a C of at most COVERED rows is one tile
COLUMNS = (16, 24, 32, 48, 64, 128)
# block_m, block_n, strips, octets. A lane has rows of two m16 tiles, so `strips` is even.
TILES = (
    (32, 32, 2, 4), (64, 32, 4, 4), (32, 64, 2, 8), (64, 64, 2, 4), (64, 64, 2, 8), (64, 64, 4, 4), (64, 16, 2, 2),
    (128, 16, 2, 2), (64, 32, 2, 2), (128, 32, 2, 4), (256, 32, 4, 4), (128, 64, 2, 8), (128, 64, 4, 4),
    (32, 24, 2, 3), (64, 24, 2, 3), (128, 24, 2, 3), (32, 48, 2, 3), (64, 48, 2, 3), (64, 48, 2, 6), (128, 48, 2, 6),
    (128, 48, 4, 3),
)  # fmt: skip
RINGS = ((16, 3, 1), (32, 2, 0), (32, 2, 1), (32, 3, 1), (64, 2, 0), (64, 2, 1))  # block_k, stages, copy
MIN_BLOCKS = (2, 3, 4)
# For a C of many rows and columns: wider tiles, each with min_blocks.
WIDE_TILES = (((128, 128, 4, 4), 1), ((128, 128, 2, 8), 1), ((64, 128, 4, 4), 2), ((64, 128, 2, 8), 2))
THREADS = 128  # the least threads of a block


@dataclass(frozen=True, slots=True)
class StagedF32DmmaConfig(WarpTileConfig):
    """A configuration of the family staged_f32_dmma: a value for each tunable."""

    family: ClassVar[str] = "staged_f32_dmma"


def _with_threads(block_m: int, block_n: int, strips: int, octets: int) -> tuple[int, ...]:
    """Return the values of six tunables: the arguments, with enough threads for at least one warp per warp tile.

    The tunables are (threads, ring_threads, block_m, block_n, strips, octets).
    """
    threads = max(THREADS, WARP_THREADS * (block_m // (STRIP_ROWS * strips)) * (block_n // (OCTET_COLUMNS * octets)))
    return threads, threads, block_m, block_n, strips, octets


class StagedF32Dmma(WarpTileKernel[StagedF32DmmaConfig]):
    name = "staged_f32_dmma"
    summary = "f32, more than 8 columns: both operands through shared memory, on the f64 tensor cores"
    template = "staged/dmma.cu.jinja"
    dtypes = ("f32",)
    leaves_small_grams = False
    least_depth = 16
    rules = (
        HAS_F64_TENSOR_CORES,
        BLOCKS_FOR_ALL,
        WIDE_TILES_FOR_WIDE_RESULTS,
        *full_rules(ROWS, columns=COLUMNS, covered=COVERED),
    )
    config_type = StagedF32DmmaConfig

    def grids(self) -> Iterable[Grid[StagedF32DmmaConfig]]:
        rest = {
            "fragment_prefetch": (0,)
        }  # fragments of doubles that are loaded a step ahead would leave too few registers
        tile, ring = "threads ring_threads block_m block_n strips octets", "block_k stages copy"
        where = {f"{tile} {ring}": self.has_whole_teams}
        narrow = {
            tile: [_with_threads(*one) for one in TILES],
            ring: RINGS,
            "min_blocks": MIN_BLOCKS,
            "splits": SPLITS_OF_GRIDS,
        }
        wide = {
            f"{tile} min_blocks": [(*_with_threads(*one), least) for one, least in WIDE_TILES],
            ring: RINGS,
            "splits": SPLITS_OF_GRIDS,
        }
        return [Grid(StagedF32DmmaConfig, axes | rest, where) for axes in (narrow, wide)]

    def registers(self, config: StagedF32DmmaConfig) -> int:
        """Return the number of registers of a thread for sums and fragments. Each double occupies two registers."""
        return 2 * super().registers(config)

    def pads(self, config: StagedF32DmmaConfig, problem: Problem) -> tuple[int, int]:
        """Return the padding of a line of A, and of a line of B, in shared memory, in elements.

        A line is a contiguous row or column of a k tile. The padding avoids bank conflicts. If an operand is
        contiguous along k, threads read 8 elements along k of each of 4 lines at the same time. If it is not, they
        read 4 elements of each of 8 lines, and these elements are 2 apart.
        """
        along_a, along_b, _ = problem.contiguous
        return 8 if along_a == "k" else 4, 8 if along_b == "k" else 4

    def paired(self, config: StagedF32DmmaConfig, problem: Problem) -> bool:
        """Return whether a lane reads two adjacent columns of B, and uses one of them in each of two n8 tiles."""
        return config.octets % 2 == 0 and problem.contiguous[1] != "k"

    def context(self, config: StagedF32DmmaConfig, problem: Problem) -> dict[str, Any]:
        """Return the variables of the template besides the tunables.

        A lane stores adjacent elements of C only if it also reads adjacent rows of A or columns of B. Otherwise its
        sums go through shared memory.
        """
        along_a, _, along_c = problem.contiguous
        paired = self.paired(config, problem)
        neighbours = along_a != "k" if along_c == "m" else paired
        return {
            **super().context(config, problem),
            "singles": False,
            "paired": paired,
            "sums_in_registers": self.sums_in_registers(config) and neighbours,
        }
