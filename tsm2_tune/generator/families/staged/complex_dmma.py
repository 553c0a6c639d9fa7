"""The staged kernel for complex numbers on the f64 tensor cores: both operands pass through shared memory.

A complex product is four real products. The f64 tensor cores are as fast as f32 FMAs and leave most of the issue
slots free. So the kernel multiplies c64 on the f64 tensor cores too, in double precision: elements of c64 are copied
to shared memory as they are, and are converted to doubles when a thread reads them.

In double precision a c64 product needs only three real products: of the real parts, of the imaginary parts, and of
the sums of both parts. For a k tile with an element whose two parts differ too much in magnitude, the kernel computes
four.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.families.staged.dmma import DMMA_RULES, WarpTileConfig, WarpTileKernel
from tsm2_tune.generator.families.staged.kernel import OCTET_COLUMNS, RING, full_rules
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.tunables import WarpStripsOf8
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS
from tsm2_tune.generator.tiling import BlockPlan

TILE, COVERED = (16, 32, 64, 128, 256), 64  # options of block_m; a C of at most COVERED rows is one tile
COLUMNS = (16, 24, 32, 48, 64)  # options of block_n
WARP_TILES = ((2, 2), (4, 2), (2, 4), (4, 4), (2, 3), (4, 3))  # m8 and n8 tiles per warp
# Values of the tunables in RING: threads, ring_threads, block_k, stages, copy.
RINGS = (
    (128, 128, 128, 2, 0), (128, 128, 64, 2, 0), (128, 128, 64, 2, 1), (128, 128, 32, 2, 1), (128, 128, 32, 3, 1),
    (128, 128, 16, 2, 1), (128, 128, 16, 3, 1), (128, 128, 16, 4, 1), (128, 128, 8, 3, 1), (128, 128, 8, 4, 1),
    (128, 128, 8, 6, 1), (256, 256, 64, 2, 1), (256, 256, 32, 2, 1), (256, 256, 16, 2, 1), (256, 256, 16, 3, 1),
    (256, 256, 16, 4, 1), (256, 256, 8, 4, 1), (256, 256, 8, 6, 1),
)  # fmt: skip
MOST_AHEAD_OF_COPIES = 8  # strips x octets; with more, fragments that are loaded before the copies would spill
REGISTERS_OF_C128 = 4


@dataclass(frozen=True, slots=True)
class StagedComplexDmmaConfig(WarpTileConfig):
    family: ClassVar[str] = "staged_complex_dmma"

    strips: WarpStripsOf8


def _bounds(rows: int, columns: int) -> tuple[int, ...]:
    """Return the options of `min_blocks` for a tile of C: those that changed the time on an H200."""
    if rows > COVERED:
        return (1,)
    return (1, 3) if rows * columns <= 32 * 32 else (0, 1)  # 0: c128, 64 x 64, with 196 registers instead of 250


def has_three_products(problem: Problem) -> bool:
    """Return whether the kernel may compute a complex product with three real products instead of four.

    It may for c64, since an f64 sum has 29 significand bits more than a real or imaginary part of c64. For a k tile
    with an element whose parts differ in magnitude by more than 29 bits, the kernel computes four real products.
    """
    return problem.dtype_name == "c64"


class StagedComplexDmma(WarpTileKernel[StagedComplexDmmaConfig]):
    summary = "complex, more than 8 columns: both operands through shared memory, on the f64 tensor cores"
    template = "staged/complex_dmma.cu.jinja"
    dtypes = ("c64", "c128")
    leaves_small_grams = False
    strip_rows = 8  # their real and imaginary parts are the 16 rows of an mma instruction
    least_depth = 1
    rules = (*DMMA_RULES, *full_rules(TILE, columns=COLUMNS, covered=COVERED))
    config_type = StagedComplexDmmaConfig

    def grids(self) -> Iterable[Grid[StagedComplexDmmaConfig]]:
        tiles = [(*tile, bound) for tile in product(TILE, COLUMNS) for bound in _bounds(*tile)]
        axes = {
            "block_m block_n min_blocks": tiles,
            RING: RINGS,
            "splits": SPLITS_OF_GRIDS,
            "strips octets": WARP_TILES,
            "fragment_prefetch": (0, 1),
        }

        def has_whole_warps(config: StagedComplexDmmaConfig) -> bool:
            rows, columns = self.strip_rows * config.strips, OCTET_COLUMNS * config.octets
            return config.block_m % rows == config.block_n % columns == 0 and self.has_whole_teams(config)

        return [Grid(StagedComplexDmmaConfig, axes, {f"block_m block_n strips octets {RING}": has_whole_warps})]

    def registers(self, config: StagedComplexDmmaConfig) -> int:
        """Return the number of c128 elements that a thread has in registers: sums, and fragments of A and B."""
        return 2 * config.strips * config.octets + 2 * config.strips + config.octets

    def block_plan(self, config: StagedComplexDmmaConfig, problem: Problem) -> BlockPlan:
        elements = self.registers(config)
        if has_three_products(problem):  # three sums and three factors; and A and B as c64, prefetched ones too
            read = (config.strips + config.octets) * (1 + config.fragment_prefetch) // 2  # c64 is half of c128
            elements = 3 * (config.strips * config.octets + config.strips + 1) + read
        registers = elements * REGISTERS_OF_C128 + OVERHEAD_REGISTERS
        block_plan = super().block_plan(config, problem)
        return replace(block_plan, resources=replace(block_plan.resources, registers=registers))

    def context(self, config: StagedComplexDmmaConfig, problem: Problem) -> dict[str, Any]:
        # Sums go straight to device memory if a lane has whole vectors of C: two elements of c64 along a row.
        whole = config.octets % 2 == 0 or problem.dtype_name == "c128" or not problem.row_major_c
        context, three = super().context(config, problem), has_three_products(problem)
        return context | {
            "three_products": three,
            "arrives_early": three or context["arrives_early"],  # the elements of a k tile decide on three or four
            "loads_before_copies": three and config.strips * config.octets <= MOST_AHEAD_OF_COPIES,
            "sums_in_registers": self.sums_in_registers(config) and whole,
        }

    def pads(self, config: StagedComplexDmmaConfig, problem: Problem) -> tuple[int, int]:
        # Eight threads read 16 bytes each at once: 4 adjacent k of 2 lines along k, or 2 elements at each of 4 k.
        along_a, along_b, _ = problem.contiguous
        b_along_k = 8 if config.octets % 2 and problem.dtype_name == "c64" else 4
        return 4 if along_a == "k" else 2, b_along_k if along_b == "k" else 2

    def probe_shapes(self, config: StagedComplexDmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return the shapes, with k = 1 below a k tile: there the rounding error of three products is largest."""
        shapes = super().probe_shapes(config, problem)
        if not has_three_products(problem):
            return shapes
        return tuple((m, n, 1 if k < config.block_k else k) for m, n, k in shapes)
