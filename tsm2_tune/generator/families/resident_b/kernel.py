"""The base classes of kernels that keep a small B in shared memory and stream rows of A past it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tsm2_tune.generator.config import KernelConfig, Launch
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.launch_table import launch_of
from tsm2_tune.generator.space.rules import Rule, covering_rule
from tsm2_tune.generator.space.tunables import Threads
from tsm2_tune.generator.split_k import WIDE_SPLIT_RULES, WIDE_SPLITS
from tsm2_tune.generator.tiling import Tiling

VECTOR_BYTES, WARP_THREADS = 16, 32
LEAST_BUSY = 0.55  # the least fraction of the persistent blocks that should have rows


@dataclass(frozen=True, slots=True)
class ResidentBConfig(KernelConfig):
    threads: Threads


R = TypeVar("R", bound=ResidentBConfig)


def width(problem: Problem) -> int:
    """Return the number of elements in a 16-byte vector."""
    return VECTOR_BYTES // problem.dtype.element_bytes


def depth_within_k(options: tuple[int, ...], least: Callable[[Problem], int] = lambda problem: 1) -> Rule:
    """Return the rule that drops an option of `depth` (rows of B in shared memory) if a smaller option covers k.

    `least` returns the least depth that the kernel can use for a problem.
    """
    return covering_rule(
        "depth-within-k",
        "with more rows of B in shared memory than k, the kernel multiplies zeros",
        tunable="depth",
        options=options,
        extent=lambda problem: max(problem.k, least(problem)),
    )


class ResidentB(Family[R]):
    has_batches = True

    def context(self, config: R, problem: Problem) -> dict[str, Any]:
        return {"storage": problem.storage, "b_along_n": problem.contiguous[1] == "n"}


def _rows_for_all(candidate: Candidate) -> bool:
    tiles = -(-candidate.problem.m // candidate.family.periods(candidate.config, candidate.problem).m)
    splits = tunable(candidate, "splits")
    return splits == WIDE_SPLITS[0] or tiles >= LEAST_BUSY * splits


PERSISTENT_RULES = (
    Rule("rows-for-all", "shape", "most blocks should have rows to compute", _rows_for_all),
    *WIDE_SPLIT_RULES,
)


class PersistentResidentB(ResidentB[R]):
    """The base class of kernels with persistent blocks: the grid has `splits` blocks, whatever m is."""

    def launch(self, config: R, problem: Problem) -> Launch:
        """Return the launch of `splits` persistent blocks.

        No block writes partial sums. So the launch states a tile of one element, which keeps the workspace small.
        """
        return launch_of(
            threads=config.threads,
            rows_per_block=1,
            columns_per_block=1,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=int(config.tunables["splits"]),
            persistent=True,
        )

    def tiling(self, config: R, problem: Problem, resident: int) -> Tiling:
        tile = self.periods(config, problem)
        found = super().tiling(config, problem, resident)
        return replace(found, tile_m=tile.m, tile_n=tile.n, k_step=0, is_pipelined=True)

    def fits(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and not problem.is_gram
