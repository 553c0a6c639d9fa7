"""TSMR on the tensor cores with A through a ring in shared memory.

For so many columns that their sums leave no registers to load A ahead into. Each lane copies its own fragments and
reads them again, as in `tsmr_ring`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.families.tsmr_mma import STRIP_ROWS, TsmrMma, TsmrMmaConfig
from tsm2_tune.generator.families.tsmr_ring import MANY_COLUMNS
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule, covering_rule
from tsm2_tune.generator.splitting import LEAST_SHARE, SPLITS_ROW_TILES, with_splits

THREADS = (64, 128, 256)
STRIPS = (1, 2)
COLUMNS = (32, 64)
PREFETCH_STAGES = ((32, 2), (32, 4))
MIN_BLOCKS = (1, 2, 3, 4)
WARP_THREADS = 32
REGISTERS_OF_B = 40  # a lane has as many of the staged B on their way from shared memory


@dataclass(frozen=True, slots=True, order=True)
class TsmrMmaRingConfig(TsmrMmaConfig):
    """The same choices, of which `prefetch` and `stages` are the ring's."""

    family: ClassVar[str] = "tsmr_mma_ring"


class TsmrMmaRing(TsmrMma):
    name = "tsmr_mma_ring"
    summary = "large or tall A times B of many columns on the f64 tensor cores, A through a ring in shared memory"
    rules: ClassVar[tuple[Rule, ...]] = (
        MANY_COLUMNS,
        covering_rule(
            "columns-within-n",
            "a column group wider than needed for n computes columns that nobody asked for",
            tunable="columns",
            options=COLUMNS,
            extent=lambda problem: problem.n,
        ),
        *(rule for rule in TsmrMma.rules if rule.name != "columns-within-n"),
    )
    config_type = TsmrMmaRingConfig

    def configurations(self) -> Iterator[TsmrMmaRingConfig]:
        for threads, strips, columns, ahead, division, min_blocks in product(
            THREADS, STRIPS, COLUMNS, PREFETCH_STAGES, SPLITS_ROW_TILES, MIN_BLOCKS
        ):
            yield TsmrMmaRingConfig(threads, strips, columns, *ahead, *division, min_blocks)

    def resources(self, config: TsmrMmaConfig, problem: Problem) -> Resources:
        step, rows = config.prefetch // config.stages, STRIP_ROWS * config.strips
        elements = rows * (config.columns + step) // WARP_THREADS
        own = super().resources(config, problem)
        ring = config.threads // WARP_THREADS * rows * config.prefetch * problem.dtype.element_bytes
        return replace(
            own,
            registers=elements * problem.dtype.registers + REGISTERS_OF_B + OVERHEAD_REGISTERS,
            smem_bytes=own.smem_bytes + ring,
        )

    def preferred(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmrMmaConfig, ...]:
        """Where the winners on an H200 lay: every column at once, as many rows in a block as there is room for."""
        columns = next((option for option in COLUMNS if option >= problem.n), COLUMNS[-1])
        variants = {  # threads, strips, prefetch, stages, min_blocks
            32: ((128, 2, 32, 4, 3), (128, 2, 32, 2, 3)),
            64: ((128, 2, 32, 4, 2), (128, 1, 32, 4, 3), (128, 2, 32, 2, 2)),
        }[columns]
        chosen = [TsmrMmaRingConfig(t, strips, columns, p, s, 1, 1, least) for t, strips, p, s, least in variants]
        if problem.k < 2 * LEAST_SHARE:
            return tuple(replace(config, row_tiles=row_tiles) for row_tiles in (4, 8, 2) for config in chosen)
        return with_splits(self, chosen, problem, limits)

    def context(self, config: TsmrMmaConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "about": "A streams through a ring in shared memory to the tensor cores, beside B",
            "ring_in_shared": True,
            "ring_of_warp": problem.contiguous[0] == "m",
        }


FAMILY = TsmrMmaRing()
