"""TSMR on the tensor cores with A through a ring in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.families.tsmr_mma import TsmrMma, TsmrMmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.splitting import SPLITS_ROW_TILES


@dataclass(frozen=True, slots=True, order=True)
class TsmrMmaRingConfig(TsmrMmaConfig):
    family: ClassVar[str] = "tsmr_mma_ring"
    widest_tile_depth: ClassVar[int] = 64


class TsmrMmaRing(TsmrMma):
    name = "tsmr_mma_ring"
    config_type = TsmrMmaRingConfig

    def configurations(self) -> Iterator[TsmrMmaRingConfig]:
        for threads, strips, columns, ahead, division, min_blocks in product(
            (64, 128, 256), (1, 2), (32, 64), ((32, 4), (32, 2), (64, 4), (64, 8)), SPLITS_ROW_TILES, (1, 2, 3, 4)
        ):
            yield TsmrMmaRingConfig(threads, strips, columns, *ahead, *division, min_blocks)

    def resources(self, config: TsmrMmaConfig, problem: Problem) -> Resources:
        own = TsmrMma.resources(self, config, problem)
        ring = config.prefetch // 8 * config.strips * 2 * config.threads * 16
        return replace(own, smem_bytes=own.smem_bytes + ring)

    def preferred(self, problem: Problem, limits: Any) -> Any:
        return ()

    def context(self, config: TsmrMmaConfig, problem: Problem) -> dict[str, Any]:
        return TsmrMma.context(self, config, problem) | {"kernel": self.name, "ring_in_shared": True}


FAMILY = TsmrMmaRing()
