"""stream_a on tensor cores in bf16, f16, TF32 and 3xTF32: A is loaded straight into registers, or copied.

A lane loads 16 bytes at a time. For a row-major A, these bytes are elements of a fragment in another order than the
mma instruction's, and B is copied to shared memory in the same order. For a column-major 16-bit A, a loaded register
has two rows of one column, and byte permutations make registers with two columns of one row. TF32 needs no
permutation, since a register has one element. Sums are in f32, and C is rounded once.

The families with a ring are for a C of so many columns that their sums leave no registers to load A ahead. Each warp
copies its own rows of A to shared memory with coalesced 16-byte accesses, and loads them from there as fragments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_HALF_TENSOR_CORES
from tsm2_tune.generator.families.family import WARP_THREADS, vector_elements
from tsm2_tune.generator.families.stream_a.kernel import (
    Axes,
    Mma16Config,
    StreamA,
    StreamAMma16Config,
    StreamAMma16RingConfig,
    StreamATf32Config,
    StreamATf32RingConfig,
    streaming_rules,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule
from tsm2_tune.generator.split_k import (
    LEAST_SHARE,
    SPLITS,
    SPLITS_ROW_TILES,
    SPLITTING_RULES,
    in_turns,
    splits_to_prefer,
)
from tsm2_tune.generator.tiles import covering
from tsm2_tune.generator.tiling import VECTOR_BYTES

# Options of `row_tiles`: for most m, one of them nearly fills one wave of resident blocks.
LONG_RUNS = (20, 28, 40, 56, 80)
COLUMNS, RING_COLUMNS = (8, 16, 32, 64), (32, 64)
AXES: Axes = {
    "threads": (128, 256),
    "lane_rows": (2, 4, 8, 16),
    "columns": COLUMNS,
    "prefetch stages": ((8, 1), (16, 1), (32, 1), (32, 2), (64, 1), (64, 2), (64, 4), (128, 2)),
    "splits row_tiles": (*SPLITS_ROW_TILES, *((1, tiles) for tiles in LONG_RUNS)),
    "min_blocks": (1, 2, 3, 4),
}
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
FEW_COLUMNS = 16  # columns of C up to which registers have room for enough of A
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
    has_one_tile = False

    def warp_rows(self, config: Mma16Config, problem: Problem) -> int:
        return LANES_DOWN * config.lane_rows

    def tile_depth(self, config: Mma16Config) -> int:
        return max(config.prefetch, 64, STAGED_ELEMENTS // config.columns)

    def probe_shapes(self, config: Mma16Config, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, prefetch = self.block_rows(config, problem), config.prefetch
        deep = (2 * self.tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, max(prefetch - 2, 1)),
            (rows, config.columns, prefetch + 8),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (rows + 8, config.columns - 1, deep),  # more rows of B for a split than both buffers hold
            ((2 * config.row_tiles - 1) * rows + 8, config.columns // 2, deep - 8),  # k ends with whole vectors
            (rows + 2, 2, deep - 1),  # k ends with single elements
        )

    def one_wave_first(
        self, variants: Sequence[Mma16Config], problem: Problem, limits: DeviceLimits
    ) -> tuple[Mma16Config, ...]:
        """Return each variant with the splits to try first: most that fit in one wave, if more than FEW_SPLITS."""

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
        run = min(vector_elements(problem), config.prefetch // config.stages // 4)
        return super().context(config, problem) | {"run": run}


class StreamAMma16(Mma16):
    summary = "large or tall A times skinny B in 16 bits on the tensor cores, A loaded straight into fragments"
    axes = AXES
    rules = (HAS_HALF_TENSOR_CORES, *streaming_rules(AXES))
    config_type: type[Mma16Config] = StreamAMma16Config

    def registers(self, config: Mma16Config, problem: Problem) -> int:
        rows = self.warp_rows(config, problem)
        loaded_bytes = rows * config.prefetch * problem.dtype.element_bytes // WARP_THREADS
        return rows * config.columns // WARP_THREADS + loaded_bytes // 4 + FRAGMENT_REGISTERS

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[Mma16Config, ...]:
        """Return variants of what was fastest on an H200, with few splits of k or several tiles of rows per block."""
        columns = covering(COLUMNS, problem.n)
        if problem.k < 2 * LEAST_SHARE:
            return self._proposals_of_short(problem, limits, columns)
        if columns == COLUMNS[-1] and problem.dtype.element_bytes == 2:  # StreamAMma16Ring needs fewer registers
            return ()
        variants = (ROW_MAJOR if problem.contiguous[0] == "k" else COLUMN_MAJOR)[columns]
        if problem.dtype.element_bytes > 2:  # half as many elements: the same bytes in flight
            variants = tuple((t, rows, p // 2, s if p >= 32 * s else 1, b) for t, rows, p, s, b in variants)
        chosen = [self.config_type(t, rows, columns, p, s, 1, 1, least) for t, rows, p, s, least in variants]
        return self.one_wave_first(chosen, problem, limits)

    def _proposals_of_short(self, problem: Problem, limits: DeviceLimits, columns: int) -> tuple[Mma16Config, ...]:
        """Return several tiles of rows per block; with few columns, first so many that all blocks are resident."""
        few = columns <= FEW_COLUMNS
        ahead: tuple[tuple[int, int], ...] = ((64, 4), (64, 1))
        if problem.k <= 32:
            ahead = ((8, 1),) if problem.k <= 8 else ((16, 1),) if problem.k <= 16 else ((32, 2), (32, 1))
        tiles: tuple[int, ...] = (8, 4, 2) if few else (8, 4) if columns < COLUMNS[-1] else (4, 8)
        tiles = (1,) if problem.m <= SMALL_M else tiles
        shapes = SHORTEST if problem.k <= 8 else FEW_COLUMNS_SHORT if few else MANY_COLUMNS_SHORT
        chosen = [
            self.config_type(threads, lane_rows, columns, *division, 1, row_tiles, min_blocks)
            for row_tiles in tiles
            for division in ahead
            for threads, lane_rows, min_blocks in shapes
        ]
        if few:
            long = []
            for one in chosen:
                count, slots = -(-problem.m // self.block_rows(one, problem)), limits.sms * one.min_blocks
                filling = [run for run in LONG_RUNS if LEAST_FILLED * slots <= -(-count // run) <= slots]
                long += [replace(one, row_tiles=run) for run in filling[:1]]
            chosen = list(dict.fromkeys((*long, *chosen)))[:MOST_SHORT]
        return tuple(chosen)


class StreamATf32(StreamAMma16):
    summary = "large or tall A times skinny B in TF32 or 3xTF32, A loaded straight into the tensor cores' fragments"
    dtypes = ("tf32", "3xtf32")
    config_type = StreamATf32Config


# With a ring: A passes through a pipeline in shared memory.

LANE_ROWS = 8
RING_AXES: Axes = AXES | {
    "lane_rows": (LANE_ROWS,),
    "columns": RING_COLUMNS,
    "prefetch stages": ((32, 2), (64, 2), (64, 4), (128, 2), (128, 4)),
    "splits row_tiles": SPLITS_ROW_TILES,
    "min_blocks": (1, 2, 3),
}
ALWAYS_KEPT_GROUP = 32  # columns of A in a stage that are kept for every k: a lane copies 16 bytes at a time

# Proposals for a large A, by `columns`: threads, prefetch, stages, min_blocks.
RING_COLUMN_MAJOR: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((128, 128, 4, 2), (128, 64, 2, 3), (256, 128, 4, 1)),
    64: ((256, 128, 4, 1), (128, 128, 4, 2)),
}
RING_ROW_MAJOR: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((256, 128, 2, 1), (128, 128, 2, 2)),
    64: ((256, 128, 2, 1), (256, 128, 4, 1)),
}
# Proposals for a small k, by `columns`: prefetch, stages, row_tiles, min_blocks.
RING_SHORT: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((128, 4, 8, 2), (64, 2, 8, 3), (128, 4, 4, 2)),
    64: ((128, 2, 4, 2), (64, 2, 8, 2), (128, 2, 8, 2)),
}
MANY_COLUMNS = Rule(
    "ring-for-many-columns",
    "shape",
    "with few columns of C, registers hold enough of A, and shared memory is slower",
    lambda c: c.problem.n > FEW_COLUMNS,
    of=(),
)


def _group(candidate: Candidate) -> int:
    """Return the number of columns of A in one pipeline stage."""
    return tunable(candidate, "prefetch") // tunable(candidate, "stages")


class StreamAMma16Ring(Mma16):
    summary = (
        "large or tall A times B of many columns in 16 bits on the tensor cores,"
        " A through a pipeline in shared memory"
    )
    ring_of_a = True
    axes = RING_AXES
    rules = (
        MANY_COLUMNS,
        covering_rule("columns", "n", RING_COLUMNS),
        Rule(
            "group-within-k",
            "shape",
            "a pipeline stage of more than k columns of A would be partly empty",
            lambda c: _group(c) <= max(c.problem.k, ALWAYS_KEPT_GROUP),
        ),
        Rule(
            "runs-are-pieces",
            "limit",
            "four lanes read 16 bytes each of a row of A in a pipeline stage",
            lambda c: c.problem.contiguous[0] != "k" or _group(c) * c.problem.dtype.element_bytes >= 4 * VECTOR_BYTES,
        ),
        HAS_HALF_TENSOR_CORES,
        *SPLITTING_RULES,
    )
    config_type = StreamAMma16RingConfig

    def registers(self, config: Mma16Config, problem: Problem) -> int:
        sums = self.warp_rows(config, problem) * config.columns // WARP_THREADS
        return sums + 4 * config.lane_rows + config.columns // 2

    def ring_bytes(self, config: Mma16Config, problem: Problem) -> int:
        return self.block_rows(config, problem) * config.prefetch * problem.dtype.element_bytes

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[Mma16Config, ...]:
        """Return variants of what was fastest on an H200; none for few columns. A row-major A is copied by lines."""
        if problem.n <= FEW_COLUMNS:
            return ()
        columns = covering(RING_COLUMNS, problem.n)
        divisor = problem.dtype.element_bytes // 2  # f32: half as many elements, the same bytes in flight
        if problem.k < 2 * LEAST_SHARE:
            return tuple(
                self.config_type(128, LANE_ROWS, columns, p // divisor, s, 1, row_tiles, least)
                for p, s, row_tiles, least in RING_SHORT[columns]
                if p // s <= max(problem.k, ALWAYS_KEPT_GROUP)
            )
        variants = (RING_ROW_MAJOR if problem.contiguous[0] == "k" else RING_COLUMN_MAJOR)[columns]
        chosen = [self.config_type(t, LANE_ROWS, columns, p // divisor, s, 1, 1, b) for t, p, s, b in variants]
        return self.one_wave_first(chosen, problem, limits)


class StreamATf32Ring(StreamAMma16Ring):
    summary = "large or tall A times B of many columns in TF32 or 3xTF32, A through a pipeline in shared memory"
    dtypes = ("tf32", "3xtf32")
    config_type = StreamATf32RingConfig
