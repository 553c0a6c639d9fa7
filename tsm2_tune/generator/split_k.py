"""Dividing k, or the tiles of C, over blocks: the options, which to try first, and the rules for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from tsm2_tune.generator.config import FLAT_SPLITS, KernelConfig, Resources, Traffic
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import occupancy
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, Design, tunable
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE, RESOURCES, Rule

# How a grid is divided: parts of k for each tile of C, or tiles for each block, never both.
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 19, 20, 21, 24, 26, 32, 48)
ROW_TILES = (2, 4, 8)
SPLITS_ROW_TILES = (*((splits, 1) for splits in SPLITS), *((1, tiles) for tiles in ROW_TILES))
LEAST_SHARE = 64  # the least products along k for a block of its own
BLOCKS_PER_SM = 2  # the least for a grid
NEARLY_ALL = 0.9  # of the multiprocessors

# Where C is a tile or a few, and k alone fills the device: as many blocks on every multiprocessor.
MULTIPROCESSORS = (80, 108, 132, 148)  # of V100, A100, H100 and H200, B200
WIDE_SPLITS = (16, 20, 40, 64, *sorted(sms * blocks for sms in MULTIPROCESSORS for blocks in (1, 2, 3, 4)))


def wide_splits(limits: DeviceLimits, blocks: int) -> int:
    """Return the option that gives every multiprocessor so many blocks; where none does, the largest below."""
    return max((splits for splits in WIDE_SPLITS if splits <= limits.sms * blocks), default=WIDE_SPLITS[0])


FEW_SPLITS = 3  # options tried first for a configuration
IDLE_BLOCKS = 0.3  # of all: as many may have no chunk

MOST_ADDERS = 16  # groups of a block's threads that add up splits


def adders(*, threads: int, tile_bytes: int) -> int:
    """Return the number of thread groups that share the splits' sums of a tile, each thread a 16-byte vector."""
    return max(min(MOST_ADDERS, threads // max(tile_bytes // 16, 1)), 1)


MOST_LOADS, FEW_LOADS = 16, 13  # loads of splits' sums that a thread has in flight
REGISTERS_FOR_MOST = 80  # registers of a thread that hold those sums and their addresses


def most_loads(registers: int) -> int:
    """Loads of splits' sums that a thread of so many registers has in flight."""
    return MOST_LOADS if registers >= REGISTERS_FOR_MOST else FEW_LOADS


FLAT_ELEMENTS = 2**15  # of sums that one block reads in less time than two rounds of blocks need


def flat_splits(tile_elements: int) -> int:
    """Return the most splits of a tile whose sums one block adds up, its threads sharing them."""
    return max(FLAT_SPLITS, FLAT_ELEMENTS // tile_elements)


SMALL_K = 2**18  # up to which starting the kernel and adding up its sums take longer than reading


def splits_of_few_chunks(k: int, *, block_k: int, stages: int, limits: DeviceLimits) -> list[int]:
    """Return the splits of a small k, best first: as few rounds of chunks as the stages hold, then few sums.

    One block a multiprocessor at the most: a second one costs more in the last sums than it saves in rounds.
    """
    chunks = -(-k // block_k)
    options = [splits for splits in WIDE_SPLITS if splits <= limits.sms]
    worth = [splits for splits in options if mostly_busy(splits, chunks)] or [WIDE_SPLITS[0]]
    return sorted(worth, key=lambda splits: (max(-(-chunks // splits), stages), splits))[:FEW_SPLITS]


def mostly_busy(splits: int, chunks: int) -> bool:
    """Return whether most blocks have a chunk."""
    return splits * (1 - IDLE_BLOCKS) <= chunks


C = TypeVar("C", bound=KernelConfig)


def in_turns(lists: Iterable[Iterable[C]]) -> tuple[C, ...]:
    """Return the first of each list, then the second of each, and so on."""
    return tuple(config for turn in zip_longest(*lists) for config in turn if config is not None)


PREFERRED_SPLITS = 3  # of the best ones by the model
ENOUGH_BYTES = 40 * 2**10  # in flight to a multiprocessor: Little's law
REGISTERS_USED = 120  # a thread, where nothing bounds them and loads are to be ahead
LIGHT = 2  # columns for each byte of an element, up to which memory alone decides
UNEVEN = 0.4  # there, of what unequal shares cost: the last blocks have the others' bandwidth
START_US = 2.0  # time until a block's first loads arrive


def splits_to_prefer(
    limits: DeviceLimits,
    problem: Problem,
    *,
    resources: Resources,
    min_blocks: int,
    tiles: int,
    prefetch: int = 1,
    options: Sequence[int] = SPLITS,
) -> list[int]:
    """Return those of the options that the model wants tried first, best first.

    Every multiprocessor should have as many blocks as the others, or whole waves of them, and enough bytes in
    flight. Shares are whole prefetches. What a split costs is its blocks' start, and its sums, written and read again
    beside A, which is read once.
    """
    occupied = occupancy(
        limits, threads=resources.threads, registers=resources.registers, smem_bytes=resources.smem_bytes
    ).blocks_per_sm
    usual = limits.registers_per_sm // (REGISTERS_USED * resources.threads)
    resident = min_blocks if min_blocks > 1 else max(min(occupied, usual), 1)  # compilers use what they may
    most = max(problem.k // LEAST_SHARE, 1)
    uneven = UNEVEN if problem.n <= LIGHT * problem.dtype.element_bytes else 1.0
    least_us = problem.m * problem.k * problem.dtype.element_bytes / (limits.dram_gbytes_per_s * 1e3)

    def time(splits: int) -> float:  # of what A takes where all are busy to the end
        blocks = tiles * splits / limits.sms  # on a multiprocessor
        waves = -(-blocks // resident)
        slots = -(-blocks // 1) if waves == 1 else waves * resident
        on_their_way = min(blocks, resident) * resources.threads * resources.bytes_in_flight
        share = -(-problem.k // (splits * prefetch)) * prefetch
        sums = 2 * splits * problem.n / problem.k if splits > 1 else 0
        busy = (1 + uneven * (slots / blocks - 1)) * share * splits / problem.k
        return busy * max(ENOUGH_BYTES / on_their_way, 1) * (1 + sums) + waves * START_US / least_us

    return sorted((splits for splits in options if splits <= most), key=time)[:PREFERRED_SPLITS]


def with_splits(family: Design, variants: Iterable[C], problem: Problem, limits: DeviceLimits) -> tuple[C, ...]:
    """Return the variants, which do not split k, each with the splits to prefer for it: in turns."""
    return in_turns(
        [
            replace(variant, splits=splits)  # type: ignore[call-arg]
            for splits in splits_to_prefer(
                limits,
                problem,
                resources=family.resources(variant, problem),
                min_blocks=int(variant.tunables["min_blocks"]),
                tiles=family.launch(variant, problem).tiles(problem.m, problem.n),
                prefetch=int(variant.tunables["prefetch"]),
            )
        ]
        for variant in variants
    )


def _share(candidate: Candidate) -> int:
    return candidate.problem.k // tunable(candidate, "splits")


def _grid_fills_device(candidate: Candidate) -> bool:
    """A grid too small for the device is kept only where nothing could make it larger."""
    blocks = candidate.launch.blocks(candidate.problem.m, candidate.problem.n)
    enough = min(candidate.occupancy.blocks_per_sm or 1, BLOCKS_PER_SM) * NEARLY_ALL
    could_divide = tunable(candidate, "row_tiles") > 1 or _share(candidate) >= 2 * LEAST_SHARE
    return blocks >= enough * candidate.limits.sms or not could_divide


def are_whole_waves(splits: int, limits: DeviceLimits) -> bool:
    """Return whether no multiprocessor has fewer blocks than others, or all have one at the most."""
    return splits % limits.sms == 0 or splits < limits.sms or limits.sms not in MULTIPROCESSORS


def _one_wave(candidate: Candidate) -> bool:
    """Return whether all blocks are resident from the start. A bound on registers holds, whatever their estimate."""
    blocks, resources = max(candidate.occupancy.blocks_per_sm, 1), candidate.resources
    min_blocks = int(getattr(candidate.config, "min_blocks", 1))
    if min_blocks > blocks:
        unbounded = occupancy(
            candidate.limits, threads=resources.threads, registers=0, smem_bytes=resources.smem_bytes
        )
        blocks = min(min_blocks, unbounded.blocks_per_sm)
    return tunable(candidate, "splits") <= max(candidate.limits.sms * blocks, WIDE_SPLITS[0])


ONE_WAVE = Rule(
    "one-wave",
    "shape",
    "blocks that wait for others to end only lengthen the last sums",
    _one_wave,
    of=(RESOURCES, "min_blocks", "splits"),
)
WIDE_SPLIT_RULES = (
    Rule(
        "whole-waves",
        "shape",
        "multiprocessors with fewer blocks than others would wait for them",
        lambda c: are_whole_waves(tunable(c, "splits"), c.limits),
        of=("splits",),
    ),
    ONE_WAVE,
)


def in_one_wave(family: Design, config: C, problem: Problem, limits: DeviceLimits) -> C:
    """The configuration with no more blocks than are resident from the start."""
    most = int(config.tunables["splits"])
    options = (splits for splits in reversed(WIDE_SPLITS) if splits <= most)
    every = (replace(config, splits=splits) for splits in options)  # type: ignore[call-arg]
    return next(c for c in every if ONE_WAVE.keeps(Candidate(family, c, problem, limits, Guidelines())))


SPLITTING_RULES = (
    Rule(
        "share-worth-a-block",
        "shape",
        "a block with few columns of A does little but add up sums",
        lambda c: tunable(c, "splits") == 1 or _share(c) >= LEAST_SHARE,
        of=("splits",),
    ),
    Rule(
        "grid-fills-device",
        "shape",
        "every multiprocessor should have two blocks, or the one it holds, by a split of k or by fewer tiles a block",
        _grid_fills_device,
        of=(RESOURCES, "splits", "row_tiles"),
    ),
    REGISTERS_REACHABLE,
)


def split_traffic(problem: Problem, *, columns: int, splits: int) -> Traffic:
    """Return the bytes moved: A once for each group of columns, B and C once, and the splits' sums there and back."""
    passes = -(-problem.n // columns)
    sums = problem.m * problem.n * splits if splits > 1 else 0
    read = problem.m * problem.k * passes + problem.k * problem.n + sums
    written = problem.m * problem.n + sums
    return Traffic(read * problem.dtype.element_bytes, written * problem.dtype.element_bytes)
