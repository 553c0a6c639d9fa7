"""TSMR on the tensor cores for bf16 and f16, with A through a ring in shared memory.

For so many columns that their sums leave no registers to load A ahead into. Each warp copies its own rows,
neighbouring lanes neighbouring pieces of memory, and reads them again as fragments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.candidate import Candidate, tunable
from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.families.tsmr_half import (
    LANES_DOWN,
    VECTOR_BYTES,
    WARP_THREADS,
    HalfConfig,
    TsmrHalf,
    one_wave_first,
)
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule, columns_within_n
from tsm2_tune.generator.split_k import LEAST_SHARE, SPLITS_ROW_TILES

THREADS = (128, 256)
LANE_ROWS = 8
COLUMNS = (32, 64)
PREFETCH_STAGES = ((32, 2), (64, 2), (64, 4), (128, 2), (128, 4))
SMALLEST_GROUP = 32  # whose run of a lane is a piece of 16 bytes
MIN_BLOCKS = (1, 2, 3)
FEW_COLUMNS = 16  # for which registers hold enough of A

# For each number of columns, where A is large: threads, prefetch, stages, min_blocks.
COLUMN_MAJOR: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((128, 128, 4, 2), (128, 64, 2, 3), (256, 128, 4, 1)),
    64: ((256, 128, 4, 1), (128, 128, 4, 2)),
}
ROW_MAJOR: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((256, 128, 2, 1), (128, 128, 2, 2)),
    64: ((256, 128, 2, 1), (256, 128, 4, 1)),
}
# And where k is short: prefetch, stages, row_tiles, min_blocks.
SHORT: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((128, 4, 8, 2), (64, 2, 8, 3), (128, 4, 4, 2)),
    64: ((128, 2, 4, 2), (64, 2, 8, 2), (128, 2, 8, 2)),
}


@dataclass(frozen=True, slots=True, order=True)
class TsmrHalfRingConfig(HalfConfig):
    """The same choices, of which `prefetch` and `stages` are the ring's."""

    family: ClassVar[str] = "tsmr_half_ring"


MANY_COLUMNS = Rule(
    "ring-for-many-columns",
    "shape",
    "with few columns registers hold enough of A, and what goes through shared memory is slower",
    lambda c: c.problem.n > FEW_COLUMNS,
)


def _group_bytes(candidate: Candidate) -> int:
    """Of a row of A."""
    group = tunable(candidate, "prefetch") // tunable(candidate, "stages")
    return group * candidate.problem.dtype.element_bytes


class TsmrHalfRing(TsmrHalf):
    name = "tsmr_half_ring"
    summary = (
        "large or tall A times B of many columns in 16 bits on the tensor cores, A through a ring in shared memory"
    )
    template = "tsmr_half_ring.cu.jinja"
    rules: ClassVar[tuple[Rule, ...]] = (
        MANY_COLUMNS,
        columns_within_n(COLUMNS),
        Rule(
            "group-within-k",
            "shape",
            "a row of A has only k elements for a group of the ring",
            lambda c: tunable(c, "prefetch") // tunable(c, "stages") <= max(c.problem.k, SMALLEST_GROUP),
        ),
        Rule(
            "runs-are-pieces",
            "limit",
            "of a row of A four lanes read pieces of 16 bytes of a group",
            lambda c: c.problem.contiguous[0] != "k" or _group_bytes(c) >= 4 * VECTOR_BYTES,
        ),
        *(rule for rule in TsmrHalf.rules if rule.name not in ("columns-within-n", "prefetch-within-k")),
    )
    config_type = TsmrHalfRingConfig

    def configurations(self) -> Iterator[TsmrHalfRingConfig]:
        for threads, columns, ahead, division, min_blocks in product(
            THREADS, COLUMNS, PREFETCH_STAGES, SPLITS_ROW_TILES, MIN_BLOCKS
        ):
            yield self.config_type(threads, LANE_ROWS, columns, *ahead, *division, min_blocks)

    def resources(self, config: HalfConfig, problem: Problem) -> Resources:
        own = super().resources(config, problem)
        rows = LANES_DOWN * config.lane_rows
        ring = config.threads // WARP_THREADS * rows * config.prefetch * problem.dtype.element_bytes
        sums = rows * config.columns // WARP_THREADS
        fragments = 4 * config.lane_rows + config.columns // 2
        return replace(own, registers=sums + fragments + OVERHEAD_REGISTERS, smem_bytes=own.smem_bytes + ring)

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[HalfConfig, ...]:
        """Where the winners on an H200 lay: every column at once; of a row-major A whole lines of memory."""
        if problem.n <= FEW_COLUMNS:
            return ()
        columns = next((option for option in COLUMNS if option >= problem.n), COLUMNS[-1])
        divisor = problem.dtype.element_bytes // 2  # as many bytes on their way
        if problem.k < 2 * LEAST_SHARE:
            shapes = SHORT[columns]
            return tuple(
                self.config_type(128, LANE_ROWS, columns, p // divisor, s, 1, row_tiles, least)
                for p, s, row_tiles, least in shapes
                if p // s <= max(problem.k, SMALLEST_GROUP)
            )
        variants = (ROW_MAJOR if problem.contiguous[0] == "k" else COLUMN_MAJOR)[columns]
        chosen = [self.config_type(t, LANE_ROWS, columns, p // divisor, s, 1, 1, b) for t, p, s, b in variants]
        return one_wave_first(self, chosen, problem, limits)

    def context(self, config: HalfConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "about": "A streams through a ring in shared memory to the tensor cores, beside B",
        }


FAMILIES = (TsmrHalfRing(),)
