"""Inner products of a few columns of bf16 or f16, with fused multiply-adds in f32: each thread accumulates all of C.

For so few columns, most of a tensor core's fragment would be padding. A thread loads vectors of up to 16 bytes, and
neighbouring lanes load neighbouring vectors. A vector of an operand that is contiguous along k holds elements of one
column. A vector of a row-major operand holds elements of all columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.inner.kernel import (
    CHUNKS_FOR_ALL,
    VECTOR_BYTES,
    InnerConfig,
    Splits,
    Streamed,
    proposed_splits,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE, Rule
from tsm2_tune.generator.space.tunables import EvictFirst, MinBlocks, Tunable
from tsm2_tune.generator.split_k import SPLITS_OF_GRIDS, WIDE_SPLIT_RULES
from tsm2_tune.generator.tiles import LARGEST_THIN, tile_rules

TILE = (1, 2, 3, 4, 5, 6, 7, 8)  # options of block_m and of block_n
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


def vector_bytes(piece: int, lines: int, along_k: bool, element_bytes: int) -> int:
    """Return the bytes of the widest load, at most 16, that divides what a thread loads of an operand at a time.

    If the operand is contiguous along k (`along_k`), a thread loads `piece` elements of one row or column at a time.
    If not, it loads `piece` elements along k of all `lines` rows or columns together.
    """
    return gcd(VECTOR_BYTES, piece * element_bytes * (1 if along_k else lines))


def _wide_loads(candidate: Candidate) -> bool:
    problem, piece = candidate.problem, tunable(candidate, "piece")
    least = min(
        vector_bytes(piece, lines, along == "k", problem.dtype.element_bytes)
        for lines, along in zip(
            (tunable(candidate, "block_m"), tunable(candidate, "block_n")),
            problem.contiguous[:2],
            strict=True,
        )
    )
    return least >= VECTOR_BYTES // 2


class InnerFma16Bit(Streamed[InnerFma16BitConfig]):
    summary = (
        "transposed tall and skinny times tall and skinny in 16 bits, few columns: every thread accumulates all of C"
    )
    about = "every thread accumulates all of C, k divided among all threads"
    template = "inner/fma_16bit.cu.jinja"
    dtypes = ("bf16", "f16")
    rules = (
        *tile_rules(TILE, covered=LARGEST_THIN),
        Rule("wide-loads", "shape", "with loads of 4 bytes, the load units are the bottleneck", _wide_loads),
        CHUNKS_FOR_ALL,
        *WIDE_SPLIT_RULES,
        REGISTERS_REACHABLE,
    )
    most_adders = 64  # for most numbers of splits, each thread then loads once
    most_loads = 17
    rest_steps = 1
    config_type = InnerFma16BitConfig

    def grids(self) -> Iterable[Grid[InnerFma16BitConfig]]:
        axes = {"block_m": TILE, "block_n": TILE, "threads piece stages min_blocks": LOADS, "splits": SPLITS_OF_GRIDS}
        return [Grid(InnerFma16BitConfig, axes)]

    def lanes_of_k(self, config: InnerFma16BitConfig) -> int:
        return config.threads

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
        """Return the configurations that were fastest on an H200 for this number of columns and layout, best first.

        Return none if C has more than 8 rows or columns.
        """
        largest = max(problem.m, problem.n)
        if largest > TILE[-1]:
            return ()
        winners = WINNERS[next(lines for lines in (2, 4, 8) if lines >= largest), "k" in problem.contiguous[:2]]
        chosen = [
            InnerFma16BitConfig(threads, problem.m, problem.n, piece, stages, splits, min_blocks)
            for threads, piece, stages, min_blocks, blocks in winners
            for splits in proposed_splits(problem, limits, block_k=threads * piece, blocks=blocks)
        ]
        return tuple(dict.fromkeys(self._bounded(config, problem, limits) for config in chosen))

    def _bounded(self, config: InnerFma16BitConfig, problem: Problem, limits: DeviceLimits) -> InnerFma16BitConfig:
        """Return the configuration, with a lower bound on registers where it helps.

        `min_blocks` becomes 1 if its bound allows a thread more than twice the registers that the thread needs.
        """
        bound = limits.registers_per_sm // (config.threads * config.min_blocks)
        return config if bound <= 2 * self.resources(config, problem).registers else replace(config, min_blocks=1)

    def context(self, config: InnerFma16BitConfig, problem: Problem) -> dict[str, Any]:
        min_blocks = config.min_blocks if config.min_blocks > 1 else 0
        return super().context(config, problem) | {"min_blocks": min_blocks}
