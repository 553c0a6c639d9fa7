"""A tall row-major A times a small B, which stays in registers.

A lane loads one vector or a few of each row of A, and keeps the matching rows of B in registers. So the kernel needs
no shared memory. After the warp shuffles each lane has some columns of the row of C. If rows of A are shorter than a
vector and have no gaps between them, a vector holds several rows of A, and a store writes several rows of C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families.family import rule_of
from tsm2_tune.generator.families.row_lanes.kernel import (
    VECTOR_BYTES,
    VECTORS_FIT_ROWS,
    RowLanes,
    RowLanesConfig,
    widest_vector,
)
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import tunable
from tsm2_tune.generator.space.rules import (
    REGISTERS_REACHABLE,
    VECTOR_HOLDS_AN_ELEMENT,
    rows_within_m,
    strides_fill_device,
)
from tsm2_tune.generator.space.tunables import EvictFirst, RowTiles, Tunable
from tsm2_tune.generator.split_k import in_turns
from tsm2_tune.generator.tiling import VECTOR_BYTES as PACK_BYTES
from tsm2_tune.generator.tiling import BlockPlan

THREADS = 128  # threads per block
# Options of (lanes, vectors, teams).
LAYOUTS = (
    *((lanes, 1, teams) for lanes in (1, 2, 4, 8, 16, 32) for teams in (1, 2, 4) if lanes * teams <= 32),
    *((lanes, 2, teams) for lanes in (2, 4, 8, 16) for teams in (1, 2, 4) if lanes * teams <= 32),
    *((1, vectors, teams) for vectors in (1, 2, 4) for teams in (8, 16, 32)),
    *((2, vectors, teams) for vectors in (1, 2) for teams in (8, 16)),
    *((4, vectors, 8) for vectors in (1, 2)),
)
COLUMNS = (1, 2, 4, 8, 16, 32)
ROWS_TILES = ((2, 1), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (8, 8), (16, 4))
MIN_BLOCKS = (2, 3, 4, 5, 6, 8)
MOST_COLUMNS = 64  # the most columns of C per block
MOST_REGISTERS = (170, 235)  # the most estimated registers of a proposal; the second if none has the first
TIGHT = 1.04  # the largest ratio of a proposal's estimated registers to the registers that a thread gets
LARGE_M = 300_000
MOST_16_BIT = 8  # the largest n and k for 16-bit elements: above it, tensor cores are faster
UNPACKED = 8  # registers for 16-bit elements of A that are converted to f32
# Proposals of (rows, row_tiles), best first.
LARGE_TILES = ((4, 2), (8, 2), (8, 4), (4, 4))
LONG_ROWS_TILES = ((8, 4), (8, 2), (4, 2), (4, 4))
HALF_TILES = ((8, 2), (4, 4), (8, 4), (4, 2))
WIDE_TILES = ((8, 4), (8, 2), (8, 8))
SMALL_WIDE_TILES = ((8, 1), (2, 1), (4, 1))
SMALL_TILES = ((4, 1), (2, 1), (8, 1), (4, 2))
LONG_ROW_BYTES = 128
WITHOUT_VECTORS = 2.8  # measured over expected time of 11 shapes with unaligned lines on an H200, mean of 1.2 to 5.7
WIDE = 4  # the least n / k of a C that takes nearly all of the memory traffic


@dataclass(frozen=True, slots=True)
class RowLanesRegisterBConfig(RowLanesConfig):
    """If vectors hold several rows of A, one lane has all of a row."""

    family: ClassVar[str] = "row_lanes_register_b"

    vectors: Annotated[int, Tunable("vectors of a row of A that one lane loads", default=1)]
    teams: Annotated[
        int, Tunable("groups of lanes that load the same part of A and compute different columns of C", default=1)
    ]
    columns: Annotated[int, Tunable("columns of C that one lane accumulates in registers", symbol="t2")]
    rows: Annotated[int, Tunable("rows of A that one lane has in registers, in flight or in use", symbol="t3")]
    row_tiles: RowTiles
    min_blocks: Annotated[
        int, Tunable("minimum resident blocks per multiprocessor, which limits registers per thread", default=1)
    ]
    rows_per_vector: Annotated[int, Tunable("rows of A that one vector holds", default=1)] = 1
    evict_first: EvictFirst = 1


def width(config: RowLanesRegisterBConfig, problem: Problem) -> int:
    """Return the number of elements in a vector of `vector_bytes` bytes."""
    return config.vector_bytes // problem.dtype.element_bytes


def depth(config: RowLanesRegisterBConfig, problem: Problem) -> int:
    """Return the number of columns of A that the lanes that share a row load at a time."""
    return config.lanes * config.vectors * width(config, problem) // config.rows_per_vector


OF_DEPTH = ("vector_bytes", "lanes", "vectors", "rows_per_vector")  # the tunables on which `depth` depends


def block_rows(config: RowLanesRegisterBConfig) -> int:
    """Return the number of rows of C in a block's tile."""
    return config.threads // (config.lanes * config.teams) * config.rows


def _work(config: RowLanesRegisterBConfig, problem: Problem) -> float:
    """Return the estimated thread instructions per row of A: products, shuffles, loads and stores."""
    words = problem.dtype.registers
    products = config.vectors * width(config, problem) * config.columns
    shuffles = (config.columns - max(config.columns // config.lanes, 1)) * (words + 1)
    return config.lanes * config.teams * (products + shuffles + 12 * config.vectors + 12)


def _wide(problem: Problem) -> bool:
    """Return whether writing C takes nearly all of the time: C is row-major, and its rows are long."""
    long = problem.n * problem.dtype.element_bytes >= 2 * LONG_ROW_BYTES
    return problem.row_major_c and problem.n >= WIDE * problem.k and long


def _tiles(problem: Problem) -> tuple[tuple[int, int], ...]:
    if _wide(problem):
        return WIDE_TILES if problem.m >= LARGE_M else SMALL_WIDE_TILES
    if problem.m < LARGE_M:
        return SMALL_TILES
    if problem.dtype.element_bytes == 2:
        return HALF_TILES
    return LONG_ROWS_TILES if problem.k * problem.dtype.element_bytes >= LONG_ROW_BYTES else LARGE_TILES


def _fits(wanted: int, covered: int) -> bool:
    """Return whether lanes or teams that cover this extent cover what is wanted, and half as many would not."""
    return covered // 2 < wanted <= covered


def _is_alone(config: RowLanesRegisterBConfig) -> bool:
    """Return whether one lane loads all of a row, with one 16-byte vector."""
    layout = (config.lanes, config.vectors, config.teams)
    return config.vector_bytes == VECTOR_BYTES[0] and layout == LAYOUTS[0]


class RowLanesRegisterB(RowLanes[RowLanesRegisterBConfig]):
    summary = "tall and skinny row-major A times small B, lanes along the rows, B in registers"
    about = "lanes along the rows of A, B in registers"
    template = "row_lanes/register_b.cu.jinja"
    rules = (
        VECTOR_HOLDS_AN_ELEMENT,
        replace(
            VECTORS_FIT_ROWS,
            keeps=lambda c: tunable(c, "rows_per_vector") > 1 or VECTORS_FIT_ROWS.keeps(c),
            of=("vector_bytes", "rows_per_vector"),
        ),
        rule_of(
            "joined-rows-fit",
            "shape",
            "several rows share a vector only if all vectors are full",
            lambda config, problem: (
                config.rows_per_vector == 1
                or (depth(config, problem) == problem.k and problem.m % config.rows_per_vector == 0)
            ),
            of=OF_DEPTH,
        ),
        rule_of(
            "lanes-fit-rows",
            "shape",
            "the lanes of a row should load all of it at once, and none should be idle",
            lambda config, problem: _fits(problem.k, depth(config, problem)),
            of=OF_DEPTH,
        ),
        rule_of(
            "columns-fit-n",
            "shape",
            "all teams together should compute n columns, and none should be idle",
            lambda config, problem: _fits(min(problem.n, MOST_COLUMNS), config.teams * config.columns),
            of=("teams", "columns"),
        ),
        rows_within_m("threads", "lanes", "teams", rows=ROWS_TILES[0][0]),
        strides_fill_device("threads", "lanes", "teams", "rows"),
        REGISTERS_REACHABLE,
    )
    without_vectors = WITHOUT_VECTORS
    config_type = RowLanesRegisterBConfig
    axes: ClassVar = {
        "threads": (THREADS,),
        "vector_bytes": (*VECTOR_BYTES, 2),
        "lanes vectors teams": LAYOUTS,
        "columns": COLUMNS,
        "rows row_tiles": ROWS_TILES,
        "min_blocks": MIN_BLOCKS,
        "rows_per_vector": (1, 2, 4, 8),
    }
    where: ClassVar = {
        "teams columns": lambda config: config.teams * config.columns <= MOST_COLUMNS,
        "rows rows_per_vector": lambda config: config.rows % config.rows_per_vector == 0,
        "vector_bytes lanes vectors teams rows_per_vector": lambda config: (
            config.rows_per_vector == 1 or _is_alone(config)
        ),
    }

    def block_plan(self, config: RowLanesRegisterBConfig, problem: Problem) -> BlockPlan:
        row_bytes = config.vectors * config.vector_bytes // config.rows_per_vector  # bytes of a row of A per lane
        factors = row_bytes // problem.dtype.element_bytes * config.columns
        sums = (factors + config.rows_per_vector * config.columns) * problem.dtype.sum.registers
        sums += UNPACKED if problem.dtype.element_bytes == 2 else 0
        resources = Resources(
            threads=config.threads,
            registers=config.rows * row_bytes // 4 + sums + OVERHEAD_REGISTERS,
            smem_bytes=0,
            bytes_in_flight=config.rows * row_bytes // config.teams,
            reuse=config.columns,
        )
        stored = max(config.columns // config.lanes, 1) if problem.row_major_c else config.rows  # along a line of C
        tiling_fields = {
            "vector_bytes": config.vector_bytes // config.rows_per_vector,
            "c_vector_bytes": min(stored * problem.dtype.element_bytes, PACK_BYTES),
            "k_of_vectors": depth(config, problem),
        }
        tile = Periods(block_rows(config), config.teams * config.columns, depth(config, problem))
        return BlockPlan(resources, tile, tiling_fields=tiling_fields)

    def probe_shapes(self, config: RowLanesRegisterBConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        high, columns = block_rows(config), config.teams * config.columns
        whole, one = depth(config, problem), width(config, problem)
        shapes = (
            (high + 1, 1, max(whole - one, 1)),  # some lanes have no vector of a row
            (2 * high * config.row_tiles - 1, columns + 1, whole),  # all lanes have whole vectors
            ((2 * config.row_tiles + 1) * high - PACK_BYTES, 2 * columns, whole),  # several tiles, and vectors of C
            (min(high, 67), columns, 2 * whole + one),  # lanes cannot load all of a row at once
            (34, max(columns - 1, 1), max(whole - 1, 1)),
        )
        return (*shapes, (shapes[2][0], columns, whole)) if config.rows_per_vector > 1 else shapes

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[RowLanesRegisterBConfig, ...]:
        """Return configurations like those that were fastest on an H200, best first.

        They have as few lanes per row as the registers for B allow, and many blocks of few tiles. Return none for
        16-bit elements if A or C has more than 8 columns.
        """
        if problem.dtype.element_bytes == 2 and max(problem.n, problem.k) > MOST_16_BIT:
            return ()
        layouts = self._layouts(problem)
        light, heavy = (
            [c for c in layouts if self.resources(c, problem).registers <= most] for most in MOST_REGISTERS
        )
        fitting = sorted(light or heavy, key=lambda config: (-config.rows_per_vector, _work(config, problem)))
        if _wide(problem):  # about 2 lanes per row, and about 32 registers for B, which leaves registers for rows
            words = problem.dtype.registers
            fitting.sort(key=lambda c: (abs(c.lanes - 2), abs(depth(c, problem) // c.lanes * c.columns * words - 32)))
            fitting = list({config.lanes: config for config in reversed(fitting)}.values())[::-1]
        return in_turns(
            [
                replace(config, rows=rows, row_tiles=tiles, min_blocks=least)
                for rows, tiles in _tiles(problem)
                if rows % config.rows_per_vector == 0
                for least in self._min_blocks(replace(config, rows=rows), problem, limits)
            ]
            for config in fitting[:3]
        )

    def _layouts(self, problem: Problem) -> list[RowLanesRegisterBConfig]:
        """Return divisions of rows of A among lanes and vectors, and of columns of C among teams."""
        n, row_bytes = min(problem.n, MOST_COLUMNS), problem.k * problem.dtype.element_bytes
        found = [
            RowLanesRegisterBConfig(THREADS, widest_vector(problem), *layout, columns, 8, 1, 1)
            for layout in LAYOUTS
            for columns in COLUMNS
            if columns * layout[2] // 2 < n <= columns * layout[2] <= MOST_COLUMNS
        ]
        found = [c for c in found if depth(c, problem) // 2 < problem.k <= depth(c, problem)]
        rows_per_vector = PACK_BYTES // row_bytes if PACK_BYTES % row_bytes == 0 else 1
        if problem.m >= LARGE_M and rows_per_vector > 1 and problem.m % rows_per_vector == 0:
            alone = [c for c in found if c.lanes == c.teams == 1]
            found += [replace(c, vector_bytes=PACK_BYTES, rows_per_vector=rows_per_vector) for c in alone]
        return found

    def _min_blocks(self, config: RowLanesRegisterBConfig, problem: Problem, limits: DeviceLimits) -> list[int]:
        """Return a list with the largest `min_blocks` that leaves a thread enough registers; empty if none does."""
        registers = self.resources(config, problem).registers
        enough = [b for b in MIN_BLOCKS if registers <= TIGHT * limits.registers_per_sm / (THREADS * b)]
        return enough[-1:]
