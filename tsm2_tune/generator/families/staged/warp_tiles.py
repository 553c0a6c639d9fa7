"""The base class of the staged kernels on the f64 tensor cores: for f64, f32 and complex numbers.

A warp computes a warp tile of `strips` m16 tiles by `octets` n8 tiles, and loads its fragments from shared memory.
These kernels also compute a C that has many rows and at most 64 columns, and a C that is large in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.families.staged.full import FullKernel
from tsm2_tune.generator.families.staged.kernel import (
    DEPTH,
    OCTET_COLUMNS,
    STRIP_ROWS,
    WARP_THREADS,
    FullConfig,
)
from tsm2_tune.generator.problem import INT32_MAX, Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import Tunable, WarpOctets, WarpStrips
from tsm2_tune.generator.split_k import wide_splits
from tsm2_tune.generator.tiles import SKINNY, is_general

COLUMNS_OF_TALL = range(9, 65)  # the columns of C for which a C of many rows is served


@dataclass(frozen=True, slots=True)
class WarpTileConfig(FullConfig):
    """The tunables of the kernels that pass both operands through shared memory to tensor cores."""

    strips: WarpStrips
    octets: WarpOctets
    fragment_prefetch: Annotated[
        int,
        Tunable(
            "1: the next k tile's first fragments are loaded before the last products of the current one",
            is_constant=False,
            default=0,
        ),
    ]


def _blocks_for_all(candidate: Candidate) -> bool:
    problem = candidate.problem
    if not is_general(problem):
        return True
    chunks = candidate.launch.tiles(problem.m, problem.n) * problem.k // tunable(candidate, "block_k")
    return tunable(candidate, "splits") >= min(wide_splits(candidate.limits, 1), chunks)


BLOCKS_FOR_ALL = Rule(
    "blocks-for-all",
    "shape",
    "if C has many tiles, every multiprocessor should have a block",
    _blocks_for_all,
    of=("block_m", "block_n", "block_k", "splits"),
)
WIDE_TILES_FOR_WIDE_RESULTS = Rule(
    "wide-tiles-for-wide-results",
    "shape",
    "tiles of more columns are for a large C, not for a skinny or small one",
    lambda c: tunable(c, "block_n") <= SKINNY or is_general(c.problem),
    of=("block_n",),
)

W = TypeVar("W", bound=WarpTileConfig)


class WarpTileKernel(FullKernel[W]):
    """The base class of kernels that pass both operands through shared memory to tensor cores."""

    on_tensor_cores = True
    strip_rows: ClassVar[int] = STRIP_ROWS
    least_depth: ClassVar[int]  # the least k for which a C of many rows is served

    def team(self, config: W) -> int:
        rows, columns = self.strip_rows * config.strips, OCTET_COLUMNS * config.octets
        return WARP_THREADS * (config.block_m // rows) * (config.block_n // columns)

    def has_whole_teams(self, config: W) -> bool:
        """Return whether a pipeline's threads divide evenly into k slices with an mma step in every k tile."""
        team = self.team(config)
        return config.ring_threads % team == 0 and config.block_k * team >= config.ring_threads * DEPTH

    def registers(self, config: W) -> int:
        rows, columns = self.strip_rows * config.strips, OCTET_COLUMNS * config.octets
        return (rows * columns + 2 * (rows + columns) * DEPTH) // WARP_THREADS

    def sums_in_registers(self, config: W) -> bool:
        return self.team(config) == config.threads

    def largest(self, problem: Problem) -> int:
        tall = problem.n in COLUMNS_OF_TALL and problem.k >= self.least_depth
        return INT32_MAX if tall or is_general(problem) else super().largest(problem)

    def context(self, config: W, problem: Problem) -> dict[str, Any]:
        return {
            **super().context(config, problem),
            "strip_rows": self.strip_rows,
            "arrives_early": bool(config.fragment_prefetch),  # whether a k tile is complete one step ahead of its use
            "loads_before_copies": False,  # whether a k tile's first fragments are loaded before new copies start
        }
