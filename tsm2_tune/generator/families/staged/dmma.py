"""The staged kernel for f64 on the f64 tensor cores: both operands pass through shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.families.staged.full import full_rules
from tsm2_tune.generator.families.staged.kernel import OCTET_COLUMNS, RING, STRIP_ROWS
from tsm2_tune.generator.families.staged.warp_tiles import (
    BLOCKS_FOR_ALL,
    WIDE_TILES_FOR_WIDE_RESULTS,
    WarpTileConfig,
    WarpTileKernel,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS

ROWS, COLUMNS = (16, 32, 48, 64), (16, 24, 32, 48, 64)  # options of block_m and of block_n
WARP_TILES = ((1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 4))  # m16 and n8 tiles per warp
# Values of the tunables in RING: threads, ring_threads, block_k, stages, copy.
RINGS = (
    (128, 128, 64, 2, 0), (128, 128, 32, 2, 0), (128, 128, 16, 2, 0), (128, 128, 64, 3, 1), (128, 128, 32, 3, 1),
    (128, 128, 32, 2, 1), (128, 128, 16, 3, 1), (128, 128, 16, 4, 1), (128, 128, 32, 3, 2), (256, 256, 32, 4, 1),
    (256, 256, 32, 3, 1),
)  # fmt: skip
MIN_BLOCKS = (1, 3, 4)
# For a C of many rows: threads, block_m, block_n, strips, octets, min_blocks.
TALL_TILES = (
    (256, 256, 64, 4, 4, 1), (128, 128, 64, 4, 4, 1), (256, 128, 64, 2, 4, 1), (256, 256, 32, 2, 4, 1),
    (128, 128, 32, 2, 4, 1), (256, 128, 32, 2, 2, 2), (128, 64, 32, 2, 2, 1), (128, 64, 32, 2, 2, 4),
    (128, 64, 16, 1, 2, 4), (128, 128, 16, 2, 2, 1), (256, 256, 16, 2, 2, 1), (256, 128, 32, 2, 2, 1),
    (256, 256, 24, 2, 3, 1), (256, 128, 24, 1, 3, 1), (128, 128, 24, 2, 3, 1),
    (256, 256, 48, 4, 3, 1), (256, 128, 48, 2, 3, 1), (128, 128, 48, 4, 3, 1),
)  # fmt: skip
# For a C of many rows and columns: wider tiles, in the same order as in TALL_TILES; and their block_n.
WIDE_TILES, WIDE = ((256, 128, 128, 4, 4, 1), (128, 64, 128, 4, 4, 1)), 128
TALL_RINGS = (
    (16, 3, 1), (16, 4, 1), (16, 5, 1), (16, 6, 1), (32, 2, 0), (32, 2, 1), (32, 3, 1), (32, 4, 1), (32, 2, 2),
)  # fmt: skip
MORE_ROWS = (128, 256)


@dataclass(frozen=True, slots=True)
class StagedDmmaConfig(WarpTileConfig):
    """A configuration of the family staged_dmma: a value for each tunable."""

    family: ClassVar[str] = "staged_dmma"


def _is_wide(config: StagedDmmaConfig) -> bool:
    """Return whether block_n is the option that is only for a large C.

    With that option, a thread's sums leave it no registers to spare.
    """
    return config.block_n > COLUMNS[-1]


class StagedDmma(WarpTileKernel[StagedDmmaConfig]):
    name = "staged_dmma"
    summary = (
        "f64, C of few columns, or of many rows and columns:"
        " both operands through shared memory, on the f64 tensor cores"
    )
    template = "staged/dmma.cu.jinja"
    dtypes = ("f64",)
    least_depth = 17
    rules = (
        HAS_F64_TENSOR_CORES,
        BLOCKS_FOR_ALL,
        WIDE_TILES_FOR_WIDE_RESULTS,
        *full_rules((*ROWS, *MORE_ROWS), columns=(*COLUMNS, WIDE), covered=ROWS[-1]),
    )
    config_type = StagedDmmaConfig

    def grids(self) -> Iterable[Grid[StagedDmmaConfig]]:
        tiles = [
            (block_m, block_n, strips, octets)
            for block_m, block_n, (strips, octets) in product(ROWS, COLUMNS, WARP_TILES)
            if block_m % (STRIP_ROWS * strips) == 0 and block_n % (OCTET_COLUMNS * octets) == 0
        ]
        tile, block = "block_m block_n strips octets", f"block_m block_n strips octets {RING}"
        axes = {
            tile: tiles,
            RING: RINGS,
            "splits": SPLITS_OF_GRIDS,
            "min_blocks": MIN_BLOCKS,
            "fragment_prefetch": (0, 1),
        }
        thin = Grid(StagedDmmaConfig, axes, {block: self.has_whole_teams})
        tall_tiles = [(one[0], *one) for one in (*TALL_TILES, *WIDE_TILES)]
        tall_axes = {
            f"threads ring_threads {tile} min_blocks": tall_tiles,
            "block_k stages copy": TALL_RINGS,
            "splits": SPLITS_OF_GRIDS,
            "fragment_prefetch": (1,),
        }
        where = {block: self.has_whole_teams, f"{block} min_blocks": lambda config: not thin.holds(config)}
        return [thin, Grid(StagedDmmaConfig, tall_axes, where)]

    def pads(self, config: StagedDmmaConfig, problem: Problem) -> tuple[int, int]:
        """Return the padding of a line of A, and of a line of B, in shared memory, in elements.

        A line is a contiguous row or column of a k tile. The padding avoids bank conflicts. 8 threads read at the
        same time if each thread reads a pair of elements, and 16 threads if each thread reads a single element.
        """
        along_a, along_b, _ = problem.contiguous
        if self.singles(config, problem):
            return 2, 4
        b_along_k = 4 if self.paired(config, problem) else 8
        return 4 if along_a == "k" else 2, b_along_k if along_b == "k" else 2

    def singles(self, config: StagedDmmaConfig, problem: Problem) -> bool:
        """Return whether lanes read single elements from shared memory, not pairs of adjacent elements.

        Lanes read single elements if A is contiguous along k and B is not, since then no pair fits the fragments of
        both A and B. If both A and B are contiguous along k, lanes read single elements if the tile leaves no
        registers to spare.
        """
        along_a, along_b, _ = problem.contiguous
        return along_a == "k" and (along_b != "k" or _is_wide(config))

    def paired(self, config: StagedDmmaConfig, problem: Problem) -> bool:
        """Return whether a lane reads two adjacent columns of B, and uses one of them in each of two n8 tiles."""
        moved_apart = _is_wide(config) and problem.contiguous[1] != "k"
        return config.octets % 2 == 0 and not self.singles(config, problem) and not moved_apart

    def context(self, config: StagedDmmaConfig, problem: Problem) -> dict[str, Any]:
        return {
            **super().context(config, problem),
            "singles": self.singles(config, problem),
            "paired": self.paired(config, problem),
        }
