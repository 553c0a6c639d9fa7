"""TSMT on the tensor cores, for bf16 and f16: the transpose of a tall and skinny matrix times another.

Fragments loaded straight from memory would be few bytes of each of many lines, and of few lines most of them padding.
So both operands go through shared memory as they lie: 128 bytes of a line and more are read at a time, and none of
lines that C does not have. The fragments come from there, four parts of one by one instruction. Sums are in f32 up to
the last; C is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.candidate import tunable
from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule
from tsm2_tune.generator.split_k import (
    SMALL_K,
    WIDE_SPLIT_RULES,
    WIDE_SPLITS,
    adders,
    mostly_busy,
    splits_of_few_chunks,
    wide_splits,
)
from tsm2_tune.generator.tensor_cores import HAS_HALF_TENSOR_CORES
from tsm2_tune.generator.tiles import LARGEST_THIN, covering, tile_rules, tile_traffic
from tsm2_tune.generator.tunables import EvictFirst, Tunable

TILE = (16, 32, 64)  # rows and columns of C, of a block
WARP_TILES = ((1, 2), (2, 2), (2, 4), (4, 4), (4, 8))  # strips of 16 rows, octets of columns
# Threads of a block, bytes along k of a line in one place of the ring, and places.
RINGS = (
    (128, 128, 2), (128, 256, 2), (128, 512, 2), (128, 1024, 2), (256, 128, 2), (256, 256, 2), (256, 512, 2),
    (256, 1024, 2), (512, 512, 2), (128, 256, 4), (128, 512, 4), (256, 1024, 4),
)  # fmt: skip
TILE_ELEMENTS = (16 * 16, 32 * 32, 64 * 64)
# What won on an H200, and its neighbours, for tiles of at most as many elements, where an operand lies along k and
# where none does: the ring, blocks on a multiprocessor, strips and octets as far as the tile has them.
WINNERS: dict[tuple[int, bool], tuple[tuple[int, int, int, int, int, int], ...]] = {
    (16 * 16, True): (
        (256, 512, 2, 3, 1, 2), (512, 512, 2, 2, 1, 2), (256, 256, 2, 4, 1, 2), (256, 512, 2, 4, 1, 2),
        (128, 256, 2, 4, 1, 2), (256, 512, 2, 2, 1, 2),
    ),
    (16 * 16, False): (
        (128, 512, 4, 2, 1, 2), (256, 1024, 4, 1, 1, 2), (128, 1024, 2, 2, 1, 2), (128, 256, 2, 4, 1, 2),
        (256, 1024, 2, 2, 1, 2), (256, 512, 2, 2, 1, 2),
    ),
    (32 * 32, True): (
        (256, 512, 2, 2, 2, 4), (256, 256, 2, 3, 2, 4), (128, 256, 2, 3, 2, 4),
    ),
    (32 * 32, False): (
        (128, 256, 4, 2, 2, 4), (256, 512, 2, 2, 2, 4), (128, 512, 2, 2, 2, 4), (128, 256, 2, 3, 2, 4),
    ),
    (64 * 64, True): (
        (256, 256, 2, 2, 2, 4), (128, 128, 2, 2, 4, 8), (256, 128, 2, 3, 2, 4), (128, 128, 2, 3, 4, 4),
        (256, 256, 2, 1, 4, 8),
    ),
    (64 * 64, False): (
        (256, 256, 2, 2, 2, 4), (128, 128, 2, 2, 4, 8), (128, 128, 2, 3, 4, 4), (128, 128, 2, 3, 2, 4),
    ),
}  # fmt: skip
LEAST_COLUMNS = 5  # for fewer those families are better that hold all of C in every thread
STRIP_ROWS, OCTET_COLUMNS, WARP_THREADS, VECTOR_BYTES = 16, 8, 32, 16


@dataclass(frozen=True, slots=True, order=True)
class TsmtHalfConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_half"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    tile_rows: Annotated[int, Tunable("rows of C that one block computes", word="block", letter="m")]
    tile_columns: Annotated[int, Tunable("columns of C that one block computes", word="block", letter="n")]
    strips: Annotated[
        int,
        Tunable("strips of 16 rows of C that one warp accumulates in registers", word="warp", unit=16, letter="r"),
    ]
    octets: Annotated[
        int, Tunable("octets of columns of C that one warp accumulates in registers", word="warp", unit=8, letter="c")
    ]
    chunk: Annotated[int, Tunable("products along k in one place of the ring", word="block_k", letter="d")]
    stages: Annotated[
        int, Tunable("places of the ring: 2 fed from registers, or more fed by asynchronous copies", letter="s")
    ]
    splits: Annotated[int, Tunable("blocks among which k is divided", usual=1, is_launch=True, letter="k")]
    evict_first: EvictFirst = 1


def team(config: TsmtHalfConfig) -> int:
    """Threads that share a tile of C."""
    rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
    return WARP_THREADS * (config.tile_rows // rows) * (config.tile_columns // columns)


def warp_tile(strips: int, octets: int) -> tuple[int, int]:
    """The largest option of at most so many strips and octets."""
    return max(option for option in WARP_TILES if option[0] <= strips and option[1] <= octets)


class TsmtHalf(Family[TsmtHalfConfig]):
    name = "tsmt_half"
    on_tensor_cores = True
    summary = "transposed tall and skinny times tall and skinny in 16 bits on the tensor cores, both staged"
    template = "tsmt_half.cu.jinja"
    dtypes = ("bf16", "f16")
    element_bytes = 2
    rules = (
        HAS_HALF_TENSOR_CORES,
        *tile_rules(TILE),
        Rule(
            "chunks-for-all",
            "shape",
            "most blocks should have a chunk of k",
            lambda c: (
                tunable(c, "splits") == WIDE_SPLITS[0]
                or mostly_busy(tunable(c, "splits"), -(-c.problem.k // tunable(c, "chunk")))
            ),
        ),
        *WIDE_SPLIT_RULES,
    )
    config_type = TsmtHalfConfig

    def later(self, config: TsmtHalfConfig) -> tuple[TsmtHalfConfig, ...]:
        """Only of a ring of two places pieces pass registers, by loads that have a policy."""
        return super().later(config) if config.stages == 2 else ()

    def configurations(self) -> Iterator[TsmtHalfConfig]:
        tiles = [
            (tile_rows, tile_columns, strips, octets)
            for tile_rows, tile_columns, (strips, octets) in product(TILE, TILE, WARP_TILES)
            if tile_rows % (STRIP_ROWS * strips) == 0 and tile_columns % (OCTET_COLUMNS * octets) == 0
        ]
        for tile, (threads, line_bytes, stages), splits in product(tiles, RINGS, WIDE_SPLITS):
            config = self.config_type(threads, *tile, line_bytes // self.element_bytes, stages, splits)
            if team(config) <= threads and line_bytes * team(config) >= 2 * VECTOR_BYTES * threads:
                yield config

    def pitches(self, config: TsmtHalfConfig, problem: Problem) -> tuple[int, int]:
        """Elements from one run of neighbours of A, and of B, to the next in shared memory.

        8 lanes read 16 bytes each, of a line along k or of products across it: an odd number of vectors apart. Of f32
        across k each lane reads an element, of 4 products 8 neighbours each.
        """
        along_k, across = config.chunk + VECTOR_BYTES // self.element_bytes, 8
        along_a, along_b, _ = problem.contiguous
        return (
            along_k if along_a == "k" else config.tile_rows + across,
            along_k if along_b == "k" else config.tile_columns + across,
        )

    def resources(self, config: TsmtHalfConfig, problem: Problem) -> Resources:
        rows, columns = STRIP_ROWS * config.strips, OCTET_COLUMNS * config.octets
        staged_bytes = (config.tile_rows + config.tile_columns) * config.chunk * self.element_bytes
        held = staged_bytes // config.threads // 4 if config.stages == 2 else 0
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        a = a_pitch * (config.tile_rows if along_a == "k" else config.chunk)
        b = b_pitch * (config.tile_columns if along_b == "k" else config.chunk)
        ring = config.stages * (a + b) * self.element_bytes
        tile_bytes = config.tile_rows * config.tile_columns * problem.dtype.sum.element_bytes
        sums = max(config.threads // team(config), adders(threads=config.threads, tile_bytes=tile_bytes))
        return Resources(
            threads=config.threads,
            registers=(rows * columns + (rows + columns) * 4) // WARP_THREADS + held + OVERHEAD_REGISTERS,
            smem_bytes=max(ring, sums * tile_bytes),
            bytes_in_flight=staged_bytes * (config.stages - 1) // config.threads // 2,
            reuse=config.tile_columns,
        )

    def launch(self, config: TsmtHalfConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
        )

    def periods(self, config: TsmtHalfConfig, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, config.chunk)

    def traffic(self, config: TsmtHalfConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes and max(problem.m, problem.n) <= LARGEST_THIN

    def probe_shapes(self, config: TsmtHalfConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each block.

        Extents that are multiples of 8 keep vectors whole where tiles and chunks are not. The fifth and the sixth
        have aligned addresses where the leading dimensions of the general call are not, across k and along k.
        """
        rows, columns, chunk = config.tile_rows, config.tile_columns, config.chunk
        return (
            (rows, columns, chunk * (config.splits * config.stages + 3) + 8),
            (rows + 1, columns - 1, 2 * chunk + 3),
            (rows - 8, columns + 8, chunk * 3 + 8),
            (rows - 1, columns + 1, chunk // 4 - 1),
            (rows + 8, columns + 8, 2 * chunk + 1),
            (rows + 1, columns + 1, 2 * chunk),
            (rows - 2, columns - 2, chunk),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmtHalfConfig, ...]:
        """Every product of C in one tile; what won on an H200 for a C as large, and operands lying so, first."""
        if max(problem.m, problem.n) < LEAST_COLUMNS:
            return ()
        tile_rows = covering(TILE, problem.m)
        tile_columns = covering(TILE, problem.n)
        winners = WINNERS[
            next(elements for elements in TILE_ELEMENTS if elements >= tile_rows * tile_columns),
            "k" in problem.contiguous[:2],
        ]
        return tuple(
            dict.fromkeys(
                self.config_type(
                    threads,
                    tile_rows,
                    tile_columns,
                    *warp_tile(min(strips, tile_rows // STRIP_ROWS), min(octets, tile_columns // OCTET_COLUMNS)),
                    line_bytes // self.element_bytes,
                    stages,
                    splits,
                )
                for threads, line_bytes, stages, blocks, strips, octets in winners
                for splits in self._splits(problem, limits, chunk=line_bytes // self.element_bytes, blocks=blocks)
            )
        )

    @staticmethod
    def _splits(problem: Problem, limits: DeviceLimits, *, chunk: int, blocks: int) -> list[int]:
        if problem.k > SMALL_K:
            return [wide_splits(limits, blocks)]
        return splits_of_few_chunks(problem.k, chunk=chunk, stages=1, limits=limits)[:2]

    def context(self, config: TsmtHalfConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        a_pitch, b_pitch = self.pitches(config, problem)
        tile_bytes = config.tile_rows * config.tile_columns * problem.dtype.sum.element_bytes
        return {
            "about": "both operands staged for the tensor cores, k over every warp",
            "kernel": self.name,
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "a_pitch": a_pitch,
            "b_pitch": b_pitch,
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
            "adders": adders(threads=config.threads, tile_bytes=tile_bytes),
        }


FAMILIES = (TsmtHalf(),)
