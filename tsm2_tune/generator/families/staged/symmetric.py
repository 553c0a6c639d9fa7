"""The base class of the staged kernels for a Gram matrix X^T X, which compute one of two mirrored elements.

X passes through the pipeline in shared memory. Off the diagonal of C, two mirrored tiles share the work: each
computes its elements above the tile's own diagonal.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from tsm2_tune.generator.config import Traffic
from tsm2_tune.generator.families.staged.kernel import RING_RULES, StagedKernel, SymmetricConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule
from tsm2_tune.generator.tiles import LARGEST_GRAM_TILE, LARGEST_THIN, mirrored

TILE = (16, 32, LARGEST_GRAM_TILE)  # options of `tile`: columns of X per block
SYMMETRIC_RULES = (
    covering_rule(
        "tile-within-m",
        "a tile of more columns than X has computes elements that C does not have",
        tunable="tile",
        options=TILE,
        extent=lambda problem: problem.m,
    ),
    Rule(
        "tile-covers-result",
        "shape",
        "one tile should cover C: tiles beside the diagonal are slow",
        lambda c: tunable(c, "tile") >= min(c.problem.m, TILE[-1]),
        of=("tile",),
    ),
    *RING_RULES,
)

C = TypeVar("C", bound=SymmetricConfig)


class SymmetricKernel(StagedKernel[C]):
    """The base class of kernels that pass X through shared memory and compute half of X^T X."""

    about = "a matrix transposed times itself, each product once"
    persistent = False
    least_bound = 2

    @abstractmethod
    def pad(self, config: C, problem: Problem) -> int:
        """Return the padding of a line of X in shared memory, in elements, which avoids bank conflicts.

        A line is a contiguous row or column of a k tile of X.
        """

    def stage_elements(self, config: C, problem: Problem) -> int:
        pad = self.pad(config, problem)
        if problem.contiguous[0] == "k":
            return config.tile * (config.block_k + pad)
        return config.block_k * (config.tile + pad)

    def traffic(self, config: C, problem: Problem) -> Traffic:
        tiles = -(-problem.m // config.tile)
        return Traffic(tiles * problem.read_bytes, problem.written_bytes)

    def fits(self, problem: Problem) -> bool:
        return problem.is_gram and problem.dtype_name in self.dtypes and problem.m <= LARGEST_THIN

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return (m, n, k) of small problems that reach every branch of the kernel.

        C has one partial tile or several tiles. k is less than a k tile, not a whole number of k tiles, or several k
        tiles for each pipeline. In some problems, k is 1 more than a multiple of 4. Verification passes an X that is
        16-byte aligned and has an odd leading dimension, or an X that is not aligned and has a leading dimension of
        whole vectors. In the last problem, C has several full tiles.
        """
        tile, block_k = config.tile, config.block_k
        rings = config.splits * (config.threads // config.ring_threads)
        sizes_and_k = (
            (tile, block_k * (rings * config.stages + 3) + 4),
            (tile + 1, 2 * block_k + 3),
            (tile - 1, max(block_k // 4 - 1, 1)),
            (tile + 4, 2 * block_k + 1),
            (tile - 4, block_k),
            (tile, 2 * block_k + 1),
            (2 * tile, block_k * (2 * rings + 1) + 2),
        )
        return tuple((size, size, k) for size, k in sizes_and_k)

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        return {
            **super().context(config, problem),
            "along_k": problem.contiguous[0] == "k",
            "pad": self.pad(config, problem),
            "mirrored": mirrored(problem),
            "flat_splits": self.launch(config, problem).flat_splits,
        }
