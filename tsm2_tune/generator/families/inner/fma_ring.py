"""Inner products with fused multiply-adds: both operands pass through a multistage pipeline in shared memory.

The kernel is as fast for an odd number of rows or columns of C as for a power of two. If an operand has no gaps in
memory, its part of a k tile is contiguous and 16-byte aligned, whatever the length of its rows or columns. So it is
copied in 16-byte vectors, each element once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import lcm
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.families.family import WARP_THREADS, WITHOUT_VECTORS, rule_of, vector_elements
from tsm2_tune.generator.families.inner.kernel import Inner, InnerConfig, Splits
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import RingStages, ThreadColumns, ThreadRows, Tunable
from tsm2_tune.generator.split_k import (
    CHUNKS_FOR_ALL,
    FEW_SPLITS_OF_BATCHES,
    MULTIPROCESSORS,
    WIDE_SPLIT_RULES,
)
from tsm2_tune.generator.tiles import tile_rules
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

THREADS = 256
# Rows or columns of C: per block, and the options per thread.
LINES = {
    1: (1,),
    2: (2, 1),
    3: (3, 1),
    4: (4, 2),
    6: (6, 3),
    8: (8, 4, 2),
    12: (6, 4, 3),
    16: (8, 4, 2),
    20: (5, 4),
    24: (8, 6, 4, 3),
    28: (7, 4),
    32: (8, 4, 2),
    40: (8, 5),
    48: (8, 6, 4, 3),
    56: (8, 7),
    64: (8, 4, 2),
}
TILE = tuple(LINES)
# Options of (stage_kib, stages).
RINGS = ((16, 3), (32, 2), (8, 4))
SPLITS = (*FEW_SPLITS_OF_BATCHES, 16, 40, *sorted({sms * blocks for sms in MULTIPROCESSORS for blocks in (1, 2)}))
MIN_BLOCKS, MOST_REGISTERS = 2, 128  # blocks per multiprocessor, and the registers per thread that they leave
WHOLE_LANES = 4  # 8 or more k slices are rounded down to a multiple of this, so that a k tile is whole vectors
MOST_LEFT = 8  # the most k slices whose sums a block adds up in the last step
LOADED = 32  # registers of a thread for elements of A and B


@dataclass(frozen=True, slots=True)
class InnerFmaRingConfig(InnerConfig):
    family: ClassVar[str] = "inner_fma_ring"

    rows: ThreadRows
    columns: ThreadColumns
    together: Annotated[
        int,
        Tunable(
            "1: the k slices of a block are contiguous in a k tile; 0: they are interleaved",
            is_constant=False,
            default=0,
        ),
    ]
    stage_kib: Annotated[int, Tunable("approximate KiB of one pipeline stage", is_constant=False)]
    stages: RingStages
    splits: Splits

    @property
    def lanes_of_k(self) -> int:
        slices = self.threads // team(self)
        return slices if slices < 2 * WHOLE_LANES else slices // WHOLE_LANES * WHOLE_LANES


def team(config: InnerFmaRingConfig) -> int:
    """Return the number of threads of one k slice, which share a tile of C."""
    return (config.block_m // config.rows) * (config.block_n // config.columns)


def block_k(config: InnerFmaRingConfig, problem: Problem) -> int:
    """Return the extent of a k tile of about `stage_kib` KiB: whole vectors, and whole for each k slice."""
    size = problem.dtype.element_bytes
    unit = lcm(config.lanes_of_k, VECTOR_BYTES // size)
    fitting = config.stage_kib * 1024 // ((config.block_m + config.block_n) * size)
    return max((fitting + unit // 2) // unit, 1) * unit


def at_once(config: InnerFmaRingConfig, problem: Problem) -> int:
    """Return the number of products along k for which a thread has elements of A and B in registers at a time."""
    rounds = block_k(config, problem) // config.lanes_of_k
    of_product = (config.rows + config.columns) * problem.dtype.registers
    return max(min(LOADED // of_product, rounds), 1)


def pitch(config: InnerFmaRingConfig, problem: Problem) -> int:
    """Return the elements from one row or column along k to the next in shared memory.

    It is an odd number of vectors, which avoids bank conflicts.
    """
    vector, products = vector_elements(problem), block_k(config, problem)
    return products + vector * (1 if products // vector % 2 == 0 else 2)


def parts_of(tile: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the thread tiles (rows, columns) that divide a block's tile among at most all threads of the block."""
    every = product(LINES[tile[0]], LINES[tile[1]])
    return [(rows, columns) for rows, columns in every if tile[0] // rows * (tile[1] // columns) <= THREADS]


class InnerFmaRing(Inner[InnerFmaRingConfig]):
    summary = "transposed tall and skinny times tall and skinny: both through shared memory, for any m and n"
    about = "both operands through a pipeline in shared memory, for any m and n"
    template = "inner/fma_ring.cu.jinja"
    rules = (
        *tile_rules(TILE),
        CHUNKS_FOR_ALL,
        rule_of(
            "reads-differ",
            "shape",
            "if a warp's threads all compute one k slice, its position in the k tile does not change their reads",
            lambda config, problem: config.together == 0 or team(config) % WARP_THREADS > 0,
            of=("threads", "block_m", "block_n", "rows", "columns", "together"),
        ),
        *WIDE_SPLIT_RULES,
    )
    moved_as_doubles = ()
    without_vectors = 1.0  # no penalty for unaligned lines across k: they are copied as one contiguous piece
    config_type = InnerFmaRingConfig
    axes: ClassVar = {
        "threads": (THREADS,),
        "block_m block_n rows columns": [(*tile, *part) for tile in product(TILE, TILE) for part in parts_of(tile)],
        "together": (0, 1),
        "stage_kib stages": RINGS,
        "splits": SPLITS,
    }

    def block_k(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        return block_k(config, problem)

    def sums_of_tile(self, config: InnerFmaRingConfig) -> int:
        """Return the number of partial sums per element of C in shared memory.

        While there are more than MOST_LEFT k slices, half of them write their sums to shared memory, and the other
        half add these sums to their own.
        """
        return max(config.lanes_of_k // 2, min(config.lanes_of_k, MOST_LEFT))

    def ring_bytes(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        a, b = (
            lines * (pitch if along == "k" else block_k)(config, problem)
            for lines, along in zip((config.block_m, config.block_n), problem.contiguous[:2], strict=True)
        )
        return config.stages * (a + b) * problem.dtype.element_bytes

    def registers(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        loaded = (config.rows + config.columns) * at_once(config, problem)
        return (config.rows * config.columns + loaded) * problem.dtype.registers

    def bytes_in_flight(self, config: InnerFmaRingConfig, problem: Problem) -> int:
        lines, places = config.block_m + config.block_n, config.stages - 1
        return lines * block_k(config, problem) * places * problem.dtype.element_bytes // config.threads

    def block_plan(self, config: InnerFmaRingConfig, problem: Problem) -> BlockPlan:
        block_plan = super().block_plan(config, problem)
        if "k" not in problem.contiguous[:2]:
            return block_plan
        return replace(block_plan, tiling_fields={"without_vectors": WITHOUT_VECTORS})

    def fits(self, problem: Problem) -> bool:
        return super().fits(problem) and not problem.is_gram  # other families compute half of a Gram matrix

    def probe_shapes(self, config: InnerFmaRingConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, products = config.block_m, config.block_n, block_k(config, problem)
        return (
            # Several k tiles for each split.
            (rows, columns, products * (config.splits * (config.stages + 1) - 1) + 4),
            (max(rows - 1, 1), max(columns - 1, 1), products * (config.splits + 2) + 3),
            (rows + 1, max(columns - 1, 1), 2 * products + 1),
            (max(rows - 1, 1), columns + 1, max(products // 2 - 1, 1)),  # less than a k tile
            (rows, columns, products),
            (2 * rows, 2 * columns, products + 4),
        )

    def context(self, config: InnerFmaRingConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "block_k": block_k(config, problem),
            "lanes_of_k": config.lanes_of_k,
            "pitch": pitch(config, problem),
            "at_once": at_once(config, problem),
            "most_left": MOST_LEFT,
            "min_blocks": MIN_BLOCKS if self.resources(config, problem).registers <= MOST_REGISTERS else 0,
        }
