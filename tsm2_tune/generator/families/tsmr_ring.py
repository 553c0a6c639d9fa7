"""TSMR with A through a ring in shared memory, for more columns than leave registers to load ahead into.

A thread copies its own 16-byte pieces there and reads them again, so that no barrier is needed. What counts is that
copies can be waited for in their order: loads into registers cannot, as the compiler waits for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.families.tsmr import Tsmr, TsmrConfig, rows_per_thread
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.splitting import SPLITS_ROW_TILES
from tsm2_tune.generator.model import OVERHEAD_REGISTERS


@dataclass(frozen=True, slots=True, order=True)
class TsmrRingConfig(TsmrConfig):
    family: ClassVar[str] = "tsmr_ring"


class TsmrRing(Tsmr):
    name = "tsmr_ring"
    config_type = TsmrRingConfig

    def configurations(self) -> Iterator[TsmrRingConfig]:
        for threads, vectors, columns, ahead, division, min_blocks in product(
            (64, 128, 256), (1, 2), (16, 24, 32), ((8, 4), (16, 8), (16, 4), (32, 8)), SPLITS_ROW_TILES, (1, 2, 3, 4)
        ):
            yield TsmrRingConfig(threads, vectors, columns, *ahead, *division, min_blocks)

    def resources(self, config: TsmrConfig, problem: Problem) -> Resources:
        own = Tsmr.resources(self, config, problem)
        rows, dtype = rows_per_thread(config, problem), problem.dtype
        step = config.prefetch // config.stages
        elements = rows * (config.columns + step) + config.columns
        ring = config.prefetch * config.vectors * config.threads * 16
        return replace(own, registers=elements * dtype.registers + OVERHEAD_REGISTERS, smem_bytes=own.smem_bytes + ring)

    def preferred(self, problem: Problem, limits: Any) -> Any:
        return ()

    def context(self, config: TsmrConfig, problem: Problem) -> dict[str, Any]:
        return Tsmr.context(self, config, problem) | {"kernel": self.name, "ring_in_shared": True}


FAMILY = TsmrRing()
