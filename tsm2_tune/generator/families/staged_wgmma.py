"""Products of 16-bit floats by Hopper's wgmma instructions, which read both operands from shared memory.

The kernel is for a C of many rows and more than a few columns. Its threads do little but copy. So one block per
multiprocessor can compute a tile of hundreds of rows, and reads of B cause little of the traffic from the L2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import KernelConfig, Periods, Resources
from tsm2_tune.generator.device.architecture import HOST
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import WITH_WARPGROUP_PRODUCTS
from tsm2_tune.generator.families.family import STAGED_WITHOUT_VECTORS, Family
from tsm2_tune.generator.families.stream_a import FEW_COLUMNS, MANY_COLUMNS
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.rules import Rule, covering_rule
from tsm2_tune.generator.space.tunables import BlockM, BlockN, Threads, Tunable
from tsm2_tune.generator.split_k import CHUNKS_FOR_ALL, SPLITS_OF_GRIDS, WIDE_SPLIT_RULES, wide_splits
from tsm2_tune.generator.tiles import LARGEST_THIN, covering
from tsm2_tune.generator.tiling import BlockPlan

COLUMNS = (32, 64)  # options of block_n
# Options of (threads, block_m). With block_m = 320, m = 20480 has 64 tiles: with two blocks per tile, 128 of 132
# multiprocessors have work.
TILES = ((128, 64), (128, 128), (256, 128), (256, 256), (384, 384), (512, 512), (640, 320))
CHUNKS = (32, 64, 128)  # options of block_k
STRIP_ROWS = 64  # rows of a wgmma instruction
PERIOD_BYTES = 1024  # bytes of shared memory after which the swizzle repeats
FRAGMENT_REGISTERS = 40  # for addresses and descriptors
# Fastest on an H200: (threads, block_m, stages, blocks per multiprocessor). LARGE is for a large A, LARGE_ROW_MAJOR
# for a row-major one, whose rows are then copied 256 bytes at a time. SHORT is for a k of one k tile, by whether A is
# row-major.
LARGE = ((640, 320, 4, 1), (512, 512, 3, 1), (256, 256, 4, 1), (256, 128, 4, 2))
LONG_CHUNK, LARGE_ROW_MAJOR = 128, (640, 320, 2, 1)
SHORT: dict[bool, tuple[tuple[int, int, int, int], ...]] = {
    True: ((128, 64, 3, 4), (128, 64, 4, 3)),
    False: ((256, 128, 4, 2), (256, 128, 3, 2)),
}
LEAST_BUSY = 0.7  # the least share of the blocks' time with work, for a configuration to be proposed
LARGE_CHUNK, LEAST_DEPTH = 64, 33  # block_k of LARGE and SHORT; the least k, below which other kernels are as fast


@dataclass(frozen=True, slots=True)
class StagedWgmmaConfig(KernelConfig):
    family: ClassVar[str] = "staged_wgmma"

    threads: Threads
    block_m: BlockM
    block_n: BlockN
    block_k: Annotated[int, Tunable("k extent of one pipeline stage", word="block")]
    stages: Annotated[int, Tunable("pipeline stages in shared memory")]
    splits: Annotated[
        int,
        Tunable(
            "blocks of the grid; each computes tiles of C, or k slices of them, in turn", default=1, is_launch=True
        ),
    ]


def place_bytes(config: StagedWgmmaConfig, problem: Problem) -> int:
    """Return the bytes of one pipeline stage: the k tiles of A and B, rounded up to whole periods of the swizzle."""
    chunk_bytes = (config.block_m + config.block_n) * config.block_k * problem.dtype.element_bytes
    return -(-chunk_bytes // PERIOD_BYTES) * PERIOD_BYTES


class StagedWgmma(Family[StagedWgmmaConfig]):
    on_tensor_cores = True
    summary = (
        "C of many rows in 16 bits: wgmma of Hopper's tensor cores, which reads both operands from shared memory"
    )
    about = "both operands in shared memory, multiplied there by warpgroups"
    template = "staged_wgmma.cu.jinja"
    has_batches = True
    without_vectors = STAGED_WITHOUT_VECTORS
    dtypes = ("bf16", "f16")
    rules = (
        Rule(
            "has-warpgroup-products",
            "limit",
            "the wgmma instruction exists only in compute capability 9.0",
            lambda c: c.limits.compute_capability in (HOST, WITH_WARPGROUP_PRODUCTS),
            of=(),
        ),
        MANY_COLUMNS,
        covering_rule("block_m", "m", sorted({rows for _, rows in TILES})),
        covering_rule("block_n", "n", COLUMNS),  # and no rule that drops a C of many tiles
        covering_rule("block_k", "k", CHUNKS),
        CHUNKS_FOR_ALL,
        *WIDE_SPLIT_RULES,
    )
    beside_resources = ("splits",)
    config_type = StagedWgmmaConfig
    axes: ClassVar = {
        "threads block_m": TILES,
        "block_n": COLUMNS,
        "block_k": CHUNKS,
        "stages": (2, 3, 4, 6),
        "splits": SPLITS_OF_GRIDS,
    }

    def block_plan(self, config: StagedWgmmaConfig, problem: Problem) -> BlockPlan:
        place = place_bytes(config, problem)
        sums = config.block_m * config.block_n // config.threads
        resources = Resources(
            threads=config.threads,
            registers=sums + FRAGMENT_REGISTERS + OVERHEAD_REGISTERS,
            smem_bytes=place * config.stages,
            bytes_in_flight=place * (config.stages - 1) // config.threads,
            reuse=config.block_n,
        )
        tile = Periods(config.block_m, config.block_n, config.block_k)
        return BlockPlan(resources, tile, launch_fields={"persistent": True})

    def probe_shapes(self, config: StagedWgmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows, columns, block_k = config.block_m, config.block_n, config.block_k
        turns = (config.stages + 1) * min(config.splits, 2)  # tiles of C: more per block than pipeline stages
        return (
            (rows, columns, block_k * (2 * config.splits - 1) + 8),  # whole vectors; many blocks share a tile
            (2 * rows + 8, columns + 8, 3 * block_k),  # whole vectors
            (rows + 1, max(columns - 1, 1), 2 * block_k + 3),
            (rows - 8, columns - 8, 2 * block_k + 1),  # only one operand is copied in vectors
            (STRIP_ROWS, columns * turns, block_k - 8),  # less than a k tile
            (rows * turns + 8, columns, block_k),  # a block keeps B in shared memory for several tiles
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[StagedWgmmaConfig, ...]:
        """Return the configurations that were fastest on an H200, best first.

        If k exceeds a k tile, the tiles of these configurations have as many rows as shared memory allows. If it does
        not, several blocks fit on a multiprocessor. Return none for small m, n or k: other families are faster.
        """
        if problem.n <= FEW_COLUMNS or problem.k < LEAST_DEPTH or problem.m <= LARGEST_THIN:  # inner products
            return ()
        columns = covering(COLUMNS, problem.n)
        short, row_major = problem.k <= LARGE_CHUNK, problem.contiguous[0] == "k"
        shapes = [(LARGE_CHUNK, *shape) for shape in (SHORT[row_major] if short else LARGE)]
        if row_major and not short:
            shapes.insert(0, (LONG_CHUNK, *LARGE_ROW_MAJOR))
        configs = [
            StagedWgmmaConfig(threads, rows, columns, block_k, stages, wide_splits(limits, blocks))
            for block_k, threads, rows, stages, blocks in shapes
        ]
        busy = {config: self._busy(config, problem) for config in configs}
        chosen = [config for config in configs if busy[config] >= LEAST_BUSY] or configs[-1:]
        return tuple(chosen if short else sorted(chosen, key=lambda config: -busy[config]))

    def _busy(self, config: StagedWgmmaConfig, problem: Problem) -> float:
        """Return the share of the kernel's time in which an average block has work, from 0 to 1."""
        tiles = self.launch(config, problem).tiles(problem.m, problem.n)
        items = tiles * max(config.splits // tiles, 1)
        return items / (-(-items // config.splits) * config.splits)

    def context(self, config: StagedWgmmaConfig, problem: Problem) -> dict[str, Any]:
        elements = place_bytes(config, problem) // problem.dtype.element_bytes
        return super().context(config, problem) | {"place_elements": elements}


FAMILIES = (StagedWgmma(),)
