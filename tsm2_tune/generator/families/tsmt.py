"""TSMT: the transpose of a tall and skinny matrix times another, C = X^T Y, whose inner dimension is huge.

C is so small that a few threads hold all of it in registers. Every team of threads sums over its own part of k, and
the sums of all teams are added up in a fixed order: over the warp, over the block, over groups of blocks, over all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import FMA_DTYPES, TF32_DTYPES, Problem
from tsm2_tune.generator.rules import REGISTERS_REACHABLE, Rule
from tsm2_tune.generator.split_k import (
    WIDE_SPLIT_RULES,
    WIDE_SPLITS,
    adders,
    flat_splits,
    mostly_busy,
)
from tsm2_tune.generator.tiles import LARGEST_THIN, mirrored, tile_rules, tile_traffic
from tsm2_tune.generator.tunables import EvictFirst, Tunable

THREADS = (128, 256, 512)
TILE = (1, 2, 4, 8, 16, 32, 64)  # rows and columns of C, of a block
THREAD_TILES = ((8, 8), (4, 4), (8, 4), (8, 16), (16, 16))  # the most rows and columns of C, of a thread
STEP_STAGES = ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1))
MIN_BLOCKS = (1, 2, 3)
WARP_THREADS = 32
LARGEST_TEAM = 64  # threads that share a tile of C


@dataclass(frozen=True, slots=True, order=True)
class TsmtConfig(KernelConfig):
    """Every choice that the TSMT template needs."""

    family: ClassVar[str] = "tsmt"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    tile_rows: Annotated[int, Tunable("rows of C that one block computes", word="block", letter="m")]
    tile_columns: Annotated[int, Tunable("columns of C that one block computes", word="block", letter="n")]
    rows: Annotated[int, Tunable("rows of C that one thread accumulates in registers", word="thread", letter="r")]
    columns: Annotated[
        int, Tunable("columns of C that one thread accumulates in registers", word="thread", letter="c")
    ]
    step: Annotated[int, Tunable("products along k that one thread loads for at a time", word="thread", letter="p")]
    stages: Annotated[
        int, Tunable("such loads that one thread has in registers, on their way or arrived", letter="s")
    ]
    splits: Annotated[int, Tunable("blocks among which k is divided", usual=1, is_launch=True, letter="k")]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]
    evict_first: EvictFirst = 1


def team(config: TsmtConfig) -> int:
    """Threads that share a tile of C."""
    return (config.tile_rows // config.rows) * (config.tile_columns // config.columns)


def is_half(config: TsmtConfig, problem: Problem) -> bool:
    """Whether a thread has half of a tile of a Gram matrix, the rest being its mirror image, and loads X once."""
    return problem.is_gram and team(config) == 1 and config.rows == config.columns


def sums(config: TsmtConfig, problem: Problem) -> int:
    """Of products, that a thread accumulates in registers."""
    return config.rows * (config.rows + 1) // 2 if is_half(config, problem) else config.rows * config.columns


def _config(candidate: Candidate) -> TsmtConfig:
    assert isinstance(candidate.config, TsmtConfig)
    return candidate.config


def _chunks_for_all(candidate: Candidate) -> bool:
    config, problem = _config(candidate), candidate.problem
    chunk = config.threads // team(config) * config.step
    return config.splits == WIDE_SPLITS[0] or mostly_busy(config.splits, -(-problem.k // chunk))


class Tsmt(Family[TsmtConfig]):
    name = "tsmt"
    summary = "transposed tall and skinny times tall and skinny: C in registers, k over every thread"
    template = "tsmt.cu.jinja"
    dtypes = (*FMA_DTYPES, *TF32_DTYPES)  # TF32 asks for no more than f32 gives
    rules = (
        *tile_rules(TILE),
        Rule(
            "chunks-for-all",
            "shape",
            "most blocks should have a chunk of k",
            _chunks_for_all,
        ),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    config_type = TsmtConfig

    def configurations(self) -> Iterator[TsmtConfig]:
        tiles = sorted(
            {
                (tile_rows, tile_columns, min(tile_rows, rows), min(tile_columns, columns))
                for tile_rows, tile_columns, (rows, columns) in product(TILE, TILE, THREAD_TILES)
            }
        )
        for threads, tile, ahead, splits, min_blocks in product(THREADS, tiles, STEP_STAGES, WIDE_SPLITS, MIN_BLOCKS):
            config = TsmtConfig(threads, *tile, *ahead, splits, min_blocks)
            if team(config) <= LARGEST_TEAM:
                yield config

    def resources(self, config: TsmtConfig, problem: Problem) -> Resources:
        loaded = (config.rows + (0 if is_half(config, problem) else config.columns)) * config.step * config.stages
        warps = config.threads // WARP_THREADS // max(team(config) // WARP_THREADS, 1)
        tile = config.tile_rows * config.tile_columns
        copies = max(warps, adders(threads=config.threads, tile_bytes=tile * problem.dtype.element_bytes))
        return Resources(
            threads=config.threads,
            registers=(sums(config, problem) + loaded) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=copies * tile * problem.dtype.element_bytes,
            bytes_in_flight=loaded * problem.dtype.element_bytes // 2,
            reuse=config.columns,
        )

    def launch(self, config: TsmtConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
            flat_splits=flat_splits(config.tile_rows * config.tile_columns),
        )

    def periods(self, config: TsmtConfig, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, config.threads // team(config) * config.step)

    def traffic(self, config: TsmtConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return max(problem.m, problem.n) <= LARGEST_THIN and problem.dtype_name in self.dtypes

    def probe_shapes(self, config: TsmtConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split.

        The first has vectors and a rest of k, the last vectors that a part-filled tile must not reach past. The
        fourth, whose k is 1 more than a multiple of 4, has aligned addresses where the leading dimensions of the
        general call are not, or the other way round.
        """
        chunk = config.threads // team(config) * config.step
        rows, columns = config.tile_rows, config.tile_columns
        return (
            (rows, columns, chunk * (config.splits * config.stages + 3) + config.step),
            (rows + 1, max(columns - 1, 1), 2 * chunk + config.step + 1),
            (max(rows - 1, 1), columns + 1, max(config.step - 1, 1)),
            (rows + config.rows, columns + config.columns, 2 * chunk + 1),
            (config.rows, config.columns, chunk),
        )

    def context(self, config: TsmtConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        tile_bytes = config.tile_rows * config.tile_columns * problem.dtype.element_bytes
        return {
            "about": "C in registers, k over every thread",
            "gram": is_half(config, problem),
            "mirrored": mirrored(problem),
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
            "adders": adders(threads=config.threads, tile_bytes=tile_bytes),
        }


FAMILIES = (Tsmt(),)
