"""TSMT for few columns in bf16 and f16, by fused multiply-adds in f32: every thread has sums of all of C.

The tensor cores' fragments would be padding for the most part. Loads are pieces of 16 bytes of neighbouring lanes:
along k of each column, or across it, where X is no wider than its columns, of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.candidate import Candidate, tunable
from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import REGISTERS_REACHABLE, Rule
from tsm2_tune.generator.split_k import (
    SMALL_K,
    WIDE_SPLIT_RULES,
    WIDE_SPLITS,
    flat_splits,
    mostly_busy,
    splits_of_few_chunks,
    wide_splits,
)
from tsm2_tune.generator.tiles import LARGEST_THIN, tile_rules, tile_traffic
from tsm2_tune.generator.tunables import EvictFirst, Tunable

TILE = (1, 2, 3, 4, 5, 6, 7, 8)  # rows and columns of C
# Threads, piece, stages and blocks that a multiprocessor must hold.
LOADS = (
    (128, 2, 2, 1), (128, 2, 2, 4), (128, 4, 1, 1), (128, 4, 1, 3), (128, 4, 1, 4), (128, 4, 2, 1), (128, 8, 1, 1),
    (128, 8, 2, 1), (256, 4, 2, 1), (256, 8, 1, 1), (256, 8, 2, 1), (512, 4, 2, 1), (512, 8, 1, 1), (512, 8, 2, 1),
    (1024, 4, 1, 1),
)  # fmt: skip
# What won on an H200 for so many rows or columns at most, where an operand lies along k and where none does: threads,
# piece, stages, blocks that a multiprocessor must hold, and those that it gets.
WINNERS: dict[tuple[int, bool], tuple[tuple[int, int, int, int, int], ...]] = {
    (2, True): ((256, 8, 1, 1, 3), (256, 8, 2, 1, 4), (512, 8, 2, 1, 2), (512, 8, 1, 1, 2)),
    (2, False): ((256, 8, 2, 1, 4), (512, 8, 2, 1, 1), (256, 4, 2, 1, 4), (512, 4, 2, 1, 2)),
    (4, True): ((256, 8, 1, 1, 2), (128, 8, 1, 1, 4), (512, 8, 1, 1, 1), (128, 8, 2, 1, 4)),
    (4, False): ((1024, 4, 1, 1, 1), (128, 8, 2, 1, 4), (512, 4, 2, 1, 1), (256, 4, 2, 1, 2)),
    (8, True): ((128, 8, 1, 1, 2), (128, 4, 1, 4, 4), (128, 8, 2, 1, 2), (128, 4, 2, 1, 3)),
    (8, False): ((128, 4, 1, 4, 4), (128, 4, 1, 3, 3), (128, 4, 2, 1, 3), (128, 2, 2, 4, 4)),
}
WARP_THREADS, VECTOR_BYTES, SUM_VECTOR = 32, 16, 4
MOST_ADDERS = 64  # groups of a block's threads that add up splits, a vector each: one round of loads for most splits
VECTORS = {4: "unsigned", 8: "uint2", 16: "uint4"}  # CUDA's type of so many bytes


@dataclass(frozen=True, slots=True, order=True)
class TsmtFewConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_few"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    tile_rows: Annotated[int, Tunable("rows of C of which every thread has sums", word="block", letter="m")]
    tile_columns: Annotated[int, Tunable("columns of C of which every thread has sums", word="block", letter="n")]
    piece: Annotated[int, Tunable("neighbours along k that one thread has of every line at a time", letter="p")]
    stages: Annotated[
        int, Tunable("such pieces that one thread has in registers, on their way or arrived", letter="s")
    ]
    splits: Annotated[int, Tunable("blocks among which k is divided", usual=1, is_launch=True, letter="k")]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]
    evict_first: EvictFirst = 1


def chunk(config: TsmtFewConfig) -> int:
    """Products along k that a block computes at a time."""
    return config.threads * config.piece


def adders(config: TsmtFewConfig) -> int:
    """Groups of a block's threads that share the splits' sums."""
    tile = config.tile_rows * config.tile_columns
    return min(MOST_ADDERS, config.threads // (tile // gcd(tile, SUM_VECTOR)))


def vector_bytes(piece: int, lines: int, along_k: bool, element_bytes: int) -> int:
    """Of one load of a piece: of a line, or of all lines where these are side by side."""
    return gcd(VECTOR_BYTES, piece * element_bytes * (1 if along_k else lines))


def _wide_loads(candidate: Candidate) -> bool:
    problem, piece = candidate.problem, tunable(candidate, "piece")
    least = min(
        vector_bytes(piece, lines, along == "k", problem.dtype.element_bytes)
        for lines, along in zip(
            (tunable(candidate, "tile_rows"), tunable(candidate, "tile_columns")),
            problem.contiguous[:2],
            strict=True,
        )
    )
    return least >= VECTOR_BYTES // 2


class TsmtFew(Family[TsmtFewConfig]):
    name = "tsmt_few"
    summary = "transposed tall and skinny times tall and skinny in 16 bits, of few columns: all of C in every thread"
    template = "tsmt_few.cu.jinja"
    dtypes = ("bf16", "f16")
    rules = (
        *tile_rules(TILE, covered=LARGEST_THIN),
        Rule("wide-loads", "shape", "loads of 4 bytes keep the load unit busy", _wide_loads),
        Rule(
            "chunks-for-all",
            "shape",
            "most blocks should have a chunk of k",
            lambda c: (
                tunable(c, "splits") == WIDE_SPLITS[0]
                or mostly_busy(tunable(c, "splits"), -(-c.problem.k // (tunable(c, "threads") * tunable(c, "piece"))))
            ),
        ),
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    config_type = TsmtFewConfig

    def configurations(self) -> Iterator[TsmtFewConfig]:
        for tile_rows, tile_columns, (threads, piece, stages, min_blocks), splits in product(
            TILE, TILE, LOADS, WIDE_SPLITS
        ):
            yield TsmtFewConfig(threads, tile_rows, tile_columns, piece, stages, splits, min_blocks)

    def resources(self, config: TsmtFewConfig, problem: Problem) -> Resources:
        loaded = (config.tile_rows + config.tile_columns) * config.piece * config.stages
        tile = config.tile_rows * config.tile_columns
        sum_bytes = problem.dtype.sum.element_bytes
        sums = max(config.threads // WARP_THREADS, adders(config))
        return Resources(
            threads=config.threads,
            registers=tile + loaded // 2 + OVERHEAD_REGISTERS,
            smem_bytes=sums * tile * sum_bytes,
            bytes_in_flight=loaded * problem.dtype.element_bytes // 2,
            reuse=config.tile_columns,
        )

    def launch(self, config: TsmtFewConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
            flat_splits=flat_splits(config.tile_rows * config.tile_columns),
        )

    def periods(self, config: TsmtFewConfig, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, chunk(config))

    def traffic(self, config: TsmtFewConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= LARGEST_THIN

    def probe_shapes(self, config: TsmtFewConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split."""
        rows, columns = config.tile_rows, config.tile_columns
        return (
            (rows, columns, chunk(config) * (config.splits * config.stages + 3) + config.piece),
            (rows + 1, max(columns - 1, 1), 2 * chunk(config) + config.piece + 1),
            (max(rows - 1, 1), columns + 1, max(config.piece - 1, 1)),
            (rows, columns, 2 * chunk(config) + 1),
            (2 * rows, columns, chunk(config)),
            (rows, 2 * columns, chunk(config)),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmtFewConfig, ...]:
        """What won on an H200 for as many columns, and operands lying so."""
        largest = max(problem.m, problem.n)
        if largest > TILE[-1]:
            return ()
        winners = WINNERS[next(lines for lines in (2, 4, 8) if lines >= largest), "k" in problem.contiguous[:2]]
        chosen = [
            TsmtFewConfig(threads, problem.m, problem.n, piece, stages, splits, min_blocks)
            for threads, piece, stages, min_blocks, blocks in winners
            for splits in self._splits(problem, limits, chunk=threads * piece, blocks=blocks)
        ]
        return tuple(dict.fromkeys(self._bounded(config, problem, limits) for config in chosen))

    def _bounded(self, config: TsmtFewConfig, problem: Problem, limits: DeviceLimits) -> TsmtFewConfig:
        """Without a bound on registers that fewer columns would keep anyway."""
        bound = limits.registers_per_sm // (config.threads * config.min_blocks)
        return config if bound <= 2 * self.resources(config, problem).registers else replace(config, min_blocks=1)

    @staticmethod
    def _splits(problem: Problem, limits: DeviceLimits, *, chunk: int, blocks: int) -> list[int]:
        if problem.k > SMALL_K:
            return [wide_splits(limits, blocks)]
        return splits_of_few_chunks(problem.k, chunk=chunk, stages=1, limits=limits)[:2]

    def context(self, config: TsmtFewConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        tile = config.tile_rows * config.tile_columns
        bits = {}
        for name, lines, along in (("a", config.tile_rows, along_a), ("b", config.tile_columns, along_b)):
            size = vector_bytes(config.piece, lines, along == "k", problem.dtype.element_bytes)
            bits[f"{name}_bits"] = VECTORS[size]
        return {
            **bits,
            "about": "all of C in every thread, k over every thread",
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
            "sum_width": gcd(tile, SUM_VECTOR),
            "adders": adders(config),
        }


FAMILIES = (TsmtFew(),)
