"""The base classes of kernels that keep a small B in shared memory and stream rows of A past it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tsm2_tune.generator.config import KernelConfig, Periods, Resources
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import Threads
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS
from tsm2_tune.generator.tiling import BlockPlan

LEAST_BUSY = 0.55  # the least fraction of the persistent blocks that should have rows


@dataclass(frozen=True, slots=True)
class ResidentBConfig(KernelConfig):
    threads: Threads


R = TypeVar("R", bound=ResidentBConfig)


def _rows_for_all(candidate: Candidate) -> bool:
    tiles = -(-candidate.problem.m // candidate.block_plan.tile.m)
    splits = tunable(candidate, "splits")
    return splits == WIDE_SPLITS[0] or tiles >= LEAST_BUSY * splits


PERSISTENT_RULES = (
    Rule("rows-for-all", "shape", "most blocks should have rows to compute", _rows_for_all),
    *WIDE_SPLIT_RULES,
)


class PersistentResidentB(Family[R]):
    """The base class of kernels with persistent blocks: the grid has `splits` blocks, whatever m is."""

    has_batches = True

    def persistent_block_plan(self, resources: Resources, tile: Periods, **tiling_fields: int) -> BlockPlan:
        """Return the block plan. In the launch a tile is one element, since no block writes partial sums."""
        launch_fields = {"persistent": True, "rows_per_block": 1, "columns_per_block": 1}
        pipelined = {"k_step": 0, "is_pipelined": True, **tiling_fields}
        return BlockPlan(resources, tile, launch_fields=launch_fields, tiling_fields=pipelined)

    def fits(self, problem: Problem) -> bool:
        return super().fits(problem) and not problem.is_gram
