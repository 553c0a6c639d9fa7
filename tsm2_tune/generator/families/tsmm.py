"""TSMM: a tall and skinny matrix times a small one, several rows a thread in wide loads.

What the published kernels lack on today's GPUs: an element of B read from shared memory feeds every row of the
thread, loads are 16 bytes wide, and a thread has `prefetch` columns of A on their way at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.rules import VECTOR_HOLDS_AN_ELEMENT, Rule, columns_within_n, prefetch_within_k
from tsm2_tune.generator.tunables import EvictFirst, Tunable
from tsm2_tune.runtime.expecting import Division

THREADS = (64, 128, 256)
VECTOR_BYTES = (4, 8, 16)
VECTORS = (1, 2)
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PREFETCH = (1, 2, 4, 8, 16, 32)
ROW_TILES = (1, 2, 4, 8, 16, 24, 32)
TILE_DEPTH = 64  # rows of B staged at a time: all of them where the product is small


@dataclass(frozen=True, slots=True, order=True)
class TsmmConfig(KernelConfig):
    """Every choice that the TSMM template needs."""

    family: ClassVar[str] = "tsmm"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    vector_bytes: Annotated[int, Tunable("bytes of one load", letter="b")]
    vectors: Annotated[int, Tunable("pieces of a column of A that one thread loads", usual=1, letter="v")]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2", letter="c")]
    prefetch: Annotated[
        int, Tunable("columns of A that one thread loads before it multiplies", symbol="t3", letter="p")
    ]
    row_tiles: Annotated[
        int, Tunable("tiles of rows for each block of the grid", symbol="tcf", usual=1, is_launch=True, letter="r")
    ]
    evict_first: EvictFirst = 1


def rows_per_thread(config: TsmmConfig, problem: Problem) -> int:
    """Rows of A that one thread computes at a time."""
    return config.vectors * config.vector_bytes // problem.dtype.element_bytes


def tile_depth(config: TsmmConfig) -> int:
    """Rows of B staged at a time, in whole steps."""
    return max(TILE_DEPTH // config.prefetch, 1) * config.prefetch


def _block_rows(config: TsmmConfig, problem: Problem) -> int:
    return config.threads * rows_per_thread(config, problem)


def _grid_fills_device(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, TsmmConfig)
    rows = _block_rows(config, candidate.problem) * config.row_tiles
    return config.row_tiles == 1 or candidate.problem.m >= rows * candidate.limits.sms


def _rows_within_m(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, TsmmConfig)
    least_bytes = max(VECTOR_BYTES[0], candidate.problem.dtype.element_bytes)
    smallest = (config.threads, config.vector_bytes, config.vectors) == (THREADS[0], least_bytes, VECTORS[0])
    return smallest or _block_rows(config, candidate.problem) <= candidate.problem.m


class Tsmm(Family[TsmmConfig]):
    name = "tsmm"
    summary = "tall and skinny A times small B, several rows a thread in wide loads"
    template = "tsmm.cu.jinja"
    vectors_of_c = True
    dtypes = (*FMA_DTYPES, "bf16", "f16")  # of the last two products are added up in f32
    rules = (
        VECTOR_HOLDS_AN_ELEMENT,
        columns_within_n(COLUMNS),
        prefetch_within_k(PREFETCH),
        Rule("rows-within-m", "shape", "a block of more rows than m loads element by element", _rows_within_m),
        Rule(
            "grid-fills-device",
            "shape",
            "striding over rows pays only where the grid still gives every multiprocessor a block",
            _grid_fills_device,
        ),
    )
    config_type = TsmmConfig

    def configurations(self) -> Iterator[TsmmConfig]:
        for choice in product(THREADS, VECTOR_BYTES, VECTORS, COLUMNS, PREFETCH, ROW_TILES):
            yield TsmmConfig(*choice)

    def resources(self, config: TsmmConfig, problem: Problem) -> Resources:
        rows, dtype = rows_per_thread(config, problem), problem.dtype
        loaded_bytes = rows * config.prefetch * dtype.element_bytes
        sums = (rows + 1) * config.columns * dtype.sum.registers
        return Resources(
            threads=config.threads,
            registers=sums + loaded_bytes // 4 + OVERHEAD_REGISTERS,
            smem_bytes=tile_depth(config) * config.columns * dtype.sum.element_bytes,
            bytes_in_flight=config.prefetch * rows * dtype.element_bytes,
            reuse=config.columns,
        )

    def launch(self, config: TsmmConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=_block_rows(config, problem) * config.row_tiles,
            smem_bytes=self.resources(config, problem).smem_bytes,
        )

    def periods(self, config: TsmmConfig, problem: Problem) -> Periods:
        return Periods(_block_rows(config, problem), config.columns, tile_depth(config))

    def division(self, config: TsmmConfig, problem: Problem, resident: int) -> Division:
        """A block goes over its rows of A once for each group of columns."""
        found = super().division(config, problem, resident)
        columns, depth = config.columns, config.prefetch
        return replace(found, tile_columns=columns, depth=depth, vector_bytes=config.vector_bytes)

    def traffic(self, config: TsmmConfig, problem: Problem) -> Traffic:
        passes = -(-problem.n // config.columns)  # over A: one for each group of columns
        elements = problem.m * problem.k * passes + problem.k * problem.n
        return Traffic(elements * problem.dtype.element_bytes, problem.written_bytes)

    def context(self, config: TsmmConfig, problem: Problem) -> dict[str, Any]:
        return {
            "about": "several rows a thread in wide loads, B in shared memory",
            "tile_depth": tile_depth(config),
        }


FAMILIES = (Tsmm(),)
