"""Split-k: the numbers of slices into which k may be divided, rules for these numbers, and which to try first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from tsm2_tune.generator.config import FLAT_SPLITS, KernelConfig, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import occupancy
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import REGISTERS_REACHABLE, RESOURCES, Rule

# Either a kernel divides k into split-k slices, or each block computes several row tiles of C, but not both.
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 19, 20, 21, 24, 26, 32, 48)
ROW_TILES = (2, 4, 8)
SPLITS_ROW_TILES = (*((splits, 1) for splits in SPLITS), *((1, tiles) for tiles in ROW_TILES))
LEAST_SHARE = 64  # least length of a split-k slice
BLOCKS_PER_SM = 2  # a grid should have this many blocks per multiprocessor
NEARLY_ALL = 0.9  # a grid with this fraction of the desired blocks is large enough

# Values of `splits` for a C of few tiles: only split-k fills the device. Most are multiples of a number of
# multiprocessors.
MULTIPROCESSORS = (80, 108, 132, 148)  # multiprocessors of V100, A100, H100 and H200, B200
WIDE_SPLITS = (16, 20, 40, 64, *sorted(sms * blocks for sms in MULTIPROCESSORS for blocks in (1, 2, 3, 4)))

# Products of a batch fill the device together, so few splits are enough.
FEW_SPLITS_OF_BATCHES = (1, 2, 4, 8)
SPLITS_OF_GRIDS = (*FEW_SPLITS_OF_BATCHES, *WIDE_SPLITS)


def wide_splits(limits: DeviceLimits, blocks: int) -> int:
    """Return the largest option in WIDE_SPLITS that gives each multiprocessor at most this many blocks.

    Return the smallest option if every option gives more blocks.
    """
    return max((splits for splits in WIDE_SPLITS if splits <= limits.sms * blocks), default=WIDE_SPLITS[0])


FIRST_SPLITS = 3  # how many values of `splits` a search tries first
IDLE_BLOCKS = 0.3  # largest fraction of split-k slices that may contain no k tile

MOST_ADDERS = 16  # most thread groups among which a block divides the addition of partial sums


def adders(*, threads: int, tile_bytes: int) -> int:
    """Return into how many groups a block's threads are divided to add up the split-k slices' partial sums of a tile.

    Each group adds up the partial sums of some slices. Each thread of a group adds up one 16-byte vector of the tile.
    """
    return max(min(MOST_ADDERS, threads // max(tile_bytes // 16, 1)), 1)


MOST_LOADS, FEW_LOADS = 16, 13  # loads of partial sums in flight per thread, with many and with few registers
REGISTERS_FOR_MOST = 80  # registers per thread that suffice for MOST_LOADS partial sums and their addresses


def most_loads(registers: int) -> int:
    """Return how many loads of partial sums a thread with this many registers keeps in flight."""
    return MOST_LOADS if registers >= REGISTERS_FOR_MOST else FEW_LOADS


FLAT_ELEMENTS = 2**15  # one block adds up at most this many partial sums faster than several blocks in two steps


def flat_splits(tile_elements: int) -> int:
    """Return the largest number of split-k slices whose partial sums of a tile are added up by one block.

    The partial sums of more slices are added up in two steps: first in groups by several blocks, then the groups.
    """
    return max(FLAT_SPLITS, FLAT_ELEMENTS // tile_elements)


SMALL_K = 2**18  # for k up to this, the launch and the addition of partial sums take longer than reading A and B


def splits_of_few_k_tiles(k: int, *, block_k: int, stages: int, limits: DeviceLimits) -> list[int]:
    """Return the numbers of splits to try first for a small k, best first.

    A slice should have as few k tiles as possible, but enough to fill the pipeline's stages. If several numbers of
    splits are equally good by this measure, the smallest is best. Each multiprocessor gets at most one block, since
    adding up the sums of a second block costs more time than the block saves.
    """
    k_tiles = -(-k // block_k)
    options = [splits for splits in WIDE_SPLITS if splits <= limits.sms]
    worth = [splits for splits in options if mostly_busy(splits, k_tiles)] or [WIDE_SPLITS[0]]
    return sorted(worth, key=lambda splits: (max(-(-k_tiles // splits), stages), splits))[:FIRST_SPLITS]


def mostly_busy(splits: int, k_tiles: int) -> bool:
    """Return whether at most a fraction IDLE_BLOCKS of the splits has no work, if there are `k_tiles` k tiles."""
    return splits * (1 - IDLE_BLOCKS) <= k_tiles


C = TypeVar("C", bound=KernelConfig)


def in_turns(lists: Iterable[Iterable[C]]) -> tuple[C, ...]:
    """Return the first configuration of each list, then the second of each list, and so on."""
    return tuple(config for turn in zip_longest(*lists) for config in turn if config is not None)


PREFERRED_SPLITS = 3  # how many numbers `splits_to_prefer` returns at most
ENOUGH_BYTES = 40 * 2**10  # bytes in flight per multiprocessor that saturate the memory, by Little's law
REGISTERS_USED = 120  # assumed registers per thread with prefetched loads, if __launch_bounds__ does not limit them
LIGHT = 2  # a kernel is limited by memory alone if n is at most LIGHT * bytes per element
UNEVEN = 0.4  # fraction of multiprocessors' idle time that counts in such a kernel: busy ones get more bandwidth
FIRST_LOADS_US = 2.0  # microseconds until a block's first loads arrive


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
    """Return the numbers of splits with the least modelled time, best first.

    The modelled time is shorter if all multiprocessors have equally many blocks and enough bytes in flight. It is
    longer with more waves of blocks, and with more partial sums, which are written and read again. `tiles` is the
    number of tiles of C. A slice is a multiple of `prefetch` k elements.
    """
    occupied = occupancy(
        limits, threads=resources.threads, registers=resources.registers, smem_bytes=resources.smem_bytes
    ).blocks_per_sm
    usual = limits.registers_per_sm // (REGISTERS_USED * resources.threads)
    resident = min_blocks if min_blocks > 1 else max(min(occupied, usual), 1)
    most = max(problem.k // LEAST_SHARE, 1)
    uneven = UNEVEN if problem.n <= LIGHT * problem.dtype.element_bytes else 1.0
    least_us = problem.m * problem.k * problem.dtype.element_bytes / (limits.dram_gbytes_per_s * 1e3)

    def time(splits: int) -> float:  # divided by the time of reading A with all multiprocessors busy
        blocks = tiles * splits / limits.sms  # per multiprocessor
        waves = -(-blocks // resident)
        slots = -(-blocks // 1) if waves == 1 else waves * resident
        in_flight = min(blocks, resident) * resources.threads * resources.bytes_in_flight
        slice_length = -(-problem.k // (splits * prefetch)) * prefetch
        sums = 2 * splits * problem.n / problem.k if splits > 1 else 0
        busy = (1 + uneven * (slots / blocks - 1)) * slice_length * splits / problem.k
        return busy * max(ENOUGH_BYTES / in_flight, 1) * (1 + sums) + waves * FIRST_LOADS_US / least_us

    return sorted((splits for splits in options if splits <= most), key=time)[:PREFERRED_SPLITS]


def _share(candidate: Candidate) -> int:
    return candidate.problem.k // tunable(candidate, "splits")


def are_whole_waves(splits: int, limits: DeviceLimits) -> bool:
    """Return whether `splits` is a multiple of the number of multiprocessors, or less than it.

    Return True for any number if the device's number of multiprocessors is not in MULTIPROCESSORS.
    """
    return splits % limits.sms == 0 or splits < limits.sms or limits.sms not in MULTIPROCESSORS


def _tiles_of_splits(candidate: Candidate) -> int:
    """Return the number of tiles of C among which `splits` blocks are divided: one unless blocks are persistent."""
    problem, launch = candidate.problem, candidate.launch
    return launch.tiles(problem.m, problem.n) if launch.persistent else 1


def _one_wave(candidate: Candidate) -> bool:
    """Return whether all blocks of the grid are resident on the device at once.

    Return True also for a batch if each product has at least as many tiles of C as blocks, since then few tiles are
    split. `min_blocks`, the tunable for __launch_bounds__, is trusted even if the estimated registers allow fewer
    blocks per multiprocessor.
    """
    splits, batch = tunable(candidate, "splits"), candidate.problem.batch
    if batch > 1 and _tiles_of_splits(candidate) >= splits:
        return True
    blocks, resources = max(candidate.occupancy.blocks_per_sm, 1), candidate.resources
    min_blocks = int(getattr(candidate.config, "min_blocks", 1))
    if min_blocks > blocks:
        unbounded = occupancy(
            candidate.limits, threads=resources.threads, registers=0, smem_bytes=resources.smem_bytes
        )
        blocks = min(min_blocks, unbounded.blocks_per_sm)
    return splits * batch <= max(candidate.limits.sms * blocks, WIDE_SPLITS[0])


def _enough_splits(candidate: Candidate) -> bool:
    """Return whether there are many splits. A batch may have few, since its products fill the device together."""
    return candidate.problem.is_batched or tunable(candidate, "splits") not in FEW_SPLITS_OF_BATCHES


ONE_WAVE = Rule(
    "one-wave",
    "shape",
    "all blocks should be resident at once: more splits only lengthen the final sum",
    _one_wave,
    of=(RESOURCES, "min_blocks", "splits"),
)
WIDE_SPLIT_RULES = (
    Rule(
        "many-splits",
        "shape",
        "only a batch fills the device with few splits",
        _enough_splits,
        of=("splits",),
    ),
    Rule(
        "whole-waves",
        "shape",
        "every multiprocessor should have the same number of blocks",
        lambda c: are_whole_waves(tunable(c, "splits"), c.limits),
        of=("splits",),
    ),
    ONE_WAVE,
)


def _chunks_for_all(candidate: Candidate) -> bool:
    """Return whether most pipelines of the grid have a k tile. A block may have several pipelines."""
    problem, launch, splits = candidate.problem, candidate.launch, tunable(candidate, "splits")
    rings = launch.threads // int(getattr(candidate.config, "ring_threads", launch.threads))
    k_tiles = _tiles_of_splits(candidate) * -(-problem.k // candidate.block_plan.tile.k)
    return splits == WIDE_SPLITS[0] or mostly_busy(splits * rings, k_tiles)


CHUNKS_FOR_ALL = Rule(
    "chunks-for-all",
    "shape",
    "most blocks should have at least one k tile",
    _chunks_for_all,
    of=(RESOURCES, "splits"),
)


def share_worth_a_block(*of: str, least: Callable[[Candidate], int] = lambda candidate: LEAST_SHARE) -> Rule:
    """Return the rule that drops short slices of k.

    `least` returns the fewest columns of A that a slice should have. It reads the tunables in `of`.
    """
    return Rule(
        "share-worth-a-block",
        "shape",
        "a block with few columns of A spends most of its time on partial sums",
        lambda c: tunable(c, "splits") == 1 or _share(c) >= least(c),
        of=(*of, "splits"),
    )


def grid_fills_device(blocks_per_sm: int, least: Callable[[Candidate], int] = lambda candidate: LEAST_SHARE) -> Rule:
    """Return the rule that the grid nearly fills the device, unless no other division of the work would enlarge it.

    A multiprocessor should have `blocks_per_sm` blocks, or as many as fit. A slice of k has at least `least` columns.
    """

    def keeps(candidate: Candidate) -> bool:
        blocks = candidate.problem.batch * candidate.launch.blocks(candidate.problem.m, candidate.problem.n)
        enough = min(candidate.occupancy.blocks_per_sm or 1, blocks_per_sm) * NEARLY_ALL
        has_row_tiles = int(getattr(candidate.config, "row_tiles", 1)) > 1
        could_divide = has_row_tiles or _share(candidate) >= 2 * least(candidate)
        return blocks >= enough * candidate.limits.sms or not could_divide

    count = "a block" if blocks_per_sm == 1 else f"{blocks_per_sm} blocks, or as many as fit"
    because = f"every multiprocessor should have {count}: split k, or use fewer row tiles"
    return Rule("grid-fills-device", "shape", because, keeps, of=(RESOURCES, "splits", "row_tiles"))


SPLITTING_RULES = (
    share_worth_a_block(),
    grid_fills_device(BLOCKS_PER_SM),
    REGISTERS_REACHABLE,
)
