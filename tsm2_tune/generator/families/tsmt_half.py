"""TSMT on the tensor cores, for bf16 and f16: the transpose of a tall and skinny matrix times another.

Both operands go from memory straight into registers, as A does in TSMR for these types: along k as the tensor core
wants them, across k as neighbouring rows or columns of C, of which byte permutations make neighbours along k. Sums
are in f32 up to the last; C is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Resources, Traffic
from tsm2_tune.generator.families.family import Family, Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.splitting import HAS_HALF_TENSOR_CORES, REGISTERS_REACHABLE, WIDE_SPLIT_RULES, WIDE_SPLITS
from tsm2_tune.generator.tiles import LARGEST_THIN, covering, tile_rules, tile_traffic

THREADS = (128, 256)
TILE = (16, 32, 64)  # rows and columns of C, of a block
WARP_TILES = (
    (1, 2),
    (1, 4),
    (1, 8),
    (2, 2),
    (2, 4),
    (4, 2),
    (4, 4),
    (2, 8),
    (4, 8),
)  # strips of 16 rows, octets of columns
STEP_STAGES = ((16, 2), (32, 1), (32, 2), (64, 1))
MIN_BLOCKS = (1, 2, 3, 4)
LARGEST_TEAM = 2  # of warps that have one tile together
STRIP_ROWS, OCTET_COLUMNS, WARP_THREADS = 16, 8, 32
VECTORS = {2: "unsigned", 4: "uint2", 8: "uint4"}  # CUDA's type of so many elements


@dataclass(frozen=True, slots=True, order=True)
class TsmtHalfConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_half"
    letters: ClassVar[dict[str, str]] = {
        "threads": "t",
        "tile_rows": "m",
        "tile_columns": "n",
        "strips": "r",
        "octets": "c",
        "step": "p",
        "stages": "s",
        "splits": "k",
        "min_blocks": "b",
    }

    threads: int  # per block
    tile_rows: int  # of C, of a block
    tile_columns: int  # of C, of a block
    strips: int  # of 16 rows of C, of a warp
    octets: int  # of 8 columns of C, of a warp
    step: int  # products along k that one warp loads for at a time
    stages: int  # such loads that one warp has in registers
    splits: int  # of k
    min_blocks: int  # on a multiprocessor, which bounds the registers


def teams(config: TsmtHalfConfig) -> int:
    """Groups of warps in a block that each have the whole tile, and different k."""
    rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
    return config.threads // WARP_THREADS // ((config.tile_rows // rows) * (config.tile_columns // columns))


def chunk(config: TsmtHalfConfig) -> int:
    """Products along k that a block computes at a time."""
    return teams(config) * config.step


class TsmtHalf(Family[TsmtHalfConfig]):
    name = "tsmt_half"
    summary = "transposed tall and skinny times tall and skinny in 16 bits on the tensor cores"
    template = "tsmt_half.cu.jinja"
    dtypes = ("bf16", "f16")
    tunables = (
        Tunable("threads", "", "threads of a block"),
        Tunable("tile_rows", "", "rows of C that one block computes"),
        Tunable("tile_columns", "", "columns of C that one block computes"),
        Tunable("strips", "", "strips of 16 rows of C that one warp accumulates in registers"),
        Tunable("octets", "", "octets of columns of C that one warp accumulates in registers"),
        Tunable("step", "", "products along k that one warp loads for at a time"),
        Tunable("stages", "", "such loads that one warp has in registers, on their way or arrived"),
        Tunable("splits", "", "blocks among which k is divided"),
        Tunable("min_blocks", "", "blocks that a multiprocessor must hold, which bounds the registers"),
    )
    rules = (
        HAS_HALF_TENSOR_CORES,
        *tile_rules(TILE),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    config_type = TsmtHalfConfig

    def configurations(self) -> Iterator[TsmtHalfConfig]:
        tiles = [
            (tile_rows, tile_columns, strips, octets)
            for tile_rows, tile_columns, (strips, octets) in product(TILE, TILE, WARP_TILES)
            if tile_rows % (STRIP_ROWS * strips) == 0 and tile_columns % (OCTET_COLUMNS * octets) == 0
            if tile_rows * tile_columns <= LARGEST_TEAM * STRIP_ROWS * strips * OCTET_COLUMNS * octets
        ]
        for threads, tile, ahead, splits, min_blocks in product(THREADS, tiles, STEP_STAGES, WIDE_SPLITS, MIN_BLOCKS):
            config = TsmtHalfConfig(threads, *tile, *ahead, splits, min_blocks)
            if teams(config) >= 1:
                yield config

    def resources(self, config: TsmtHalfConfig, problem: Problem) -> Resources:
        rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
        loaded = (rows + columns) * config.step * config.stages // WARP_THREADS
        fragments = 2 * config.octets + 4
        return Resources(
            threads=config.threads,
            registers=rows * columns // WARP_THREADS + loaded // 2 + fragments + OVERHEAD_REGISTERS,
            smem_bytes=teams(config) * config.tile_rows * config.tile_columns * problem.dtype.sum.element_bytes,
            bytes_in_flight=loaded * problem.dtype.element_bytes // 2,
            reuse=columns,
        )

    def launch(self, config: TsmtHalfConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
        )

    def traffic(self, config: TsmtHalfConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= LARGEST_THIN

    def probe_shapes(self, config: TsmtHalfConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split.

        Extents that are multiples of 8 keep vectors whole where tiles and chunks are not. The fifth and the sixth
        have aligned addresses where the leading dimensions of the general call are not, across k and along k.
        """
        rows, columns, block_k = config.tile_rows, config.tile_columns, chunk(config)
        return (
            (rows, columns, block_k * (config.splits * config.stages + 3)),
            (rows + 1, columns - 1, 2 * block_k + config.step + 1),
            (rows - 8, columns + 8, block_k * 3 + 8),
            (rows - 1, columns + 1, config.step - 1),
            (rows + 8, columns + 8, 2 * block_k + 1),
            (rows + 1, columns + 1, 2 * block_k + config.step),
            (rows - 2, columns - 2, block_k),
        )

    def preferred(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmtHalfConfig, ...]:
        """Every product of C in one tile."""
        tile_rows = covering(TILE, problem.m)
        tile_columns = covering(TILE, problem.n)
        strips, octets = tile_rows // STRIP_ROWS, tile_columns // OCTET_COLUMNS
        chosen = []
        for warp_tile in dict.fromkeys(((strips, octets), (max(strips // 2, 1), octets))):
            for threads, step, stages in ((128, 32, 2), (128, 64, 1), (128, 32, 1), (128, 16, 2), (256, 32, 1)):
                config = TsmtHalfConfig(threads, tile_rows, tile_columns, *warp_tile, step, stages, limits.sms, 1)
                resources = self.resources(config, problem)
                most = limits.registers_per_sm // (threads * resources.registers)
                for blocks in sorted({min(most, 4), min(most, 4) // 2} - {0}, reverse=True):
                    bounded = limits.registers_per_sm // (threads * blocks) <= 2 * resources.registers
                    chosen.append(replace(config, splits=limits.sms * blocks, min_blocks=blocks if bounded else 1))
        return tuple(chosen)

    def context(self, config: TsmtHalfConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        run = 4 if config.step == 16 else 8
        return {
            "run": run,
            "run_bits": VECTORS[run],
            "vector_bits": {"A": VECTORS[2 * config.strips], "B": VECTORS[config.octets]},
            "about": "both operands stream into the tensor cores' fragments, k over every warp",
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "groups": self.launch(config, problem).groups,
            "group_splits": GROUP_SPLITS,
        }


FAMILY = TsmtHalf()
