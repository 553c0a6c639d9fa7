"""The base classes of kernels that keep a small B in shared memory and stream rows of A past it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tsm2_tune.generator.config import KernelConfig, Launch
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import Threads
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS

LEAST_BUSY = 0.55  # the least fraction of the persistent blocks that should have rows


@dataclass(frozen=True, slots=True)
class ResidentBConfig(KernelConfig):
    threads: Threads


R = TypeVar("R", bound=ResidentBConfig)


def _rows_for_all(candidate: Candidate) -> bool:
    tiles = -(-candidate.problem.m // candidate.family.periods(candidate.config, candidate.problem).m)
    splits = tunable(candidate, "splits")
    return splits == WIDE_SPLITS[0] or tiles >= LEAST_BUSY * splits


PERSISTENT_RULES = (
    Rule("rows-for-all", "shape", "most blocks should have rows to compute", _rows_for_all),
    *WIDE_SPLIT_RULES,
)


class PersistentResidentB(Family[R]):
    """The base class of kernels with persistent blocks: the grid has `splits` blocks, whatever m is."""

    persistent = True
    has_batches = True

    def launch(self, config: R, problem: Problem) -> Launch:
        """Return the launch, with a tile of one element. No block writes sums, so this keeps the workspace small."""
        return replace(super().launch(config, problem), rows_per_block=1, columns_per_block=1)

    def own_tiling(self, config: R, problem: Problem) -> dict[str, Any]:
        return {"k_step": 0, "is_pipelined": True}

    def fits(self, problem: Problem) -> bool:
        return super().fits(problem) and not problem.is_gram
