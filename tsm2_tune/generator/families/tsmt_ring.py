"""TSMT with both operands through a ring in shared memory, as they lie: any number of lines at the same speed.

Where an operand's lines lie side by side and it has no others, a part of k is one run of bytes, which begins at
a whole vector however many lines there are. It is copied in vectors, every element once, and no thread loads a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, lcm
from typing import Any, ClassVar

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family, Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import FMA_DTYPES, TF32_DTYPES, Problem
from tsm2_tune.generator.rules import Candidate, Rule
from tsm2_tune.generator.splitting import (
    MULTIPROCESSORS,
    WIDE_SPLIT_RULES,
    adders,
    flat_splits,
    in_turns,
    mostly_busy,
    tunable,
    wide_splits,
)
from tsm2_tune.generator.tiles import LARGEST_THIN, covering, tile_rules, tile_traffic

THREADS = (128, 256)
# Rows or columns of C: of a block, and of a thread, those first that are to be tried first.
LINES = {
    1: (1,),
    2: (2,),
    3: (3,),
    4: (4, 2),
    6: (6, 3),
    8: (4, 8),
    12: (6, 4),
    16: (4, 8),
    24: (8, 4),
    32: (8, 4),
    48: (8, 4),
    64: (8, 4),
}
TILE = tuple(LINES)
MOST_SUMS = 64  # of products, of a thread
RINGS = ((16, 3), (8, 4), (8, 3), (16, 4), (32, 2))  # KiB of a place, about, and places
SPLITS = (16, 20, 40, 64, *sorted({sms * blocks for sms in MULTIPROCESSORS for blocks in (1, 2, 3)}))
WHOLE_LANES = 4  # teams of a block, from twice as many on a multiple of it, so that their products are whole vectors
MOST_LEFT = 8  # teams whose sums a block adds up at last
LOADED = 32  # elements that a thread has in registers beside its sums
VECTOR_BYTES = 16
THREAD_BYTES = 128  # of sums, of a thread that has two blocks beside it
SUM_BITS = {4: "float", 8: "float2", 16: "float4"}  # CUDA's type of so many bytes


@dataclass(frozen=True, slots=True, order=True)
class TsmtRingConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmt_ring"
    letters: ClassVar[dict[str, str]] = {
        "threads": "t",
        "tile_rows": "m",
        "tile_columns": "n",
        "rows": "r",
        "columns": "c",
        "place_kib": "d",
        "stages": "s",
        "splits": "k",
    }
    launch_tunables: ClassVar[tuple[str, ...]] = ("splits",)

    threads: int  # per block
    tile_rows: int  # of C, of a block
    tile_columns: int  # of C, of a block
    rows: int  # of C that one thread accumulates in registers
    columns: int  # of C that one thread accumulates in registers
    place_kib: int  # of one place of the ring, about
    stages: int  # places of the ring
    splits: int  # of k


def team(config: TsmtRingConfig) -> int:
    """Threads that share a tile of C."""
    return (config.tile_rows // config.rows) * (config.tile_columns // config.columns)


def lanes_of_k(config: TsmtRingConfig) -> int:
    """Teams of a block, each of which has its own k."""
    teams = config.threads // team(config)
    return teams if teams < 2 * WHOLE_LANES else teams // WHOLE_LANES * WHOLE_LANES


def chunk(config: TsmtRingConfig, problem: Problem) -> int:
    """Products along k in one place of the ring: whole vectors, as many for every team, one for each at the least."""
    size = problem.dtype.element_bytes
    unit = lcm(lanes_of_k(config), VECTOR_BYTES // size)
    fitting = config.place_kib * 1024 // ((config.tile_rows + config.tile_columns) * size)
    return max((fitting + unit // 2) // unit, 1) * unit


def at_once(config: TsmtRingConfig, problem: Problem) -> int:
    """Products of which a thread has all elements in registers."""
    rounds = chunk(config, problem) // lanes_of_k(config)
    of_product = (config.rows + config.columns) * problem.dtype.registers
    return max(min(LOADED // of_product, rounds), 1)


def _config(candidate: Candidate) -> TsmtRingConfig:
    assert isinstance(candidate.config, TsmtRingConfig)
    return candidate.config


def _chunks_for_all(candidate: Candidate) -> bool:
    config, problem = _config(candidate), candidate.problem
    return config.splits == SPLITS[0] or mostly_busy(config.splits, -(-problem.k // chunk(config, problem)))


class TsmtRing(Family[TsmtRingConfig]):
    name = "tsmt_ring"
    summary = "transposed tall and skinny times tall and skinny: both through shared memory, of any number of lines"
    template = "tsmt_ring.cu.jinja"
    dtypes = (*FMA_DTYPES, *TF32_DTYPES)  # TF32 asks for no more than f32 gives
    tunables = (
        Tunable("threads", "", "threads of a block"),
        Tunable("tile_rows", "", "rows of C that one block computes"),
        Tunable("tile_columns", "", "columns of C that one block computes"),
        Tunable("rows", "", "rows of C that one thread accumulates in registers"),
        Tunable("columns", "", "columns of C that one thread accumulates in registers"),
        Tunable("place_kib", "", "KiB of one place of the ring, as nearly as its products can be shared"),
        Tunable("stages", "", "places of the ring, on their way or arrived"),
        Tunable("splits", "", "blocks among which k is divided"),
    )
    rules = (
        *tile_rules(TILE),
        Rule("chunks-for-all", "shape", "most blocks should have a chunk of k", _chunks_for_all),
        *WIDE_SPLIT_RULES,
    )
    odd_lines = 1.0  # of a Division
    config_type = TsmtRingConfig

    def configurations(self) -> Iterator[TsmtRingConfig]:
        for tile_rows, tile_columns in product(TILE, TILE):
            for rows, columns in product(LINES[tile_rows], LINES[tile_columns]):
                for threads, (place_kib, stages), splits in product(THREADS, RINGS, SPLITS):
                    config = TsmtRingConfig(
                        threads, tile_rows, tile_columns, rows, columns, place_kib, stages, splits
                    )
                    if rows * columns <= MOST_SUMS and team(config) <= threads:
                        yield config

    def smem_elements(self, config: TsmtRingConfig, problem: Problem) -> int:
        """Elements of the ring, or of the sums that take its place."""
        pad, products = VECTOR_BYTES // problem.dtype.element_bytes, chunk(config, problem)
        a, b = (
            lines * (products + (pad if along == "k" else 0))
            for lines, along in zip(
                (config.tile_rows, config.tile_columns), problem.contiguous[:2], strict=True
            )
        )
        copies = max(lanes_of_k(config) // 2, min(lanes_of_k(config), MOST_LEFT), self.adders(config, problem))
        return max(config.stages * (a + b), copies * config.tile_rows * config.tile_columns)

    def adders(self, config: TsmtRingConfig, problem: Problem) -> int:
        """Groups of a block's threads that add up the splits' sums, each thread a vector of them."""
        vectors = config.tile_rows * config.tile_columns // self.sum_width(config, problem)
        return adders(threads=config.threads, tile_bytes=vectors * VECTOR_BYTES)

    def sum_width(self, config: TsmtRingConfig, problem: Problem) -> int:
        """Sums in a vector, of which a tile has a whole number."""
        return gcd(config.tile_rows * config.tile_columns, VECTOR_BYTES // problem.dtype.element_bytes)

    def resources(self, config: TsmtRingConfig, problem: Problem) -> Resources:
        loaded = (config.rows + config.columns) * at_once(config, problem)
        lines, size = config.tile_rows + config.tile_columns, problem.dtype.element_bytes
        on_their_way = lines * chunk(config, problem) * (config.stages - 1) * size
        return Resources(
            threads=config.threads,
            registers=(config.rows * config.columns + loaded) * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=self.smem_elements(config, problem) * size,
            bytes_in_flight=on_their_way // config.threads,
            reuse=config.tile_columns,
        )

    def launch(self, config: TsmtRingConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.tile_rows,
            columns_per_block=config.tile_columns,
            smem_bytes=self.resources(config, problem).smem_bytes,
            splits=config.splits,
            flat_splits=flat_splits(config.tile_rows * config.tile_columns),
        )

    def periods(self, config: TsmtRingConfig, problem: Problem) -> Periods:
        return Periods(config.tile_rows, config.tile_columns, chunk(config, problem))

    def traffic(self, config: TsmtRingConfig, problem: Problem) -> Traffic:
        return tile_traffic(problem, tile_rows=config.tile_rows, tile_columns=config.tile_columns)

    def supports(self, problem: Problem) -> bool:
        return (
            max(problem.m, problem.n) <= LARGEST_THIN
            and problem.dtype_name in self.dtypes
            and not problem.is_gram  # half of whose products are enough
        )

    def probe_shapes(self, config: TsmtRingConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Part-filled and several tiles of C; k of no whole chunk, of a part of one, and several for each split."""
        rows, columns, products = config.tile_rows, config.tile_columns, chunk(config, problem)
        return (
            (rows, columns, products * (config.splits * (config.stages + 1) - 1) + 4),
            (max(rows - 1, 1), max(columns - 1, 1), products * (config.splits + 2) + 3),
            (rows + 1, max(columns - 1, 1), 2 * products + 1),
            (max(rows - 1, 1), columns + 1, max(products // 2 - 1, 1)),
            (rows, columns, products),
            (2 * rows, 2 * columns, products + 4),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmtRingConfig, ...]:
        """Every product of C in one tile, as large a part of it in each thread as leaves registers for others."""
        if max(problem.m, problem.n) > TILE[-1] or problem.dtype_name in TF32_DTYPES:
            return ()
        tile_rows, tile_columns = covering(TILE, problem.m), covering(TILE, problem.n)
        most = MOST_SUMS if problem.dtype.registers == 1 else THREAD_BYTES // problem.dtype.element_bytes * 2
        parts = [
            (rows, columns)
            for rows, columns in product(LINES[tile_rows], LINES[tile_columns])
            if rows * columns <= most
        ]
        return in_turns(
            self._filling(problem, limits, (tile_rows, tile_columns, *part), THREADS[1], ring)
            for part in parts[:2]
            for ring in RINGS[:3]
        )

    @staticmethod
    def _filling(
        problem: Problem, limits: DeviceLimits, tile: tuple[int, int, int, int], threads: int, ring: tuple[int, int]
    ) -> list[TsmtRingConfig]:
        """With two blocks on a multiprocessor, three, or as many blocks as a small k has work for."""
        every = [TsmtRingConfig(threads, *tile, *ring, wide_splits(limits, blocks)) for blocks in (2, 1)]
        chunks = -(-problem.k // chunk(every[0], problem))
        few = [splits for splits in SPLITS if splits <= min(limits.sms, max(chunks, SPLITS[0]))]
        enough = [config for config in every if config.splits in SPLITS and config.splits * ring[1] <= chunks]
        return enough[:1] or [TsmtRingConfig(threads, *tile, *ring, few[-1])]

    def context(self, config: TsmtRingConfig, problem: Problem) -> dict[str, Any]:
        along_a, along_b, _ = problem.contiguous
        width = self.sum_width(config, problem)
        return {
            "about": "both operands through a ring, of any number of lines",
            "storage": problem.storage,
            "a_along_k": along_a == "k",
            "b_along_k": along_b == "k",
            "c_along_n": problem.row_major_c,
            "chunk": chunk(config, problem),
            "lanes_of_k": lanes_of_k(config),
            "at_once": at_once(config, problem),
            "most_left": MOST_LEFT,
            "sum_width": width,
            "sum_bits": SUM_BITS[width * problem.dtype.sum.element_bytes],
            "flat_splits": self.launch(config, problem).flat_splits,
            "group_splits": GROUP_SPLITS,
            "adders": self.adders(config, problem),
        }


FAMILY = TsmtRing()
