"""The full schedule: all of C, both operands through the ring.

Blocks share the chunks of k of all tiles of C evenly, whatever the shape. Where k is huge and C a tile or two, k is
split; where C has many tiles, a block has several, one after another. No multiprocessor waits for a last wave.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from tsm2_tune.generator.config import Resources, Traffic
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.staged.kernel import RING_RULES, VECTOR_BYTES, FullConfig, StagedKernel
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.split_k import WIDE_SPLITS, are_whole_waves
from tsm2_tune.generator.tiles import LARGEST_GRAM_TILE, LARGEST_THIN, is_general, tile_rules, tile_traffic

STATIC_SMEM_BYTES = 128  # at most: the order of work, and what blocks that meet say to their threads
MOST_OVER = 16_000  # products for a row of C: what a block may have more than an equal share is, so as to have a tile
MANY_BLOCKS = 16  # enough for panels, rounds and stretches in probes made for them


def full_rules(
    tile: tuple[int, ...], *, columns: tuple[int, ...] = (), covered: int | None = None
) -> tuple[Rule, ...]:
    """Return the schedule's rules for the options of a tile's rows and columns, as `tile_rules` has them.

    A C that is skinny neither way may have as much smaller tiles than `covered` as make them enough for all.
    """
    most = tile[-1] if covered is None else covered

    def least(candidate: Candidate) -> int:
        problem, size = candidate.problem, most
        while is_general(problem) and size > tile[0] and _squares(problem, size) < candidate.limits.sms:
            size //= 2
        return size

    return (*tile_rules(tile, columns=columns, covered=least), *RING_RULES)


def _squares(problem: Problem, size: int) -> int:
    """Return the number of squares of this size that cover C."""
    return -(-problem.m // size) * -(-problem.n // size)


C = TypeVar("C", bound=FullConfig)


def filling(configs: Iterable[C], problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
    """Return the configurations with as many blocks, or as many fewer, as k has work for.

    However little a block multiplies, it leaves a whole tile of sums to be added up. So more than one block on a
    multiprocessor are worth it where all have chunks to fill their rings, and one where it has a chunk.
    """

    def fewer(config: C) -> C:
        tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        chunks = problem.k * tiles // (config.block_k * (config.threads // config.ring_threads))
        worth = min(chunks, max(chunks // max(config.stages - 1, 2), limits.sms), config.splits)
        options = (splits for splits in WIDE_SPLITS if splits <= worth and are_whole_waves(splits, limits))
        return replace(config, splits=max(options, default=WIDE_SPLITS[0]))

    return tuple(dict.fromkeys(map(fewer, configs)))


class FullKernel(StagedKernel[C]):
    """The common part of all ways to multiply."""

    about = "both operands staged, as much work for each block"
    persistent = True
    least_bound = 1
    dtypes: ClassVar[tuple[str, ...]] = ("f32", "f64")
    leaves_small_grams: ClassVar[bool] = True  # to the symmetric schedule, which has half of the work

    @abstractmethod
    def pads(self, config: C, problem: Problem) -> tuple[int, int]:
        """Return the elements between one run of neighbours of A, and of B, and the next in shared memory."""

    def stage_elements(self, config: C, problem: Problem) -> int:
        along_a, along_b, _ = problem.contiguous
        rows, columns, block_k = config.block_m, config.block_n, config.block_k
        a_pad, b_pad = self.pads(config, problem)
        a = rows * (block_k + a_pad) if along_a == "k" else block_k * (rows + a_pad)
        b = columns * (block_k + b_pad) if along_b == "k" else block_k * (columns + b_pad)
        return a + b

    def dynamic_smem_bytes(self, config: C, problem: Problem) -> int:
        slices = config.threads * VECTOR_BYTES  # that are added up
        return super().dynamic_smem_bytes(config, problem) + slices

    def resources(self, config: C, problem: Problem) -> Resources:
        resources = super().resources(config, problem)
        lines = config.block_m + config.block_n
        fetched = lines * config.block_k // config.ring_threads if config.copy == 0 else 0  # in flight to registers
        return replace(
            resources,
            registers=resources.registers + fetched * problem.dtype.registers,
            smem_bytes=resources.smem_bytes + STATIC_SMEM_BYTES,
        )

    def sums_in_registers(self, config: C) -> bool:
        """Return whether a thread's sums are those of C, and none of its neighbours' must be added."""
        return False

    def has_whole_tiles(self, config: C, problem: Problem) -> bool:
        """Whether each block has a tile of C with all of k, but for a few that have none: as StreamK decides."""
        tiles = self.launch(config, problem).tiles(problem.m, problem.n)
        chunks = -(-problem.k // config.block_k)
        share = -(-tiles * chunks // config.splits)
        few_idle = config.splits - config.splits // 8 <= tiles <= config.splits
        most_over = MOST_OVER // (config.block_n * problem.dtype.parts**2)  # along k
        return few_idle and (chunks - share) * config.block_k <= most_over

    def traffic(self, config: C, problem: Problem) -> Traffic:
        return tile_traffic(problem, block_m=config.block_m, block_n=config.block_n)

    def supports(self, problem: Problem) -> bool:
        small_gram = problem.is_gram and problem.m <= LARGEST_GRAM_TILE
        if problem.dtype_name not in self.dtypes or (small_gram and self.leaves_small_grams):
            return False
        return max(problem.m, problem.n) <= self.largest(problem)

    def largest(self, problem: Problem) -> int:
        """Return the number of rows and columns of the largest C that is worth it."""
        return LARGEST_THIN

    def probe_shapes(self, config: C, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each ring.

        The first fills the tile, has a rest of k, and a shorter run for the last block; the fourth, whose k is 1 more
        than a multiple of 4, has aligned addresses where the leading dimensions of the general call are not, or the
        other way round; so has the fifth in a full tile; two have whole chunks that a tile must not copy which
        is full one way only. In the last three blocks have panels and stretches, turns and stretches in several
        bands, stretches over several tiles.
        """
        rows, columns, block_k = config.block_m, config.block_n, config.block_k
        rings = config.splits * (config.threads // config.ring_threads)
        of_tiles = (
            (rows, columns, block_k * (rings * (config.stages + 1) - 2) + 4),
            (rows + 1, max(columns - 1, 1), 2 * block_k + 3),
            (max(rows - 1, 1), columns + 1, max(block_k // 4 - 1, 1)),
            (rows + 2, columns + 4, 2 * block_k + 1),
            (rows + 1, columns + 1, 2 * block_k),
            (max(rows - 2, 1), columns, block_k),
            (rows, max(columns - 4, 1), block_k),
        )
        of_blocks = (
            (2 * rows, columns, (config.splits // 2 + 3) * block_k),
            ((config.splits // 2 + 1) * rows - 1, columns + 1, 2 * block_k),
            ((config.splits // 2 + 1) * rows, 1, 3 * block_k),
        )
        # Few blocks divide them otherwise; and a square C would have far more tiles.
        return of_tiles if config.splits < MANY_BLOCKS or problem.is_gram else (*of_tiles, *of_blocks)

    def context(self, config: C, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        a_pad, b_pad = self.pads(config, problem)
        lies_alike = (along_a == "k") == (along_b == "k") and config.block_m == config.block_n
        return {
            **super().context(config, problem),
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "a_pad": a_pad,
            "b_pad": b_pad,
            "symmetric": lies_alike and a_pad == b_pad,
            "sums_in_registers": self.sums_in_registers(config),
            "smem_elements": self.smem_elements(config, problem),
            "most_over": MOST_OVER // problem.dtype.parts**2,
        }
