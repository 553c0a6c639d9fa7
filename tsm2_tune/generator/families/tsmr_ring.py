"""TSMR with A through a ring in shared memory: for so many columns that no registers are left to load A ahead into.

Each thread copies its own 16-byte pieces of A there and reads them again, so that the ring needs no barrier. Copies
end in their order, and a thread waits for the oldest alone; of loads into registers the compiler waits for all at
once, which costs memory's latency each time around the loop: too much where the loop computes for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.families.tsmr import VECTOR_BYTES, Tsmr, TsmrConfig, rows_per_thread
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule, covering_rule
from tsm2_tune.generator.splitting import LEAST_SHARE, SPLITS_ROW_TILES, has_f64_tensor_cores, with_splits

THREADS = (64, 128)
VECTORS = (1,)
COLUMNS = (24, 32)
PREFETCH_STAGES = ((8, 4), (16, 4), (16, 8))
MIN_BLOCKS = (1, 2, 3, 4)
REGISTERS_OF_B = 32  # a thread has as many of the staged B on their way from shared memory
FEW_COLUMNS = 16  # for which registers hold enough of A


@dataclass(frozen=True, slots=True, order=True)
class TsmrRingConfig(TsmrConfig):
    """The same choices, of which `prefetch` and `stages` are the ring's."""

    family: ClassVar[str] = "tsmr_ring"


MANY_COLUMNS = Rule(
    "ring-for-many-columns",
    "shape",
    "with few columns registers hold enough of A, and what goes through shared memory is slower",
    lambda c: c.problem.n > FEW_COLUMNS,
)


class TsmrRing(Tsmr):
    name = "tsmr_ring"
    summary = "large A times skinny B of many columns: A streams through a ring in shared memory, k is split"
    rules: ClassVar[tuple[Rule, ...]] = (
        MANY_COLUMNS,
        covering_rule(
            "columns-within-n",
            "a column group wider than needed for n computes columns that nobody asked for",
            tunable="columns",
            options=COLUMNS,
            extent=lambda problem: problem.n,
        ),
        *(rule for rule in Tsmr.rules if rule.name != "columns-within-n"),
    )
    config_type = TsmrRingConfig

    def configurations(self) -> Iterator[TsmrRingConfig]:
        for threads, vectors, columns, ahead, division, min_blocks in product(
            THREADS, VECTORS, COLUMNS, PREFETCH_STAGES, SPLITS_ROW_TILES, MIN_BLOCKS
        ):
            yield TsmrRingConfig(threads, vectors, columns, *ahead, *division, min_blocks)

    def resources(self, config: TsmrConfig, problem: Problem) -> Resources:
        rows, step = rows_per_thread(config, problem), config.prefetch // config.stages
        elements = rows * (config.columns + 2 * step) + config.columns
        ring = config.prefetch * config.vectors * VECTOR_BYTES * config.threads
        own = super().resources(config, problem)
        return replace(
            own,
            registers=elements * problem.dtype.registers + REGISTERS_OF_B + OVERHEAD_REGISTERS,
            smem_bytes=own.smem_bytes + ring,
        )

    def supports(self, problem: Problem) -> bool:
        return super().supports(problem) and problem.dtype_name in ("f32", "f64")

    def preferred(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmrConfig, ...]:
        """Where the winners on an H200 lay: 32 columns of 4 rows a thread, with 8 warps on a multiprocessor."""
        if problem.dtype_name == "f64" and has_f64_tensor_cores(limits):
            return ()
        columns = next((option for option in COLUMNS if option >= problem.n), COLUMNS[-1])
        ahead = ((128, 16, 4, 2), (128, 8, 4, 2), (128, 16, 8, 2))  # threads, prefetch, stages, min_blocks
        variants = [TsmrRingConfig(t, 1, columns, p, s, 1, 1, least) for t, p, s, least in ahead]
        if problem.k < 2 * LEAST_SHARE:
            return tuple(replace(config, row_tiles=row_tiles) for config in variants for row_tiles in (8, 4, 2))
        return with_splits(self, variants, problem, limits)

    def context(self, config: TsmrConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "about": "A streams through a ring in shared memory, beside B",
            "ring_in_shared": True,
        }


FAMILY = TsmrRing()
