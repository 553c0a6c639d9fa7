"""stream_a on tensor cores in bf16, f16, TF32 and 3xTF32: A is loaded straight into registers.

A lane loads 16 bytes at a time. For a row-major A, these bytes are elements of a fragment in another order than the
mma instruction's, and B is copied to shared memory in the same order. For a column-major 16-bit A, a loaded register
has two rows of one column, and byte permutations make registers with two columns of one row. TF32 needs no
permutation, since a register has one element. Sums are in f32, and C is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_HALF_TENSOR_CORES
from tsm2_tune.generator.families.stream_a.kernel import VECTOR_BYTES, WARP_THREADS, Options, StreamA, streaming_rules
from tsm2_tune.generator.families.stream_a.tunables import Mma16Config, StreamAMma16Config, StreamATf32Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.split_k import LEAST_SHARE, SPLITS, SPLITS_ROW_TILES, in_turns, splits_to_prefer

# Options of `row_tiles`: for most m, one of them nearly fills one wave of resident blocks.
LONG_RUNS = (20, 28, 40, 56, 80)
OPTIONS = Options(
    threads=(128, 256),
    rows=(2, 4, 8, 16),
    columns=(8, 16, 32, 64),
    prefetch_stages=((8, 1), (16, 1), (32, 1), (32, 2), (64, 1), (64, 2), (64, 4), (128, 2)),
    min_blocks=(1, 2, 3, 4),
    splits_row_tiles=(*SPLITS_ROW_TILES, *((1, tiles) for tiles in LONG_RUNS)),
)
LANES_DOWN = 8  # lanes of a warp along the rows of C
STAGED_ELEMENTS = 4096  # elements of B in one shared-memory buffer
FRAGMENT_REGISTERS = 20  # registers for fragments of A and B

# Proposals for a large A, by `columns`: threads, lane_rows, prefetch, stages, min_blocks.
COLUMN_MAJOR: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    8: ((128, 8, 32, 2, 4), (128, 8, 32, 1, 4), (128, 8, 64, 2, 3)),
    16: ((128, 8, 32, 1, 4), (128, 8, 32, 2, 4), (128, 8, 64, 2, 3)),
    32: ((128, 8, 64, 2, 3), (128, 8, 64, 4, 3)),
    64: ((128, 8, 64, 4, 1),),
}
ROW_MAJOR: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    8: ((128, 2, 128, 2, 4), (256, 2, 128, 2, 2), (128, 4, 64, 1, 4)),
    16: ((256, 2, 128, 2, 2), (128, 4, 128, 2, 3), (128, 4, 64, 1, 4)),
    32: ((128, 4, 128, 2, 3), (128, 2, 128, 2, 4)),
    64: ((128, 4, 128, 2, 1),),
}
FEW_SPLITS = 2  # if one wave of resident blocks has at most 2 splits, USUAL_SPLITS are proposed
USUAL_SPLITS = (2, 3, 6)
MOST_SPLITS = 3  # the most options of `splits` to propose for a configuration
FEW_COLUMNS = 16
# Proposals for a small k: threads, lane_rows, min_blocks.
FEW_COLUMNS_SHORT = ((128, 8, 4), (128, 8, 1), (256, 8, 1))
MANY_COLUMNS_SHORT = ((128, 8, 1), (128, 4, 1), (128, 2, 4))
SHORTEST = ((128, 16, 4), (256, 16, 2), (128, 8, 1))  # for k up to 8
LEAST_FILLED = 0.7  # the least share of one wave of resident blocks that the grid should have
SMALL_M = 2**18  # rows up to which a block should have one tile
MOST_SHORT = 9  # the most configurations to propose for a small k


class Mma16(StreamA[Mma16Config]):
    """The base class of the stream_a families for 16-bit floats and TF32 on tensor cores."""

    on_tensor_cores = True
    template = "stream_a/mma16.cu.jinja"
    dtypes = ("bf16", "f16")

    def warp_rows(self, config: Mma16Config, problem: Problem) -> int:
        return LANES_DOWN * config.lane_rows

    def tile_depth(self, config: Mma16Config) -> int:
        return max(config.prefetch, 64, STAGED_ELEMENTS // config.columns)

    def has_one_tile(self, config: Mma16Config) -> bool:
        return False

    def probe_shapes(self, config: Mma16Config, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return (m, n, k) of small problems that reach every branch of the kernel.

        Tiles of rows, groups of columns and splits of k are whole or partial. In the first three problems, B is
        copied to shared memory once, and some splits are empty. In the last three, a split needs more rows of B than
        both buffers hold: k is whole prefetches, or ends with whole vectors, or ends with single elements.
        """
        rows, prefetch = self.block_rows(config, problem), config.prefetch
        deep = (2 * self.tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, max(prefetch - 2, 1)),
            (rows, config.columns, prefetch + 8),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (rows + 8, config.columns - 1, deep),
            ((2 * config.row_tiles - 1) * rows + 8, config.columns // 2, deep - 8),
            (rows + 2, 2, deep - 1),
        )

    def one_wave_first(
        self, variants: Sequence[Mma16Config], problem: Problem, limits: DeviceLimits
    ) -> tuple[Mma16Config, ...]:
        """Return each variant with the numbers of splits to try first.

        The variants alternate: first each variant with its first number of splits, then each variant with its second.
        The first number is the largest with which all blocks are resident at the same time, unless that is at most
        FEW_SPLITS.
        """

        def splits_of(variant: Mma16Config) -> list[int]:
            tiles = self.launch(variant, problem).tiles(problem.m, problem.n)
            slots = limits.sms * variant.min_blocks
            one_wave = max(splits for splits in SPLITS if splits == 1 or splits * tiles <= slots)
            others = splits_to_prefer(
                limits,
                problem,
                resources=self.resources(variant, problem),
                min_blocks=variant.min_blocks,
                tiles=tiles,
            )
            first = (one_wave,) if one_wave > FEW_SPLITS else USUAL_SPLITS
            worth = [splits for splits in first if splits <= problem.k // LEAST_SHARE]
            return list(dict.fromkeys((*worth, *others)))[:MOST_SPLITS]

        return in_turns([replace(variant, splits=splits) for splits in splits_of(variant)] for variant in variants)

    def context(self, config: Mma16Config, problem: Problem) -> dict[str, Any]:
        run = min(VECTOR_BYTES // problem.dtype.element_bytes, config.prefetch // config.stages // 4)
        return super().context(config, problem) | {"run": run}


class StreamAMma16(Mma16):
    name = "stream_a_mma16"
    summary = "large or tall A times skinny B in 16 bits on the tensor cores, A loaded straight into fragments"
    options = OPTIONS
    rules: ClassVar[tuple[Rule, ...]] = (HAS_HALF_TENSOR_CORES, *streaming_rules(OPTIONS))
    config_type: type[Mma16Config] = StreamAMma16Config

    def registers(self, config: Mma16Config, problem: Problem) -> int:
        rows = self.warp_rows(config, problem)
        loaded_bytes = rows * config.prefetch * problem.dtype.element_bytes // WARP_THREADS
        return rows * config.columns // WARP_THREADS + loaded_bytes // 4 + FRAGMENT_REGISTERS

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[Mma16Config, ...]:
        """Return configurations like those that were fastest on an H200, best first.

        They compute all columns of C at once, with few splits of k or with several tiles of rows per block.
        """
        options = OPTIONS.columns
        columns = next((option for option in options if option >= problem.n), options[-1])
        if problem.k < 2 * LEAST_SHARE:
            return self._proposals_of_short(problem, limits, columns)
        if columns == options[-1] and problem.dtype.element_bytes == 2:  # StreamAMma16Ring needs fewer registers
            return ()
        row_major = problem.contiguous[0] == "k"
        variants = (ROW_MAJOR if row_major else COLUMN_MAJOR)[columns]
        if problem.dtype.element_bytes > 2:  # half as many elements: the same bytes in flight
            variants = tuple((t, rows, p // 2, s if p >= 32 * s else 1, b) for t, rows, p, s, b in variants)
        chosen = [self.config_type(t, rows, columns, p, s, 1, 1, least) for t, rows, p, s, least in variants]
        return self.one_wave_first(chosen, problem, limits)

    def _proposals_of_short(self, problem: Problem, limits: DeviceLimits, columns: int) -> tuple[Mma16Config, ...]:
        """Return the proposals for a small k: several tiles of rows per block.

        If C has few columns, blocks of the first proposals have so many tiles that all blocks are resident at the
        same time.
        """
        few = columns <= FEW_COLUMNS
        ahead: tuple[tuple[int, int], ...] = ((64, 4), (64, 1))
        if problem.k <= 32:
            ahead = ((8, 1),) if problem.k <= 8 else ((16, 1),) if problem.k <= 16 else ((32, 2), (32, 1))
        tiles: tuple[int, ...] = (8, 4, 2) if few else (8, 4) if columns < OPTIONS.columns[-1] else (4, 8)
        tiles = (1,) if problem.m <= SMALL_M else tiles
        shapes = SHORTEST if problem.k <= 8 else FEW_COLUMNS_SHORT if few else MANY_COLUMNS_SHORT
        chosen = [
            self.config_type(threads, lane_rows, columns, *division, 1, row_tiles, min_blocks)
            for row_tiles in tiles
            for division in ahead
            for threads, lane_rows, min_blocks in shapes
        ]
        if few:
            runs = [
                _long_run(-(-problem.m // self.block_rows(one, problem)), limits.sms * one.min_blocks)
                for one in chosen
            ]
            long = [replace(one, row_tiles=run) for one, run in zip(chosen, runs, strict=True) if run]
            chosen = list(dict.fromkeys((*long, *chosen)))[:MOST_SHORT]
        return tuple(chosen)


def _long_run(tiles: int, slots: int) -> int:
    """Return the number of row tiles per block with which the blocks nearly fill one wave of `slots` resident blocks.

    Return 0 if no option of the number nearly fills the wave.
    """
    return next((run for run in LONG_RUNS if LEAST_FILLED * slots <= -(-tiles // run) <= slots), 0)


class StreamATf32(StreamAMma16):
    name = "stream_a_tf32"
    summary = "large or tall A times skinny B in TF32 or 3xTF32, A loaded straight into the tensor cores' fragments"
    dtypes = ("tf32", "3xtf32")
    config_type = StreamATf32Config
