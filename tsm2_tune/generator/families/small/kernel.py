"""The family of small products: its search space, the rules that prune it, and what to try first."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import SHARED, Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families.family import Family, rule_of, vector_elements
from tsm2_tune.generator.families.small.groups import (
    SmallConfig,
    line_lengths,
    pitch,
    product_bytes,
    products_of_group,
    stored_bytes,
    tile_counts,
    tiles_of_group,
)
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE, RESOURCES, Rule
from tsm2_tune.generator.split_k import MULTIPROCESSORS
from tsm2_tune.generator.tiling import BlockPlan

FEWEST_STORED_BYTES = 16  # of C at once, if threads write it themselves
UNROLL = 4  # iterations along k that are unrolled
THREADS = (64, 128, 256)
KILOBYTES = (8, 12, 16, 24, 32, 48, 64, 96)
TILES = tuple(product(range(1, 9), range(1, 9)))  # options of (rows, columns)
STAGES = (1, 2, 3)
MIN_BLOCKS = (2, 3, 4, 6, 8, 10, 12, 16)
FEW_BLOCKS = 16  # of the grid, for a device whose number of multiprocessors is not in MULTIPROCESSORS
WAVES = (1, 4)  # options of the grid, divided by the product of multiprocessors and min_blocks
BLOCKS = [  # options of (min_blocks, blocks)
    (least, blocks)
    for least in MIN_BLOCKS
    for blocks in (FEW_BLOCKS, *(waves * sms * least for sms in MULTIPROCESSORS for waves in WAVES))
]
# Registers of a thread besides sums, operands and their offsets. For sm_90, nvcc 13.0 spills 4 bytes of 3 x 3 tiles
# of f32 if it may use 48 registers, 8 bytes of 4 x 4 tiles of f64 with 80, and none of 2 x 2 tiles of bf16 with 40.
# The estimates are 48, 83 and 39.
OTHER_REGISTERS = 27
FIRST_PADDED = 2  # vectors; longer lines are padded first. 16 x 16 x 16 in bf16, with lines of 2, is faster without
FIRST_TILES = 10  # to try first: those with little work in shared memory
FIRST_SUM_REGISTERS = 40  # at most, of a thread: on an H200, no winner of 29 batches in f32 and f64 has more
# Estimates, not measured: reads of shared memory that take as long as the addresses of a tile, and as the copy of an
# element from global memory.
TILE_READS, HIDDEN_READS = 16, 2
FIRST_BLOCKS = ((128, 1), (64, 1), (256, 1), (128, 2), (64, 2), (256, 2))  # to try first: (threads, stages)


def _tile_rank(tile: tuple[int, int], problem: Problem) -> tuple[int, int]:
    """Return the key that orders tiles: little work of threads beside multiply-adds, then many threads.

    The work is counted in reads of an element from shared memory. A multiprocessor reads shared memory eight times as
    fast as its share of global memory. So less work gains little once it is twice the elements of the matrices.
    """
    m, n, k, tiles = problem.m, problem.n, problem.k, math.prod(tile_counts(tile, problem))
    return max(tiles * (sum(tile) * k + TILE_READS), HIDDEN_READS * (m * k + k * n + m * n)), -tiles


def _vectors(tile: tuple[int, int], problem: Problem) -> tuple[int, int]:
    """Return the elements of the vectors that tiles and C consist of, down and across."""
    width = vector_elements(problem)
    return math.gcd(tile[0], problem.m, width), math.gcd(tile[1], problem.n, width)


def _makes_fewest_tiles(tile: tuple[int, int], problem: Problem) -> bool:
    """Return whether every smaller tile would need more tiles, or have narrower vectors."""
    rows, columns = tile
    smaller = [(fewer, columns) for fewer in range(1, rows)] + [(rows, fewer) for fewer in range(1, columns)]
    return not any(
        tile_counts(other, problem) == tile_counts(tile, problem)
        and _vectors(other, problem) >= _vectors(tile, problem)
        for other in smaller
    )


def _stores_enough(config: SmallConfig, problem: Problem) -> bool:
    """Return whether threads that write C themselves write vectors, or must, as no shared memory holds the sums."""
    largest = replace(config, kilobytes=KILOBYTES[-1], stages=STAGES[0], padding=0, direct=0)
    return (
        config.direct == 0
        or stored_bytes(config, problem) >= FEWEST_STORED_BYTES
        or products_of_group(largest, problem) == 0
    )


def _groups_begin_at_vectors(config: SmallConfig, problem: Problem) -> bool:
    width, (m, n, k) = vector_elements(problem), (problem.m, problem.n, problem.k)
    group = products_of_group(config, problem)
    largest = replace(config, kilobytes=KILOBYTES[-1], stages=STAGES[0])
    are_whole = all(group * elements % width == 0 for elements in (m * k, k * n, m * n))
    return are_whole or products_of_group(largest, problem) < width


def _has_tiles_for_threads(config: SmallConfig, problem: Problem) -> bool:
    return config.threads == THREADS[0] or 2 * tiles_of_group(config, problem) > config.threads


def _pads(config: SmallConfig, problem: Problem) -> bool:
    """Return whether padding makes A or B larger in shared memory."""
    return product_bytes(replace(config, padding=1), problem) > product_bytes(replace(config, padding=0), problem)


def _should_pad(problem: Problem) -> bool:
    """Return whether to try padding first: threads read long lines, or matrices of odd lines, from few banks."""
    width, (m, n, k) = vector_elements(problem), (problem.m, problem.n, problem.k)
    pieces = (
        matrix if line % width else line for line, matrix in zip(line_lengths(problem), (m * k, k * n), strict=False)
    )
    return any(piece > FIRST_PADDED * width and pitch(piece, problem) > piece for piece in pieces)


def _grids(candidate: Candidate) -> tuple[int, ...]:
    """Return the options of `blocks` for a `min_blocks`: one wave of resident blocks, or several."""
    limits = candidate.limits
    if limits.sms not in MULTIPROCESSORS:
        return (FEW_BLOCKS,)
    return tuple(waves * limits.sms * int(tunable(candidate, "min_blocks")) for waves in WAVES)


def _has_products_for_waves(candidate: Candidate) -> bool:
    config, problem = candidate.config, candidate.problem
    assert isinstance(config, SmallConfig)
    is_one_wave = config.blocks == _grids(candidate)[0]
    return is_one_wave or problem.batch >= config.blocks * products_of_group(config, problem)


def _most_blocks(resident: int) -> int:
    """Return the largest option of min_blocks that is at most `resident`."""
    return max((option for option in MIN_BLOCKS if option <= resident), default=MIN_BLOCKS[0])


def _least_kilobytes(config: SmallConfig, problem: Problem, limits: DeviceLimits) -> int | None:
    """Return the least shared memory with tiles for all threads, else for most of them; None if there is none."""
    options = [option for option in KILOBYTES if 1024 * option <= limits.smem_bytes_per_block_optin]
    tiles = {option: tiles_of_group(replace(config, kilobytes=option), problem) for option in options}
    for least in (config.threads, config.threads // 2 + 1):
        for option in options:
            if tiles[option] >= least:
                return option
    return options[-1] if config.threads == THREADS[0] and tiles[options[-1]] else None


def _min_blocks_fit(candidate: Candidate) -> bool:
    least, resident = int(tunable(candidate, "min_blocks")), candidate.occupancy.blocks_per_sm
    most = _most_blocks(resident)
    return least == most <= resident or (least <= most and REGISTERS_REACHABLE.keeps(candidate))


OF_GROUP = ("threads", "kilobytes", "rows", "columns", "stages", "padding", "direct")


class Small(Family[SmallConfig]):
    summary = "a batch of small products: groups of products in shared memory, a tile of one product per thread"
    template = "small.cu.jinja"
    dtypes = (*FMA_DTYPES, "bf16", "f16")
    is_batched = True
    config_type = SmallConfig
    rules = (
        rule_of(
            "product-in-shared-memory",
            "limit",
            f"{KILOBYTES[-1]} KiB of shared memory or less must hold a product: operands in every stage, and sums",
            lambda config, problem: products_of_group(config, problem) >= 1,
            of=("kilobytes", "stages", "padding", "direct"),
        ),
        rule_of(
            "fewest-tiles",
            "shape",
            "a smaller tile makes as many tiles, of vectors as wide",
            lambda config, problem: _makes_fewest_tiles((config.rows, config.columns), problem),
            of=("rows", "columns"),
        ),
        rule_of(
            "padding-changes-pitches",
            "shape",
            "padding needs a line or matrix that is an even number of vectors",
            lambda config, problem: config.padding == 0 or _pads(config, problem),
            of=("padding",),
        ),
        rule_of(
            "groups-begin-at-vectors",
            "shape",
            "copies move whole vectors only if every group of products begins at a multiple of 16 bytes",
            _groups_begin_at_vectors,
            of=("kilobytes", "stages", "padding", "direct"),
        ),
        rule_of(
            "direct-in-vectors",
            "shape",
            "threads that write C themselves should write at least 16 bytes at once, unless sums fit nowhere",
            _stores_enough,
            of=("rows", "columns", "direct"),
        ),
        rule_of(
            "threads-have-tiles",
            "shape",
            "a group of products should have tiles for most threads of a block",
            _has_tiles_for_threads,
            of=OF_GROUP,
        ),
        Rule(
            "full-grid",
            "shape",
            "the blocks are all that are resident, or several waves of them, if the GPU's multiprocessors are known",
            lambda c: tunable(c, "blocks") in _grids(c),
            of=("min_blocks", "blocks"),
        ),
        Rule(
            "waves-have-products",
            "shape",
            "each block of several waves needs a group of products",
            _has_products_for_waves,
            of=(*OF_GROUP, "min_blocks", "blocks"),
        ),
        Rule(
            "min-blocks-fit",
            "shape",
            f"min_blocks, {MIN_BLOCKS[0]} or more, must be the blocks that fit on a multiprocessor, or fewer",
            _min_blocks_fit,
            of=(RESOURCES, "min_blocks"),
        ),
    )
    beside_resources = ("padding", "direct", "min_blocks", "blocks")
    axes: ClassVar = {
        "threads": THREADS,
        "kilobytes": KILOBYTES,
        "rows columns": TILES,
        "stages": STAGES,
        "padding": (0, 1),
        "direct": (0, 1),
        "min_blocks blocks": BLOCKS,
    }

    def specialized(self, config: SmallConfig, problem: Problem) -> SmallConfig:
        return replace(config, own_m=problem.m, own_n=problem.n, own_k=problem.k)

    def guidelines(self, problem: Problem, limits: DeviceLimits) -> Guidelines:
        """Return the default thresholds, without one for reuse: shared memory has the operands of every tile."""
        return Guidelines(min_reuse=0.0)

    def fits(self, problem: Problem) -> bool:
        """Return whether the family computes products of this type and size: some configuration has room for one."""
        roomy = SmallConfig(THREADS[0], KILOBYTES[-1], 1, 1, STAGES[0], 0, 1, *BLOCKS[0])
        return super().fits(problem) and self.computes(roomy, problem)

    def lacks(self, problem: Problem) -> str:
        if not problem.is_batched or not super().fits(problem) or self.fits(problem):
            return ""
        one = f"{problem.m}x{problem.n}x{problem.k}"
        return f"a product of {one} does not fit in {KILOBYTES[-1]} KiB of shared memory"

    def computes(self, config: SmallConfig, problem: Problem) -> bool:
        return products_of_group(config, problem) >= 1

    def products_per_block(self, config: SmallConfig, problem: Problem) -> int:
        return products_of_group(config, problem)

    def block_plan(self, config: SmallConfig, problem: Problem) -> BlockPlan:
        """Return the block plan. Its tile has the extents after which tiles, vectors and the loop over k repeat."""
        sums, smem_bytes = config.rows * config.columns, config.kilobytes * 1024
        operands = config.rows + config.columns
        resources = Resources(
            threads=config.threads,
            registers=(sums + operands) * problem.dtype.sum.registers + operands + OTHER_REGISTERS,
            smem_bytes=smem_bytes,
            bytes_in_flight=smem_bytes // (2 * config.threads),
            reuse=float(config.columns),
        )
        width = vector_elements(problem)
        blocks = {"splits": config.blocks, "persistent": True, "batched": SHARED}
        return BlockPlan(
            resources,
            Periods(max(config.rows, width), max(config.columns, width), max(UNROLL, width)),
            matrices_in_smem=(config.stages, config.padding),
            launch_fields=blocks | {"rows_per_block": 1, "columns_per_block": 0},
            tiling_fields={"tile_m": 1, "tile_n": 0},
        )

    def probe_shapes(self, config: SmallConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, width = config.rows, config.columns, vector_elements(problem)
        m, n, k = problem.m, problem.n, problem.k
        return (
            (m, n, k),  # for which the kernel may have code of its own
            (m + 1, n, k),
            (m, n + 1, k),
            (m, n, k + 1),
            (rows, columns, 1),
            (rows + 1, max(columns - 1, 1), UNROLL + 1),
            (width, width, width),  # matrices of whole vectors
            (2 * width, width, UNROLL),
            (2 * rows + 1, 2 * columns + 1, 3),
            (1, 1, 2 * UNROLL + 3),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[SmallConfig, ...]:
        """Return configurations with all blocks that fit, first those whose tiles read little of shared memory."""
        sums = [tile for tile in TILES if math.prod(tile) * problem.dtype.sum.registers <= FIRST_SUM_REGISTERS]
        useful = (tile for tile in sums if _makes_fewest_tiles(tile, problem))
        tiles = heapq.nsmallest(FIRST_TILES, useful, key=lambda tile: _tile_rank(tile, problem))
        padding = int(_should_pad(problem))
        found = []
        for tile, block in sorted(product(range(len(tiles)), range(len(FIRST_BLOCKS))), key=sum):
            (rows, columns), (threads, stages) = tiles[tile], FIRST_BLOCKS[block]
            config = SmallConfig(threads, KILOBYTES[-1], rows, columns, stages, padding, 0, *BLOCKS[0])
            if _stores_enough(replace(config, direct=1), problem):
                config = replace(config, direct=1)
            kilobytes = _least_kilobytes(config, problem, limits)
            if kilobytes is None:
                continue
            config = replace(config, kilobytes=kilobytes)
            most = _most_blocks(self.occupancy(self.resources(config, problem), limits).blocks_per_sm)
            blocks = limits.sms * most if limits.sms in MULTIPROCESSORS else FEW_BLOCKS
            found.append(self.specialized(replace(config, min_blocks=most, blocks=blocks), problem))
        return tuple(found)

    def context(self, config: SmallConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "is_gram": problem.is_gram,
            "is_padded": config.padding == 1,
            "is_direct": config.direct == 1,
            "width": vector_elements(problem),
            "smem_bytes": config.kilobytes * 1024,
        }
