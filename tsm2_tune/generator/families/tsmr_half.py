"""TSMR on the tensor cores, for bf16 and f16: large A times skinny B, and tall A times small B.

A goes from memory straight into registers, 16 bytes of a lane at a time. Along k these are what the tensor core
wants, but for which k they stand, where B is staged alike; along m they are two rows of one column, of which two byte
permutations make two columns of one row. Sums are in f32; C is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule
from tsm2_tune.generator.split_k import (
    LEAST_SHARE,
    SPLITS,
    SPLITS_ROW_TILES,
    in_turns,
    most_loads,
    split_traffic,
    splits_to_prefer,
)
from tsm2_tune.generator.streaming import streaming_rules
from tsm2_tune.generator.tensor_cores import HAS_HALF_TENSOR_CORES
from tsm2_tune.generator.tunables import EvictFirst, Tunable

THREADS = (128, 256)
LANE_ROWS = (2, 4, 8, 16)
COLUMNS = (8, 16, 32, 64)
PREFETCH_STAGES = ((8, 1), (16, 1), (32, 1), (32, 2), (64, 1), (64, 2), (64, 4), (128, 2))
MIN_BLOCKS = (1, 2, 3, 4)
STAGED_ELEMENTS = 4096  # of B at a time
FRAGMENT_REGISTERS = 20  # of A and B, as the tensor core wants them
VECTORS = {4: "unsigned", 8: "uint2", 16: "uint4"}  # CUDA's type of so many bytes
VECTOR_BYTES = 16
WARP_THREADS, LANES_DOWN = 32, 8

# For each number of columns, where A is large: threads, lane_rows, prefetch, stages, min_blocks.
COLUMN_MAJOR: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    8: ((128, 8, 32, 2, 4), (128, 8, 32, 1, 4), (128, 8, 64, 2, 3)),
    16: ((128, 8, 32, 1, 4), (128, 8, 32, 2, 4), (128, 8, 64, 2, 3)),
    32: ((128, 8, 64, 2, 3), (128, 8, 64, 4, 3)),
    64: ((128, 8, 64, 4, 1),),
}
ROW_MAJOR: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    8: ((128, 2, 128, 2, 4), (256, 2, 128, 2, 2), (128, 4, 64, 1, 4)),
    16: ((256, 2, 128, 2, 2), (128, 4, 128, 2, 3), (128, 4, 64, 1, 4)),
    32: ((128, 4, 128, 2, 3), (128, 2, 128, 2, 4)),
    64: ((128, 4, 128, 2, 1),),
}
FEW_SPLITS = 2  # that fill the device's slots once: too few blocks to fill them well
USUAL_SPLITS = (2, 3, 6)  # of the winners then
MOST_SPLITS = 3  # to prefer for a configuration
FEW_COLUMNS = 16
# Where k is short: threads, lane_rows, min_blocks.
FEW_COLUMNS_SHORT = ((128, 8, 4), (128, 8, 1), (256, 8, 1))
SHORTEST = ((128, 16, 4), (256, 16, 2), (128, 8, 1))  # of up to 8 products
# Tiles of rows a block, of which one fills the device's slots nearly once: of others the last wave is half empty.
LONG_RUNS = (20, 28, 40, 56, 80)
LEAST_FILLED = 0.7  # of the slots
SMALL_M = 2**18  # rows that several blocks should share
MOST_SHORT = 9  # configurations to prefer where k is short
MANY_COLUMNS_SHORT = ((128, 8, 1), (128, 4, 1), (128, 2, 4))


@dataclass(frozen=True, slots=True, order=True)
class HalfConfig(KernelConfig):
    """Every choice that the templates need: of A in registers, and of A through a ring."""

    threads: Annotated[int, Tunable("threads of a block", symbol="t1", letter="t")]
    lane_rows: Annotated[int, Tunable("rows of C of which a lane has sums, an eighth of a warp's", letter="m")]
    columns: Annotated[int, Tunable("columns of C that one warp accumulates in registers", symbol="t2", letter="c")]
    prefetch: Annotated[
        int, Tunable("columns of A that one warp has in registers, on their way or arrived", symbol="t3", letter="p")
    ]
    stages: Annotated[int, Tunable("groups in which these are used and loaded anew", letter="s")]
    splits: Annotated[int, Tunable("parts of k, each a block of its own", usual=1, is_launch=True, letter="k")]
    row_tiles: Annotated[
        int, Tunable("tiles of rows for each block of the grid", symbol="tcf", usual=1, is_launch=True, letter="r")
    ]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]


@dataclass(frozen=True, slots=True, order=True)
class TsmrHalfConfig(HalfConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmr_half"

    evict_first: EvictFirst = 1


def tile_depth(config: HalfConfig) -> int:
    """Rows of B staged at a time; twice as many stay where that is all."""
    return max(config.prefetch, 64, STAGED_ELEMENTS // config.columns)


def run(config: HalfConfig, element_bytes: int) -> int:
    """Neighbours along k that a lane holds, of up to 16 bytes: four lanes share a group, or parts of it."""
    return min(VECTOR_BYTES // element_bytes, config.prefetch // config.stages // 4)


def _block_rows(config: HalfConfig) -> int:
    return config.threads // WARP_THREADS * LANES_DOWN * config.lane_rows


def one_wave_first(
    family: TsmrHalf, variants: Sequence[HalfConfig], problem: Problem, limits: DeviceLimits
) -> tuple[HalfConfig, ...]:
    """The variants, in turns, each with its splits: those that give every slot of the device a block come first."""

    def splits_of(variant: HalfConfig) -> list[int]:
        tiles = family.launch(variant, problem).tiles(problem.m, problem.n)
        slots = limits.sms * variant.min_blocks
        one_wave = max(splits for splits in SPLITS if splits == 1 or splits * tiles <= slots)
        others = splits_to_prefer(
            limits,
            problem,
            resources=family.resources(variant, problem),
            min_blocks=variant.min_blocks,
            tiles=tiles,
        )
        first = (one_wave,) if one_wave > FEW_SPLITS else USUAL_SPLITS
        worth = [splits for splits in first if splits <= problem.k // LEAST_SHARE]
        return list(dict.fromkeys((*worth, *others)))[:MOST_SPLITS]

    return in_turns([replace(variant, splits=splits) for splits in splits_of(variant)] for variant in variants)


def long_run(tiles: int, slots: int) -> int:
    """The tiles a block that give nearly every slot one block; 0 where no option does."""
    return next((run for run in LONG_RUNS if LEAST_FILLED * slots <= -(-tiles // run) <= slots), 0)


class TsmrHalf(Family[HalfConfig]):
    name = "tsmr_half"
    on_tensor_cores = True
    summary = "large or tall A times skinny B in 16 bits on the tensor cores, A streaming into their fragments"
    template = "tsmr_half.cu.jinja"
    dtypes = ("bf16", "f16")
    rules: ClassVar[tuple[Rule, ...]] = (
        HAS_HALF_TENSOR_CORES,
        *streaming_rules(COLUMNS, PREFETCH_STAGES),
    )
    config_type: type[HalfConfig] = TsmrHalfConfig

    def configurations(self) -> Iterator[HalfConfig]:
        divisions = (*SPLITS_ROW_TILES, *((1, tiles) for tiles in LONG_RUNS))
        for threads, lane_rows, columns, ahead, division, min_blocks in product(
            THREADS, LANE_ROWS, COLUMNS, PREFETCH_STAGES, divisions, MIN_BLOCKS
        ):
            yield self.config_type(threads, lane_rows, columns, *ahead, *division, min_blocks)

    def resources(self, config: HalfConfig, problem: Problem) -> Resources:
        rows = LANES_DOWN * config.lane_rows
        loaded_bytes = rows * config.prefetch * problem.dtype.element_bytes // WARP_THREADS
        registers = (
            rows * config.columns // WARP_THREADS + loaded_bytes // 4 + FRAGMENT_REGISTERS + OVERHEAD_REGISTERS
        )
        in_flight = config.prefetch - config.prefetch // config.stages // 2
        return Resources(
            threads=config.threads,
            registers=registers,
            smem_bytes=2 * tile_depth(config) * config.columns * problem.dtype.element_bytes,
            bytes_in_flight=in_flight * rows * problem.dtype.element_bytes // WARP_THREADS,
            reuse=config.columns,
        )

    def launch(self, config: HalfConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=_block_rows(config) * config.row_tiles,
            smem_bytes=self.resources(config, problem).smem_bytes,
            columns_per_block=config.columns,
            splits=config.splits,
        )

    def periods(self, config: HalfConfig, problem: Problem) -> Periods:
        return Periods(_block_rows(config), config.columns, tile_depth(config))

    def share_step(self, config: HalfConfig, problem: Problem) -> int:
        return config.prefetch

    def traffic(self, config: HalfConfig, problem: Problem) -> Traffic:
        return split_traffic(problem, columns=config.columns, splits=config.splits)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes

    def probe_shapes(self, config: HalfConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """What has branches of its own, whole and in part: blocks of rows, groups of columns, shares of k.

        In the first three B stays in shared memory, and shares are empty; in the last three a share takes three
        tiles of B: in whole prefetches, with a rest that is aligned, and with one that is not.
        """
        rows, prefetch = _block_rows(config), config.prefetch
        deep = (2 * tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, max(prefetch - 2, 1)),
            (rows, config.columns, prefetch + 8),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (rows + 8, config.columns - 1, deep),
            ((2 * config.row_tiles - 1) * rows + 8, config.columns // 2, deep - 8),
            (rows + 2, 2, deep - 1),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[HalfConfig, ...]:
        """Where the winners on an H200 lay: every column at once, few splits, or several tiles of rows."""
        columns = next((option for option in COLUMNS if option >= problem.n), COLUMNS[-1])
        if problem.k < 2 * LEAST_SHARE:
            return self._preferred_of_short(problem, limits, columns)
        if columns == COLUMNS[-1] and problem.dtype.element_bytes == 2:  # a ring in shared memory leaves registers
            return ()
        row_major = problem.contiguous[0] == "k"
        variants = (ROW_MAJOR if row_major else COLUMN_MAJOR)[columns]
        if problem.dtype.element_bytes > 2:  # as many bytes on their way
            variants = tuple((t, rows, p // 2, s if p >= 32 * s else 1, b) for t, rows, p, s, b in variants)
        chosen = [self.config_type(t, rows, columns, p, s, 1, 1, least) for t, rows, p, s, least in variants]
        return one_wave_first(self, chosen, problem, limits)

    def _preferred_of_short(self, problem: Problem, limits: DeviceLimits, columns: int) -> tuple[HalfConfig, ...]:
        """Several tiles of rows a block; with few columns so many that one wave of blocks has all of them."""
        few = columns <= FEW_COLUMNS
        ahead: tuple[tuple[int, int], ...] = ((64, 4), (64, 1))
        if problem.k <= 32:
            ahead = ((8, 1),) if problem.k <= 8 else ((16, 1),) if problem.k <= 16 else ((32, 2), (32, 1))
        tiles: tuple[int, ...] = (8, 4, 2) if few else (8, 4) if columns < COLUMNS[-1] else (4, 8)
        tiles = (1,) if problem.m <= SMALL_M else tiles
        shapes = SHORTEST if problem.k <= 8 else FEW_COLUMNS_SHORT if few else MANY_COLUMNS_SHORT
        chosen = [
            self.config_type(threads, lane_rows, columns, *division, 1, row_tiles, min_blocks)
            for row_tiles in tiles
            for division in ahead
            for threads, lane_rows, min_blocks in shapes
        ]
        if few:
            runs = [long_run(-(-problem.m // _block_rows(one)), limits.sms * one.min_blocks) for one in chosen]
            long = [replace(one, row_tiles=run) for one, run in zip(chosen, runs, strict=True) if run]
            chosen = list(dict.fromkeys((*long, *chosen)))[:MOST_SHORT]
        return tuple(chosen)

    def context(self, config: HalfConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, along_c = problem.contiguous
        element_bytes = problem.dtype.element_bytes
        transposed_b = along_b == "n" and element_bytes == 2
        # Columns of C that a lane stores as one vector; where few are stored, those that a piece of B begins.
        side_by_side = min(config.columns // 4, VECTOR_BYTES // element_bytes)
        if along_c != "n" or config.splits > 1:
            side_by_side = 2
        lane_run = side_by_side if along_c == "n" else config.lane_rows
        return {
            "about": "A streams into the tensor cores' fragments, B through shared memory",
            "kernel": self.name,
            "one_tile": False,
            "store_bits": VECTORS[min(lane_run * element_bytes, VECTOR_BYTES)],
            "most_loads": most_loads(self.resources(config, problem).registers),
            "storage": problem.storage,
            "piece_bits": VECTORS[min(config.lane_rows * element_bytes, VECTOR_BYTES)],
            "run": run(config, element_bytes),
            "run_bits": VECTORS[run(config, element_bytes) * element_bytes],
            "a_along_k": along_a == "k",
            "b_along_n": along_b == "n",
            "c_along_n": along_c == "n",
            "transposed_b": transposed_b,
            "piece_of_b": VECTORS[VECTOR_BYTES if transposed_b and side_by_side == 2 else 4],
            "side_by_side": side_by_side,
            "tile_depth": tile_depth(config),
        }


FAMILIES = (TsmrHalf(),)
