"""A tall A times a small B with fused multiply-adds: a thread loads vectors of A's columns into registers.

A thread has several rows of A, and multiplies all of them by each element of B that it reads from shared memory.

In `resident_b_fma` a thread accumulates a group of columns of C, and loads `prefetch` columns of A at a time.

`resident_b_fma_held` is for an A of few columns: a thread keeps its rows of A in registers and computes one group of
columns of C after another. If C is wide, A is still read once. A thread has the sums of only one group at a time, so
it needs few registers. Thus many warps are resident, and store at the same time. If C is small, several blocks divide
its columns, so that more warps run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families.family import Family, rule_of
from tsm2_tune.generator.families.resident_b.kernel import ResidentBConfig
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.rules import (
    VECTOR_HOLDS_AN_ELEMENT,
    Rule,
    covering_rule,
    strides_fill_device,
)
from tsm2_tune.generator.space.tunables import EvictFirst, RowTiles, Tunable
from tsm2_tune.generator.tiling import BlockPlan

THREADS = (64, 128, 256)
VECTOR_BYTES = (4, 8, 16)
# Options of resident_b_fma.
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PREFETCH = (1, 2, 4, 8, 16, 32)
TILE_DEPTH = 64  # rows of B in shared memory at a time: all of B if k is small
# Options of resident_b_fma_held.
DEPTH = (2, 4, 8, 16)
COLUMNS_AT_A_TIME = (2, 4, 8, 16)
HELD_WITHOUT_VECTORS = 1.6  # of resident_b_fma_held: fits of 5 kernels on an H100 are 1.15 to 1.8
ACROSS = (2, 4, 8, 16, 32, 64)
PACK = 16  # rows; a multiple of every type's vector


@dataclass(frozen=True, slots=True)
class FmaConfig(ResidentBConfig):
    vector_bytes: Annotated[int, Tunable("bytes of one load of A and of one store of C")]


F = TypeVar("F", bound=FmaConfig)


def _rows_within_m(candidate: Candidate) -> bool:
    problem = candidate.problem
    fewest = THREADS[0] * max(VECTOR_BYTES[0] // problem.dtype.element_bytes, 1)
    return candidate.block_plan.tile.m <= max(problem.m, fewest)


ROWS_WITHIN_M = Rule(
    "rows-within-m",
    "shape",
    "a block of more rows than m loads element by element",
    _rows_within_m,
    of=("threads", "vector_bytes", "vectors"),
)


class ThroughRegisters(Family[F]):
    has_batches = True
    beside_resources = ("row_tiles", "evict_first")
    dtypes = (*FMA_DTYPES, "bf16", "f16")  # products of the last two are added up in f32
    ops = ("nn",)

    def register_block_plan(
        self, config: F, problem: Problem, tile: Periods, *, columns: int, loaded_bytes: int
    ) -> BlockPlan:
        """Return the block plan. A thread has `loaded_bytes` of A, and sums of `columns`, in registers."""
        of_sum = problem.dtype.sum
        sums = (tile.m // config.threads + 1) * columns
        resources = Resources(
            threads=config.threads,
            registers=sums * of_sum.registers + loaded_bytes // 4 + OVERHEAD_REGISTERS,
            smem_bytes=tile.k * tile.n * of_sum.element_bytes,
            bytes_in_flight=loaded_bytes,
            reuse=tile.n,
        )
        tiling_fields = {"vector_bytes": config.vector_bytes, "c_vector_bytes": config.vector_bytes}
        return BlockPlan(resources, tile, tiling_fields=tiling_fields)


@dataclass(frozen=True, slots=True)
class ResidentBFmaConfig(FmaConfig):
    family: ClassVar[str] = "resident_b_fma"

    vectors: Annotated[int, Tunable("vectors of a column of A that one thread loads", default=1)]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2")]
    prefetch: Annotated[int, Tunable("columns of A that one thread loads before it multiplies", symbol="t3")]
    row_tiles: RowTiles
    evict_first: EvictFirst = 1


def tile_depth(config: ResidentBFmaConfig) -> int:
    """Return the number of rows of B in shared memory at a time, a multiple of `prefetch`."""
    return max(TILE_DEPTH // config.prefetch, 1) * config.prefetch


class ResidentBFma(ThroughRegisters[ResidentBFmaConfig]):
    summary = "tall and skinny A times small B, several rows a thread in wide loads"
    about = "several rows a thread in wide loads, B in shared memory"
    template = "resident_b/fma.cu.jinja"
    rules = (
        VECTOR_HOLDS_AN_ELEMENT,
        covering_rule("columns", "n", COLUMNS),
        covering_rule("prefetch", "k", PREFETCH),
        ROWS_WITHIN_M,
        strides_fill_device("threads", "vector_bytes", "vectors"),
    )
    config_type = ResidentBFmaConfig
    axes: ClassVar = {
        "threads": THREADS,
        "vector_bytes": VECTOR_BYTES,
        "vectors": (1, 2),
        "columns": COLUMNS,
        "prefetch": PREFETCH,
        "row_tiles": (1, 2, 4, 8, 16, 24, 32),
    }

    def block_plan(self, config: ResidentBFmaConfig, problem: Problem) -> BlockPlan:
        """Return the block plan: a block computes all columns of its rows, one tile after another."""
        of_column = config.vectors * config.vector_bytes  # bytes of a thread's rows
        rows = of_column // problem.dtype.element_bytes
        tile = Periods(config.threads * rows, config.columns, tile_depth(config))
        loaded_bytes = config.prefetch * of_column
        plan = self.register_block_plan(config, problem, tile, columns=config.columns, loaded_bytes=loaded_bytes)
        tiling_fields = {**plan.tiling_fields, "k_padding": config.prefetch}
        return replace(plan, launch_fields={"columns_per_block": 0}, tiling_fields=tiling_fields)

    def context(self, config: ResidentBFmaConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {"tile_depth": tile_depth(config)}


@dataclass(frozen=True, slots=True)
class ResidentBFmaHeldConfig(FmaConfig):
    family: ClassVar[str] = "resident_b_fma_held"

    depth: Annotated[int, Tunable("columns of A that one thread keeps in registers")]
    columns: Annotated[int, Tunable("columns of C that one thread computes at a time", symbol="t2")]
    across: Annotated[int, Tunable("columns of C that one block computes")]
    evict_first: EvictFirst = 1


class ResidentBFmaHeld(ThroughRegisters[ResidentBFmaHeldConfig]):
    summary = "tall A of a few columns times small B, rows of A in registers, C written some columns at a time"
    about = "A in registers, C some columns at a time"
    template = "resident_b/fma_held.cu.jinja"
    rules = (
        VECTOR_HOLDS_AN_ELEMENT,
        covering_rule("columns", "n", COLUMNS_AT_A_TIME),
        covering_rule("across", "n", ACROSS),
        covering_rule("depth", "k", DEPTH),
        rule_of(
            "rows-held",
            "shape",
            "a row of A that is longer than a thread's registers is read again for each group of columns of C",
            lambda config, problem: problem.k <= config.depth,
            of=("depth",),
        ),
        ROWS_WITHIN_M,
    )
    without_vectors = HELD_WITHOUT_VECTORS
    config_type = ResidentBFmaHeldConfig
    axes: ClassVar = {
        "threads": THREADS,
        "vector_bytes": VECTOR_BYTES,
        "depth": DEPTH,
        "columns": COLUMNS_AT_A_TIME,
        "across": ACROSS,
    }
    where: ClassVar = {"columns across": lambda config: config.columns <= config.across}

    def block_plan(self, config: ResidentBFmaHeldConfig, problem: Problem) -> BlockPlan:
        rows = config.threads * config.vector_bytes // problem.dtype.element_bytes
        tile, loaded_bytes = Periods(rows, config.across, config.depth), config.depth * config.vector_bytes
        plan = self.register_block_plan(config, problem, tile, columns=config.columns, loaded_bytes=loaded_bytes)
        tiling_fields = {**plan.tiling_fields, "n_padding": config.columns}
        return replace(plan, k_per_pass=config.depth, tiling_fields=tiling_fields)

    def probe_shapes(self, config: ResidentBFmaHeldConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows = self.periods(config, problem).m
        return (
            (2 * rows + 1, 1, max(config.depth - 1, 1)),
            (min(rows, 66), config.across + config.columns + 1, 2 * config.depth + 1),  # A does not fit in registers
            # The last block is partial but has whole vectors.
            (2 * rows - PACK, config.across, max(config.depth - 1, 1)),
            (2 * rows + 1, config.across, config.depth),  # an odd m: columns of A are not whole vectors
        )
