"""TSMT on the tensor cores, for complex numbers: the (conjugate) transpose of a tall matrix times another.

A complex product is four real ones of the f64 tensor cores. Real and imaginary parts are neighbours in memory: one
16-byte load brings both, into the registers in which the tensor core wants them. They are as fast as fused
multiply-adds in f32 and leave most of the issue slots free, so that c64 is computed by them too, in double precision.
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
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.tiles import LARGEST_THIN, tile_rules, tile_traffic
from tsm2_tune.generator.tunables import EvictFirst, Tunable

THREADS = (128, 256)
TILE = (8, 16, 32, 64)  # rows and columns of C, of a block
COVERED = 32  # rows and columns that a tile should have where C has as many: more take all registers of a block
WARP_TILES = ((1, 1), (1, 2), (2, 2), (4, 2))  # strips of 8 rows, octets of columns
STEP_STAGES = ((8, 1), (8, 2), (8, 4), (16, 2))
MIN_BLOCKS = (1, 3)
OCTET, WARP_THREADS = 8, 32  # rows of a strip, columns of an octet


@dataclass(frozen=True, slots=True, order=True)
class TsmtZmmaConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_zmma"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    tile_rows: Annotated[int, Tunable("rows of C that one block computes", word="block", letter="m")]
    tile_columns: Annotated[int, Tunable("columns of C that one block computes", word="block", letter="n")]
    strips: Annotated[
        int, Tunable("strips of 8 rows of C that one warp accumulates in registers", word="warp", unit=8, letter="r")
    ]
    octets: Annotated[
        int, Tunable("octets of columns of C that one warp accumulates in registers", word="warp", unit=8, letter="c")
    ]
    step: Annotated[int, Tunable("products along k that one warp loads for at a time", letter="p")]
    stages: Annotated[int, Tunable("such loads that one warp has in registers, on their way or arrived", letter="s")]
    splits: Annotated[int, Tunable("blocks among which k is divided", usual=1, is_launch=True, letter="k")]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]
    evict_first: EvictFirst = 1


def teams(config: TsmtZmmaConfig) -> int:
    """Groups of warps in a block that each have the whole tile, and different k."""
    team = (config.tile_rows // (OCTET * config.strips)) * (config.tile_columns // (OCTET * config.octets))
    return config.threads // WARP_THREADS // team


def chunk(config: TsmtZmmaConfig) -> int:
    """Products along k that a block computes at a time."""
    return teams(config) * config.step


class TsmtZmma(Family[TsmtZmmaConfig]):
    name = "tsmt_zmma"
    on_tensor_cores = True
    summary = "transposed tall and skinny times tall and skinny, complex, on the f64 tensor cores"
    template = "tsmt_zmma.cu.jinja"
    dtypes = ("c64", "c128")
    rules = (
        HAS_F64_TENSOR_CORES,
        *tile_rules(TILE, covered=COVERED),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    config_type = TsmtZmmaConfig

    def configurations(self) -> Iterator[TsmtZmmaConfig]:
        tiles = [
            (tile_rows, tile_columns, strips, octets)
            for tile_rows, tile_columns, (strips, octets) in product(TILE, TILE, WARP_TILES)
            if tile_rows % (OCTET * strips) == 0 and tile_columns % (OCTET * octets) == 0
        ]
        for threads, tile, ahead, splits, min_blocks in product(THREADS, tiles, STEP_STAGES, WIDE_SPLITS, MIN_BLOCKS):
            config = TsmtZmmaConfig(threads, *tile, *ahead, splits, min_blocks)
            if teams(config) >= 1:
                yield config

    def resources(self, config: TsmtZmmaConfig, problem: Problem) -> Resources:
        rows, columns = OCTET * config.strips, OCTET * config.octets
        loaded = (rows + columns) * config.step * config.stages // WARP_THREADS
        registers = 4 * rows * columns // WARP_THREADS + loaded * problem.dtype.registers
        return Resources(
            threads=config.threads,
            registers=registers + OVERHEAD_REGISTERS,
            smem_bytes=teams(config) * config.tile_rows * config.tile_columns * problem.dtype.element_bytes,
            bytes_in_flight=loaded * problem.dtype.element_bytes // 2,
            reuse=columns,
        )

    def launch(self, config: TsmtZmmaConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
        )

    def periods(self, config: TsmtZmmaConfig, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, chunk(config))

    def traffic(self, config: TsmtZmmaConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= LARGEST_THIN

    def probe_shapes(self, config: TsmtZmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split."""
        rows, columns, block_k = config.tile_rows, config.tile_columns, chunk(config)
        return (
            (rows, columns, block_k * (config.splits * config.stages + 3)),
            (rows + 1, columns - 1, 2 * block_k + config.step + 1),
            (rows - 1, columns + 1, config.step - 1),
            (rows + 2, columns + 2, 2 * block_k + 1),
        )

    def context(self, config: TsmtZmmaConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        return {
            "about": "complex operands stream into fragments, k over every warp",
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "pairs": problem.dtype_name == "c64",  # neighbours along k that one load brings
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
        }


FAMILIES = (TsmtZmma(),)
