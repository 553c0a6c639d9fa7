"""TSMR: large A times skinny B at the memory's rate.

What the published kernels lack on today's GPUs, and this one has: A's columns are in registers `prefetch` ahead and
loaded anew as soon as they are used, so that loads are on their way all the time; loads are 16 bytes wide; and k is
split over blocks, since m rows alone do not fill a large GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule
from tsm2_tune.generator.split_k import SPLITS_ROW_TILES, most_loads, split_traffic
from tsm2_tune.generator.streaming import streaming_rules
from tsm2_tune.generator.tunables import EvictFirst, Tunable

VECTOR_BYTES = 16
THREADS = (64, 128)
VECTORS = (1, 2)
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16)
PREFETCH_STAGES = ((4, 2), (8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 8), (32, 8))
MIN_BLOCKS = (1, 2, 4, 6)
TILE_DEPTH = 64  # rows of B staged at a time; twice as many stay where that is all


@dataclass(frozen=True, slots=True, order=True)
class TsmrConfig(KernelConfig):
    """Every choice that the TSMR template needs."""

    family: ClassVar[str] = "tsmr"

    threads: Annotated[int, Tunable("threads of a block", symbol="t1", letter="t")]
    vectors: Annotated[int, Tunable("16-byte pieces of a column of A that one thread loads", usual=1, letter="v")]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2", letter="c")]
    prefetch: Annotated[
        int,
        Tunable("columns of A that one thread has in registers, on their way or arrived", symbol="t3", letter="p"),
    ]
    stages: Annotated[int, Tunable("groups in which these are used and loaded anew", letter="s")]
    splits: Annotated[int, Tunable("parts of k, each a block of its own", usual=1, is_launch=True, letter="k")]
    row_tiles: Annotated[
        int, Tunable("tiles of rows for each block of the grid", symbol="tcf", usual=1, is_launch=True, letter="r")
    ]
    min_blocks: Annotated[
        int, Tunable("blocks that a multiprocessor must hold, which bounds the registers", usual=1, letter="b")
    ]
    evict_first: EvictFirst = 1


def rows_per_thread(config: TsmrConfig, problem: Problem) -> int:
    """Rows of A that one thread computes."""
    return config.vectors * VECTOR_BYTES // problem.dtype.element_bytes


def _block_rows(config: TsmrConfig, problem: Problem) -> int:
    return config.threads * rows_per_thread(config, problem)


def _pitch(config: TsmrConfig, problem: Problem) -> int:
    """Elements from one staged row of B to the next: rows of whole lines of banks are padded by a vector."""
    padded = config.columns % 8 == 0 and problem.contiguous[1] == "k"
    return config.columns + (VECTOR_BYTES // problem.dtype.element_bytes if padded else 0)


def _rows_within_m(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, TsmrConfig)
    smallest = (config.threads, config.vectors) == (THREADS[0], VECTORS[0])
    return smallest or _block_rows(config, candidate.problem) <= candidate.problem.m


class Tsmr(Family[TsmrConfig]):
    name = "tsmr"
    summary = "large A times skinny B: A streams through registers, k is split over blocks"
    template = "tsmr.cu.jinja"
    vectors_of_c = True
    rules: ClassVar[tuple[Rule, ...]] = streaming_rules(
        COLUMNS,
        PREFETCH_STAGES,
        Rule("rows-within-m", "shape", "a block of more rows than m leaves threads idle", _rows_within_m),
    )
    config_type = TsmrConfig

    def configurations(self) -> Iterator[TsmrConfig]:
        for threads, vectors, columns, ahead, division, min_blocks in product(
            THREADS, VECTORS, COLUMNS, PREFETCH_STAGES, SPLITS_ROW_TILES, MIN_BLOCKS
        ):
            yield TsmrConfig(threads, vectors, columns, *ahead, *division, min_blocks)

    def resources(self, config: TsmrConfig, problem: Problem) -> Resources:
        rows, dtype = rows_per_thread(config, problem), problem.dtype
        elements = rows * (config.columns + config.prefetch) + config.columns
        return Resources(
            threads=config.threads,
            registers=elements * dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=2 * TILE_DEPTH * _pitch(config, problem) * dtype.element_bytes,
            bytes_in_flight=(config.prefetch - config.prefetch // config.stages // 2) * rows * dtype.element_bytes,
            reuse=config.columns,
        )

    def launch(self, config: TsmrConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=_block_rows(config, problem) * config.row_tiles,
            smem_bytes=self.resources(config, problem).smem_bytes,
            columns_per_block=config.columns,
            splits=config.splits,
        )

    def periods(self, config: TsmrConfig, problem: Problem) -> Periods:
        return Periods(_block_rows(config, problem), config.columns, TILE_DEPTH)

    def share_step(self, config: TsmrConfig, problem: Problem) -> int:
        return config.prefetch

    def traffic(self, config: TsmrConfig, problem: Problem) -> Traffic:
        return split_traffic(problem, columns=config.columns, splits=config.splits)

    def supports(self, problem: Problem) -> bool:
        return problem.contiguous[0] == "m" and problem.dtype_name in self.dtypes

    def probe_shapes(self, config: TsmrConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """What has branches of its own, whole and in part: blocks of rows, groups of columns, shares of k.

        In the first three B stays in shared memory, and shares are empty; in the last two a share takes three
        tiles of B. Row tiles are loaded element by element, as vectors that end within a prefetch, as whole ones, and
        so before a part-filled one. A's address is now and then aligned where its columns are not.
        """
        rows, prefetch = _block_rows(config, problem), config.prefetch
        width = VECTOR_BYTES // problem.dtype.element_bytes
        deep = (2 * TILE_DEPTH + prefetch) * config.splits
        return (
            (rows + 1, 1, prefetch - 1),
            (2 * rows * config.row_tiles, 1, prefetch + 1),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (config.threads + 34, config.columns + 1, deep - 1),
            ((2 * config.row_tiles - 1) * rows + width, 2, deep),  # the last tile of rows is part-filled, yet aligned
        )

    def context(self, config: TsmrConfig, problem: Problem) -> dict[str, Any]:
        return {
            "about": "A streams through registers, B through shared memory",
            "kernel": self.name,
            "vector_bits": "float4",
            "one_tile": config.has_splits,  # of rows, of a block
            "most_loads": most_loads(self.resources(config, problem).registers),
            "storage": problem.storage,
            "a_along_k": False,
            "b_along_n": problem.contiguous[1] == "n",
            "c_along_n": problem.row_major_c,
            "tile_depth": TILE_DEPTH,
            "pitch": _pitch(config, problem),
        }


FAMILIES = (Tsmr(),)
