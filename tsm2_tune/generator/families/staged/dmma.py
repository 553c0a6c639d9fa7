"""The staged kernels on the f64 tensor cores: their base class, and the kernels for f64 and f32.

A warp computes a warp tile of `strips` m16 tiles by `octets` n8 tiles, and loads its fragments from shared memory.
These kernels also compute a C that has many rows and at most 64 columns, and a C that is large in both directions.

On Hopper the f64 tensor cores are as fast as f32 FMAs, but an instruction of the tensor cores does 1024
multiply-adds, and a warp's FMA instruction does 32. So issue slots are free to load and convert operands. For f32, a
warp converts the elements of its warp tile: each element of A once for each warp in its row of warps, each element of
B once for each warp in its column of warps. Products are exact. A block rounds its sums to f32 at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.families.family import WARP_THREADS
from tsm2_tune.generator.families.staged.kernel import (
    DEPTH,
    OCTET_COLUMNS,
    RING,
    STRIP_ROWS,
    FullConfig,
    FullKernel,
    full_rules,
)
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import Tunable, WarpOctets, WarpStrips
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, wide_splits
from tsm2_tune.generator.tiles import SKINNY, is_general

COLUMNS_OF_TALL = range(9, 65)  # the columns of C for which a C of many rows is served


@dataclass(frozen=True, slots=True)
class WarpTileConfig(FullConfig):
    """The tunables of the kernels that pass both operands through shared memory to tensor cores."""

    strips: WarpStrips
    octets: WarpOctets
    fragment_prefetch: Annotated[
        int,
        Tunable(
            "1: the next k tile's first fragments are loaded before the last products of the current one",
            is_constant=False,
            default=0,
        ),
    ]


def _blocks_for_all(candidate: Candidate) -> bool:
    problem = candidate.problem
    if not is_general(problem):
        return True
    chunks = candidate.launch.tiles(problem.m, problem.n) * problem.k // tunable(candidate, "block_k")
    return problem.batch * tunable(candidate, "splits") >= min(
        wide_splits(candidate.limits, 1), problem.batch * chunks
    )


DMMA_RULES = (
    HAS_F64_TENSOR_CORES,
    Rule(
        "blocks-for-all",
        "shape",
        "if C has many tiles, every multiprocessor should have a block",
        _blocks_for_all,
        of=("block_m", "block_n", "block_k", "splits"),
    ),
)
WIDE_TILES_FOR_WIDE_RESULTS = Rule(
    "wide-tiles-for-wide-results",
    "shape",
    "tiles of more columns are for a large C, not for a skinny or small one",
    lambda c: tunable(c, "block_n") <= SKINNY or is_general(c.problem),
    of=("block_n",),
)

W = TypeVar("W", bound=WarpTileConfig)


class WarpTileKernel(FullKernel[W]):
    """The base class of kernels that pass both operands through shared memory to tensor cores."""

    on_tensor_cores = True
    strip_rows: ClassVar[int] = STRIP_ROWS
    least_depth: ClassVar[int]  # the least k for which a C of many rows is served

    def team(self, config: W) -> int:
        rows, columns = self.strip_rows * config.strips, OCTET_COLUMNS * config.octets
        return WARP_THREADS * (config.block_m // rows) * (config.block_n // columns)

    def has_whole_teams(self, config: W) -> bool:
        """Return whether a pipeline's threads divide evenly into k slices with an mma step in every k tile."""
        team = self.team(config)
        return config.ring_threads % team == 0 and config.block_k * team >= config.ring_threads * DEPTH

    def registers(self, config: W) -> int:
        rows, columns = self.strip_rows * config.strips, OCTET_COLUMNS * config.octets
        return (rows * columns + 2 * (rows + columns) * DEPTH) // WARP_THREADS

    def sums_in_registers(self, config: W) -> bool:
        return self.team(config) == config.threads

    def largest(self, problem: Problem) -> int:
        tall = problem.n in COLUMNS_OF_TALL and problem.k >= self.least_depth
        return INT32_MAX if tall or is_general(problem) else super().largest(problem)

    def context(self, config: W, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "strip_rows": self.strip_rows,
            "arrives_early": bool(config.fragment_prefetch),  # whether a k tile is complete one step ahead of its use
            "loads_before_copies": False,  # whether a k tile's first fragments are loaded before new copies start
        }


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
    family: ClassVar[str] = "staged_dmma"

    @property
    def is_wide(self) -> bool:
        """Whether block_n is only for a large C: then a thread's sums leave it no registers to spare."""
        return self.block_n > COLUMNS[-1]


class StagedDmma(WarpTileKernel[StagedDmmaConfig]):
    summary = (
        "f64, C of few columns, or of many rows and columns:"
        " both operands through shared memory, on the f64 tensor cores"
    )
    template = "staged/dmma.cu.jinja"
    dtypes = ("f64",)
    least_depth = 17
    rules = (
        *DMMA_RULES,
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
        # 8 threads read at once if each reads a pair of elements, and 16 threads if each reads one element.
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
        return along_a == "k" and (along_b != "k" or config.is_wide)

    def paired(self, config: StagedDmmaConfig, problem: Problem) -> bool:
        """Return whether a lane reads two adjacent columns of B, and uses one of them in each of two n8 tiles."""
        moved_apart = config.is_wide and problem.contiguous[1] != "k"
        return config.octets % 2 == 0 and not self.singles(config, problem) and not moved_apart

    def context(self, config: StagedDmmaConfig, problem: Problem) -> dict[str, Any]:
        own = {"singles": self.singles(config, problem), "paired": self.paired(config, problem)}
        return super().context(config, problem) | own


F32_ROWS, COVERED = (16, 32, 64, 128, 256), 64  # options of block_m; a C of at most COVERED rows is one tile
F32_COLUMNS = (16, 24, 32, 48, 64, 128)
# block_m, block_n, strips, octets. A lane has rows of two m16 tiles, so `strips` is even.
F32_TILES = (
    (32, 32, 2, 4), (64, 32, 4, 4), (32, 64, 2, 8), (64, 64, 2, 4), (64, 64, 2, 8), (64, 64, 4, 4), (64, 16, 2, 2),
    (128, 16, 2, 2), (64, 32, 2, 2), (128, 32, 2, 4), (256, 32, 4, 4), (128, 64, 2, 8), (128, 64, 4, 4),
    (32, 24, 2, 3), (64, 24, 2, 3), (128, 24, 2, 3), (32, 48, 2, 3), (64, 48, 2, 3), (64, 48, 2, 6), (128, 48, 2, 6),
    (128, 48, 4, 3),
)  # fmt: skip
F32_RINGS = ((16, 3, 1), (32, 2, 0), (32, 2, 1), (32, 3, 1), (64, 2, 0), (64, 2, 1))  # block_k, stages, copy
F32_MIN_BLOCKS = (2, 3, 4)
# For a C of many rows and columns: wider tiles, each with min_blocks.
F32_WIDE_TILES = (((128, 128, 4, 4), 1), ((128, 128, 2, 8), 1), ((64, 128, 4, 4), 2), ((64, 128, 2, 8), 2))
THREADS = 128  # the least threads of a block


@dataclass(frozen=True, slots=True)
class StagedF32DmmaConfig(WarpTileConfig):
    family: ClassVar[str] = "staged_f32_dmma"


def _with_threads(block_m: int, block_n: int, strips: int, octets: int) -> tuple[int, ...]:
    """Return (threads, ring_threads, *arguments), with threads for at least one warp per warp tile."""
    threads = max(THREADS, WARP_THREADS * (block_m // (STRIP_ROWS * strips)) * (block_n // (OCTET_COLUMNS * octets)))
    return threads, threads, block_m, block_n, strips, octets


class StagedF32Dmma(WarpTileKernel[StagedF32DmmaConfig]):
    summary = "f32, more than 8 columns: both operands through shared memory, on the f64 tensor cores"
    template = "staged/dmma.cu.jinja"
    dtypes = ("f32",)
    leaves_small_grams = False
    least_depth = 16
    rules = (
        *DMMA_RULES,
        WIDE_TILES_FOR_WIDE_RESULTS,
        *full_rules(F32_ROWS, columns=F32_COLUMNS, covered=COVERED),
    )
    config_type = StagedF32DmmaConfig

    def grids(self) -> Iterable[Grid[StagedF32DmmaConfig]]:
        # Fragments of doubles that are loaded a step ahead would leave too few registers.
        rest = {"splits": SPLITS_OF_GRIDS, "fragment_prefetch": (0,)}
        tile, ring = "threads ring_threads block_m block_n strips octets", "block_k stages copy"
        where = {f"{tile} {ring}": self.has_whole_teams}
        narrow = {
            tile: [_with_threads(*one) for one in F32_TILES],
            ring: F32_RINGS,
            "min_blocks": F32_MIN_BLOCKS,
        }
        wide_tiles = [(*_with_threads(*one), least) for one, least in F32_WIDE_TILES]
        wide = {f"{tile} min_blocks": wide_tiles, ring: F32_RINGS}
        return [Grid(StagedF32DmmaConfig, axes | rest, where) for axes in (narrow, wide)]

    def registers(self, config: StagedF32DmmaConfig) -> int:
        """Return the number of registers of a thread for sums and fragments. Each double occupies two registers."""
        return 2 * super().registers(config)

    def pads(self, config: StagedF32DmmaConfig, problem: Problem) -> tuple[int, int]:
        # Threads read 8 elements along k of each of 4 lines at once, or 4 elements, 2 apart, of each of 8 lines.
        along_a, along_b, _ = problem.contiguous
        return 8 if along_a == "k" else 4, 8 if along_b == "k" else 4

    def paired(self, config: StagedF32DmmaConfig, problem: Problem) -> bool:
        return config.octets % 2 == 0 and problem.contiguous[1] != "k"

    def context(self, config: StagedF32DmmaConfig, problem: Problem) -> dict[str, Any]:
        # A lane stores adjacent elements of C only if it reads adjacent rows of A or columns of B.
        along_a, _, along_c = problem.contiguous
        paired = self.paired(config, problem)
        neighbours = along_a != "k" if along_c == "m" else paired
        return super().context(config, problem) | {
            "singles": False,
            "paired": paired,
            "sums_in_registers": self.sums_in_registers(config) and neighbours,
        }
