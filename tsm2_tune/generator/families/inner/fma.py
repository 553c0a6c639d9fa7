"""Inner products with fused multiply-adds: a thread loads A and B straight into its registers.

In inner_fma_16bit, for a few columns of bf16 or f16, sums are in f32, and each thread accumulates all of C. For so
few columns, most of a tensor core's fragment would be padding. A thread loads vectors of up to 16 bytes, and
neighbouring lanes load neighbouring vectors. A vector of an operand that is contiguous along k holds elements of one
column. A vector of a row-major operand holds elements of all columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import FMA_DTYPES, TF32_DTYPES
from tsm2_tune.generator.families.family import rule_of
from tsm2_tune.generator.families.inner.kernel import (
    InnerConfig,
    Splits,
    Streamed,
    proposed_splits,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, ThreadColumns, ThreadRows, Tunable
from tsm2_tune.generator.split_k import CHUNKS_FOR_ALL, SPLITS_OF_GRIDS, WIDE_SPLIT_RULES
from tsm2_tune.generator.tiles import LARGEST_THIN, mirrored, thread_tiles, tile_rules
from tsm2_tune.generator.tiling import VECTOR_BYTES

TILE = (1, 2, 4, 8, 16, 32, 64)  # options of block_m and of block_n
THREAD_TILES = ((8, 8), (4, 4), (8, 4), (8, 16), (16, 16))  # the most rows and columns of C per thread
LARGEST_TEAM = 64  # the most threads that share a tile of C


@dataclass(frozen=True, slots=True)
class InnerFmaConfig(InnerConfig):
    family: ClassVar[str] = "inner_fma"

    rows: ThreadRows
    columns: ThreadColumns
    step: Annotated[int, Tunable("k extent of A and B that one thread loads at a time", word="thread")]
    stages: Annotated[int, Tunable("loads that one thread has in registers, in flight or in use")]
    splits: Splits
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1

    @property
    def team(self) -> int:
        """The number of threads of one k slice, which share a tile of C."""
        return (self.block_m // self.rows) * (self.block_n // self.columns)

    @property
    def lanes_of_k(self) -> int:
        return self.threads // self.team

    def is_half(self, problem: Problem) -> bool:
        """Return whether a thread computes half of a Gram matrix X^T X and mirrors it, so that it loads X once."""
        return problem.is_gram and self.team == 1 and self.rows == self.columns


class InnerFma(Streamed[InnerFmaConfig]):
    summary = "transposed tall and skinny times tall and skinny: C in registers, k divided among all threads"
    about = "C in registers, k divided among all threads"
    template = "inner/fma.cu.jinja"
    dtypes = (*FMA_DTYPES, *TF32_DTYPES)  # f32 is more accurate than TF32 requires
    rules = (*tile_rules(TILE), CHUNKS_FOR_ALL, *WIDE_SPLIT_RULES, REGISTERS_REACHABLE)
    rest_steps = 1
    moved_as_doubles = ("f64", "c64", "c128")
    config_type = InnerFmaConfig
    axes: ClassVar = {
        "threads": (128, 256, 512),
        "block_m block_n rows columns": thread_tiles(TILE, THREAD_TILES),
        "step stages": ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)),
        "splits": SPLITS_OF_GRIDS,
        "min_blocks": (1, 2, 3),
    }
    where: ClassVar = {"block_m block_n rows columns": lambda config: config.team <= LARGEST_TEAM}

    def registers(self, config: InnerFmaConfig, problem: Problem) -> int:
        rows, columns = config.rows, config.columns
        sums = rows * (rows + 1) // 2 if config.is_half(problem) else rows * columns
        return (sums + self.loaded(config, problem)) * problem.dtype.registers

    def loaded(self, config: InnerFmaConfig, problem: Problem) -> int:
        lines = config.rows + (0 if config.is_half(problem) else config.columns)
        return lines * config.step * config.stages

    def reuse(self, config: InnerFmaConfig) -> int:
        return config.columns

    def probe_shapes(self, config: InnerFmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, block_k = config.rows, config.columns, self.block_k(config, problem)
        return (
            *super().probe_shapes(config, problem),
            (config.block_m + rows, config.block_n + columns, 2 * block_k + 1),
            (rows, columns, block_k),  # a partial tile: threads must not load past the last vector
        )

    def context(self, config: InnerFmaConfig, problem: Problem) -> dict[str, Any]:
        gram = {"gram": config.is_half(problem), "mirrored": mirrored(problem)}
        return super().context(config, problem) | gram


FEW = (1, 2, 3, 4, 5, 6, 7, 8)  # options of block_m and of block_n
# Options of (threads, piece, stages, min_blocks).
LOADS = (
    (128, 2, 2, 1), (128, 2, 2, 4), (128, 4, 1, 1), (128, 4, 1, 3), (128, 4, 1, 4), (128, 4, 2, 1), (128, 8, 1, 1),
    (128, 8, 2, 1), (256, 4, 2, 1), (256, 8, 1, 1), (256, 8, 2, 1), (512, 4, 2, 1), (512, 8, 1, 1), (512, 8, 2, 1),
    (1024, 4, 1, 1),
)  # fmt: skip
# Fastest on an H200, by the most rows or columns of C and whether an operand is contiguous along k: (threads, piece,
# stages, min_blocks, blocks per multiprocessor).
WINNERS: dict[tuple[int, bool], tuple[tuple[int, int, int, int, int], ...]] = {
    (2, True): ((256, 8, 1, 1, 3), (256, 8, 2, 1, 4), (512, 8, 2, 1, 2), (512, 8, 1, 1, 2)),
    (2, False): ((256, 8, 2, 1, 4), (512, 8, 2, 1, 1), (256, 4, 2, 1, 4), (512, 4, 2, 1, 2)),
    (4, True): ((256, 8, 1, 1, 2), (128, 8, 1, 1, 4), (512, 8, 1, 1, 1), (128, 8, 2, 1, 4)),
    (4, False): ((1024, 4, 1, 1, 1), (128, 8, 2, 1, 4), (512, 4, 2, 1, 1), (256, 4, 2, 1, 2)),
    (8, True): ((128, 8, 1, 1, 2), (128, 4, 1, 4, 4), (128, 8, 2, 1, 2), (128, 4, 2, 1, 3)),
    (8, False): ((128, 4, 1, 4, 4), (128, 4, 1, 3, 3), (128, 4, 2, 1, 3), (128, 2, 2, 4, 4)),
}


@dataclass(frozen=True, slots=True)
class InnerFma16BitConfig(InnerConfig):
    family: ClassVar[str] = "inner_fma_16bit"

    piece: Annotated[int, Tunable("k extent of A and B that one thread loads at a time")]
    stages: Annotated[int, Tunable("loads that one thread has in registers, in flight or in use")]
    splits: Splits
    min_blocks: MinBlocks
    evict_first: EvictFirst = 1

    @property
    def lanes_of_k(self) -> int:
        return self.threads


def vector_bytes(piece: int, lines: int, along_k: bool, element_bytes: int) -> int:
    """Return the bytes of the widest load, at most 16, that divides what a thread loads of an operand at a time.

    If the operand is contiguous along k (`along_k`), a thread loads `piece` elements of one row or column at a time.
    If not, it loads `piece` elements along k of all `lines` rows or columns together.
    """
    return gcd(VECTOR_BYTES, piece * element_bytes * (1 if along_k else lines))


def _wide_loads(config: InnerFma16BitConfig, problem: Problem) -> bool:
    lines = zip((config.block_m, config.block_n), problem.contiguous, strict=False)
    size = problem.dtype.element_bytes
    return all(vector_bytes(config.piece, line, along == "k", size) >= VECTOR_BYTES // 2 for line, along in lines)


class InnerFma16Bit(Streamed[InnerFma16BitConfig]):
    summary = (
        "transposed tall and skinny times tall and skinny in 16 bits, few columns: every thread accumulates all of C"
    )
    about = "every thread accumulates all of C, k divided among all threads"
    template = "inner/fma_16bit.cu.jinja"
    dtypes = ("bf16", "f16")
    rules = (
        *tile_rules(FEW, covered=LARGEST_THIN),
        rule_of("wide-loads", "shape", "with loads of 4 bytes, the load units are the bottleneck", _wide_loads),
        CHUNKS_FOR_ALL,
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    most_adders = 64  # for most numbers of splits, each thread then loads once
    most_loads = 17
    rest_steps = 1
    config_type = InnerFma16BitConfig
    axes: ClassVar = {
        "block_m": FEW,
        "block_n": FEW,
        "threads piece stages min_blocks": LOADS,
        "splits": SPLITS_OF_GRIDS,
    }

    def step(self, config: InnerFma16BitConfig) -> int:
        return config.piece

    def registers(self, config: InnerFma16BitConfig, problem: Problem) -> int:
        return config.tile_elements + self.loaded(config, problem) // 2

    def loaded(self, config: InnerFma16BitConfig, problem: Problem) -> int:
        return (config.block_m + config.block_n) * config.piece * config.stages

    def probe_shapes(self, config: InnerFma16BitConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, block_k = config.block_m, config.block_n, self.block_k(config, problem)
        return (
            *super().probe_shapes(config, problem),
            (rows, columns, 2 * block_k + 1),
            (2 * rows, columns, block_k),
            (rows, 2 * columns, block_k),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[InnerFma16BitConfig, ...]:
        """Return what was fastest on an H200 for this number of columns and layout; none for more than 8 columns."""
        largest = max(problem.m, problem.n)
        if largest > FEW[-1]:
            return ()
        winners = WINNERS[next(lines for lines in (2, 4, 8) if lines >= largest), "k" in problem.contiguous[:2]]
        chosen = [
            InnerFma16BitConfig(threads, problem.m, problem.n, piece, stages, splits, min_blocks)
            for threads, piece, stages, min_blocks, blocks in winners
            for splits in proposed_splits(problem, limits, block_k=threads * piece, blocks=blocks)
        ]
        return tuple(dict.fromkeys(self._bounded(config, problem, limits) for config in chosen))

    def _bounded(self, config: InnerFma16BitConfig, problem: Problem, limits: DeviceLimits) -> InnerFma16BitConfig:
        """Return the configuration without `min_blocks` if its bound exceeds twice the registers of a thread."""
        bound = limits.registers_per_sm // (config.threads * config.min_blocks)
        return config if bound <= 2 * self.resources(config, problem).registers else replace(config, min_blocks=1)

    def context(self, config: InnerFma16BitConfig, problem: Problem) -> dict[str, Any]:
        min_blocks = config.min_blocks if config.min_blocks > 1 else 0
        return super().context(config, problem) | {"min_blocks": min_blocks}
