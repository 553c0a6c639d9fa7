"""The ladder: six GEMM kernels for learning, each of which adds one optimization to the kernel before it.

Source: R. Dhara, "6 Step Optimization of GeMMs in CUDA". The kernels are naive, coalesced, tiled, coarsened in one
dimension, coarsened in two dimensions, and vectorised. They have the article's structure, and the article's constants
are tunables here. The article's matrices are row-major. For column-major matrices the same kernels compute the
transpose, C^T = B^T A^T, which is row-major: its rows are the columns of C.

The family `gemm` is faster. A search tries the ladder only if the user names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import KernelConfig, Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.family import BLOCK_THREADS, Family
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.tunables import Tunable
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

BLOCK_SIDES = (8, 16, 32)  # options of block_m and block_n in steps 1 and 2; tiles of step 3 are square
TILES_1D = (32, 64, 128)
COARSE_1D = (2, 4, 8, 16)
TILES_2D = (64, 128)
DEPTHS_2D = (8, 16)
COARSE_2D = (4, 8)
LARGEST_VECTOR = 4  # f32 elements in VECTOR_BYTES


@dataclass(frozen=True, slots=True)
class LadderConfig(KernelConfig):
    """A configuration of the ladder. If C is column-major, tunables named after rows are for columns of C."""

    family: ClassVar[str] = "ladder"

    step: Annotated[str, Tunable("one of naive, coalesced, tiled, coarse1d, coarse2d, vectorised", symbol="GeMM-")]
    block_m: Annotated[int, Tunable("rows of C that a block computes", symbol="tiles_Arows", word="block")]
    block_n: Annotated[int, Tunable("columns of C that a block computes", symbol="tiles_Bcols", word="block")]
    tile_depth: Annotated[
        int,
        Tunable(
            "k extent of the tiles in shared memory; 1 in steps without them",
            symbol="tiles_Acols",
            word="block",
        ),
    ]
    coarse_rows: Annotated[int, Tunable("rows of C that a thread computes", symbol="COARSE_Y", word="thread")]
    coarse_columns: Annotated[int, Tunable("columns of C that a thread computes", symbol="COARSE_X", word="thread")]

    @property
    def threads(self) -> int:
        """The number of threads per block."""
        return self.block_m * self.block_n // (self.coarse_rows * self.coarse_columns)


Factors = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One of the six kernels of the ladder, with the article's constants and rate."""

    name: str
    about: str
    factors: Factors  # block_m, block_n, tile_depth, coarse_rows, coarse_columns of the article; own for steps 1, 2
    published_gflops: float  # at PUBLISHED_SHAPE in f32
    fastest_of_few: Factors  # in f32 on an H200, 1024 x 1024 x 1024
    fastest_of_many: Factors  # in f32 on an H200, 4096 x 4096 x 4096

    @property
    def published(self) -> LadderConfig:
        return LadderConfig(self.name, *self.factors)


PUBLISHED_SHAPE = "1024x1024x1024"
PUBLISHED_ON = "a GPU that the article does not name"
LARGEST_TILE = 128 * 128  # the most elements of C that a block computes
STEPS = {
    step.name: step
    for step in (
        Step("naive", "step 1, one element of C per thread; a warp computes part of a column",
             (32, 32, 1, 1, 1), 22.27, (8, 16, 1, 1, 1), (8, 32, 1, 1, 1)),
        Step("coalesced", "step 2, a warp computes part of a row of C: coalesced",
             (32, 32, 1, 1, 1), 318.12, (8, 32, 1, 1, 1), (32, 32, 1, 1, 1)),
        Step("tiled", "step 3, square tiles of A and B in shared memory",
             (32, 32, 32, 1, 1), 395.52, (32, 32, 32, 1, 1), (32, 32, 32, 1, 1)),
        Step("coarse1d", "step 4, a thread computes several rows of a column of C",
             (64, 64, 8, 8, 1), 847.04, (64, 64, 16, 4, 1), (64, 64, 4, 16, 1)),
        Step("coarse2d", "step 5, a thread computes a tile of C in registers",
             (128, 128, 16, 8, 8), 984.91, (64, 64, 16, 4, 4), (128, 128, 16, 8, 8)),
        Step("vectorised", "step 6, loads of 16 bytes, and A's tile is transposed",
             (128, 128, 16, 8, 8), 1348.33, (64, 128, 16, 8, 4), (128, 128, 16, 8, 8)),
    )
}  # fmt: skip


def _exists(config: LadderConfig) -> bool:
    """Return whether the search space has this configuration of the steps 3 to 6.

    In steps 3 and 4, a block must have at most 1024 threads. In steps 5 and 6, all threads must load equally many
    elements of a tile.
    """
    if config.step in ("tiled", "coarse1d"):
        return config.threads <= BLOCK_THREADS
    piece = config.threads * (LARGEST_VECTOR if config.step == "vectorised" else 1)
    return config.block_m * config.tile_depth % piece == config.block_n * config.tile_depth % piece == 0


class Ladder(Family[LadderConfig]):
    summary = "general matrices in six optimisation steps, for learning; searched only if --family names it"
    template = "ladder.cu.jinja"
    dtypes = ("f32", "f64")
    ops = ("nn", "ttt")  # all matrices column-major, or all row-major
    only_by_name = True
    rules = ()
    config_type = LadderConfig

    def grids(self) -> Iterable[Grid[LadderConfig]]:
        """Yield the grids of the search space, one or more for each step.

        All threads of a block load equally many elements of a tile. In steps 3 and 4 each thread loads one element,
        as in the article.
        """
        names = "block_m block_n tile_depth coarse_rows coarse_columns"
        steps = {
            "tiled": [(side, side, side, 1, 1) for side in BLOCK_SIDES],
            "coarse1d": [(side, side, side // one, one, 1) for side, one in product(TILES_1D, COARSE_1D)],
            "coarse2d": list(product(TILES_2D, TILES_2D, DEPTHS_2D, COARSE_2D, COARSE_2D)),
            "vectorised": list(product(TILES_2D, TILES_2D, DEPTHS_2D, COARSE_2D, COARSE_2D)),
        }
        untiled = [(rows, columns, 1, 1, 1) for rows, columns in product(BLOCK_SIDES, BLOCK_SIDES)]
        yield Grid(LadderConfig, {"step": ("naive", "coalesced"), names: untiled})
        for step, tiles in steps.items():
            yield Grid(LadderConfig, {"step": (step,), names: tiles}, {f"step {names}": _exists})

    def guidelines(self, problem: Problem, limits: DeviceLimits) -> Guidelines:
        """Return guidelines that drop nothing: users compare all steps, also slow ones."""
        return Guidelines(min_threads_per_sm=0, min_blocks_per_sm=0, min_reuse=0)

    def block_plan(self, config: LadderConfig, problem: Problem) -> BlockPlan:
        sums, dtype = config.coarse_rows * config.coarse_columns, problem.dtype
        loaded = config.coarse_rows + config.coarse_columns
        staged = (config.block_m + config.block_n) * config.tile_depth if config.tile_depth > 1 else 0
        ahead = max(staged // config.threads, 2)
        resources = Resources(
            threads=config.threads,
            registers=(sums + loaded + ahead) * dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=staged * dtype.element_bytes,
            bytes_in_flight=ahead * dtype.element_bytes,
            reuse=sums / loaded,
        )
        rows, columns = config.block_m, config.block_n
        if not problem.row_major_c:
            rows, columns = columns, rows
        return BlockPlan(resources, Periods(rows, columns, config.tile_depth))

    def probe_shapes(self, config: LadderConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        tile = self.periods(config, problem)
        rows, columns, depth = tile.m, tile.n, tile.k
        return (
            (rows, columns, 2 * depth),  # whole tiles
            (2 * rows + 1, columns + 1, 2 * depth + 1),
            (rows + 1, 2 * columns - 1, max(depth - 1, 1)),
            (max(rows - 1, 1), max(columns - 1, 1), depth + 3),
            # A vector more than whole tiles.
            (rows + LARGEST_VECTOR, columns + LARGEST_VECTOR, depth + LARGEST_VECTOR),
            (1, 3, depth + 1),  # less than a vector
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[LadderConfig, ...]:
        """Return, for each step, what was fastest on an H200, first for such a C, and the article's configuration."""
        order = -1 if problem.m * problem.n >= LARGEST_TILE * limits.sms else 1
        return tuple(
            LadderConfig(step.name, *factors)
            for step in STEPS.values()
            for factors in dict.fromkeys((*(step.fastest_of_few, step.fastest_of_many)[::order], step.factors))
        )

    def context(self, config: LadderConfig, problem: Problem) -> dict[str, Any]:
        own = {"about": STEPS[config.step].about, "row_major": problem.row_major_c, "vector_bytes": VECTOR_BYTES}
        return super().context(config, problem) | own


LADDER = Ladder()
FAMILIES = (LADDER,)
