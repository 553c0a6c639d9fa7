"""TSMT on the tensor cores, for f64: the transpose of a tall and skinny matrix times another.

Both operands go from memory straight into the registers in which the tensor core wants them, as in TSMR on the
tensor cores. It takes over from TSMT where C is too large for the registers of a few threads. A C of up to 8 rows or
columns is not padded to 16: there is a smaller product for it, and a warp then has all of an 8 x 8 C in two registers
a lane, which leaves the others to loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import REGISTERS_REACHABLE
from tsm2_tune.generator.split_k import (
    WIDE_SPLIT_RULES,
    WIDE_SPLITS,
    adders,
    flat_splits,
)
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.tiles import LARGEST_THIN, tile_rules, tile_traffic
from tsm2_tune.generator.tunables import EvictFirst, Tunable

THREADS = (128, 256, 512)
TILE = (8, 16, 32, 64)  # rows and columns of C, of a block
WARP_TILES = (
    (1, 1),
    (2, 1),
    (4, 1),
    (1, 2),
    (1, 4),
    (2, 2),
    (2, 4),
    (4, 4),
    (2, 8),
)  # strips of rows, octets of columns
STEP_STAGES = ((8, 2), (8, 3), (8, 4), (16, 1), (16, 2), (16, 3), (32, 1), (32, 2))
MIN_BLOCKS = (1, 2, 3, 4)
STRIP_ROWS, OCTET_COLUMNS, WARP_THREADS = 16, 8, 32


@dataclass(frozen=True, slots=True, order=True)
class TsmtMmaConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_mma"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    tile_rows: Annotated[int, Tunable("rows of C that one block computes", word="block", letter="m")]
    tile_columns: Annotated[int, Tunable("columns of C that one block computes", word="block", letter="n")]
    strips: Annotated[
        int, Tunable("strips of 16 rows of C, or of 8, that one warp accumulates in registers", letter="r")
    ]
    octets: Annotated[int, Tunable("octets of columns of C that one warp accumulates in registers", letter="c")]
    step: Annotated[int, Tunable("products along k that one warp loads for at a time", letter="p")]
    stages: Annotated[int, Tunable("such loads that one warp has in registers, on their way or arrived", letter="s")]
    splits: Annotated[int, Tunable("blocks among which k is divided", usual=1, is_launch=True, letter="k")]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]
    evict_first: EvictFirst = 1


def strip_rows(config: TsmtMmaConfig) -> int:
    """Rows of C in a strip: those of the tensor core's larger product where the tile has as many."""
    return min(STRIP_ROWS, config.tile_rows)


def teams(config: TsmtMmaConfig) -> int:
    """Groups of warps in a block that each have the whole tile, and different k."""
    rows, columns = strip_rows(config) * config.strips, OCTET_COLUMNS * config.octets
    return config.threads // WARP_THREADS // ((config.tile_rows // rows) * (config.tile_columns // columns))


def chunk(config: TsmtMmaConfig) -> int:
    """Products along k that a block computes at a time."""
    return teams(config) * config.step


class TsmtMma(Family[TsmtMmaConfig]):
    name = "tsmt_mma"
    on_tensor_cores = True
    summary = "transposed tall and skinny times tall and skinny on the f64 tensor cores"
    template = "tsmt_mma.cu.jinja"
    dtypes = ("f64",)
    rules = (
        HAS_F64_TENSOR_CORES,
        *tile_rules(TILE),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    config_type = TsmtMmaConfig

    def configurations(self) -> Iterator[TsmtMmaConfig]:
        tiles = [
            (tile_rows, tile_columns, strips, octets)
            for tile_rows, tile_columns, (strips, octets) in product(TILE, TILE, WARP_TILES)
            if tile_rows % (min(STRIP_ROWS, tile_rows) * strips) == 0 and tile_columns % (OCTET_COLUMNS * octets) == 0
        ]
        for threads, tile, ahead, splits, min_blocks in product(THREADS, tiles, STEP_STAGES, WIDE_SPLITS, MIN_BLOCKS):
            config = TsmtMmaConfig(threads, *tile, *ahead, splits, min_blocks)
            if teams(config) >= 1:
                yield config

    def resources(self, config: TsmtMmaConfig, problem: Problem) -> Resources:
        rows, columns = strip_rows(config) * config.strips, OCTET_COLUMNS * config.octets
        loaded = (rows + columns) * config.step * config.stages // WARP_THREADS
        elements = rows * columns // WARP_THREADS + loaded
        tile = config.tile_rows * config.tile_columns
        sums = max(teams(config), adders(threads=config.threads, tile_bytes=tile * problem.dtype.element_bytes))
        return Resources(
            threads=config.threads,
            registers=elements * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=sums * tile * problem.dtype.element_bytes,
            bytes_in_flight=loaded * problem.dtype.element_bytes // 2,
            reuse=columns,
        )

    def launch(self, config: TsmtMmaConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
            flat_splits=flat_splits(config.tile_rows * config.tile_columns),
        )

    def periods(self, config: TsmtMmaConfig, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, chunk(config))

    def traffic(self, config: TsmtMmaConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= LARGEST_THIN

    def probe_shapes(self, config: TsmtMmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split.

        The last but one, whose k is odd, has aligned addresses where the leading dimensions of the general call are
        not, or the other way round; the last has vectors that a part-filled tile must not reach past.
        """
        rows, columns, block_k = config.tile_rows, config.tile_columns, chunk(config)
        return (
            (rows, columns, block_k * (config.splits * config.stages + 3)),
            (rows + 1, columns - 1, 2 * block_k + config.step + 1),
            (rows - 2, columns + 2, block_k * 3 + 2),
            (rows - 1, columns + 1, config.step - 1),
            (rows + 2, columns + 2, 2 * block_k + 1),
            (rows - 2, columns - 2, block_k),
        )

    def context(self, config: TsmtMmaConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        tile_bytes = config.tile_rows * config.tile_columns * problem.dtype.element_bytes
        return {
            "about": "both operands stream into the tensor cores' fragments, k over every warp",
            "storage": problem.storage,
            "strip_rows": strip_rows(config),
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
            "adders": adders(threads=config.threads, tile_bytes=tile_bytes),
        }


FAMILIES = (TsmtMma(),)
