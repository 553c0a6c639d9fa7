"""TSMM for a row-major A: a tall and skinny matrix times a small one, the lanes of a warp along the rows.

A row of A is read by neighbouring lanes, a vector or two each, so that a warp's loads are whole pieces of memory. B
never changes, and a lane needs only the rows of B that match its part of a row of A: they stay in its registers, and
no shared memory is needed. The lanes add up their sums by shuffles, after which each has some columns of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import KernelConfig, Launch, Resources, Traffic
from tsm2_tune.generator.families.family import Family, Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Candidate, Rule
from tsm2_tune.generator.splitting import REGISTERS_REACHABLE, in_turns

THREADS = 128  # per block
VECTOR_BYTES = (16, 8, 4)
# Of a row: lanes, vectors of each, teams of lanes.
LAYOUTS = (
    *((lanes, 1, teams) for lanes in (1, 2, 4, 8, 16, 32) for teams in (1, 2, 4) if lanes * teams <= 32),
    *((lanes, 2, teams) for lanes in (2, 4, 8, 16) for teams in (1, 2, 4) if lanes * teams <= 32),
)
COLUMNS = (1, 2, 4, 8, 16, 32)
ROWS_TILES = ((2, 1), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (8, 8), (16, 4))
MIN_BLOCKS = (2, 3, 4, 5, 6, 8)
MOST_COLUMNS = 64  # of a block: more take two blocks
PACK_BYTES = 16
MOST_REGISTERS = (170, 235)  # by the estimate, that a configuration to prefer may need: rather the first
TIGHT = 1.04  # of the estimate to the registers that a thread gets
LARGE_M = 300_000
LARGE_TILES = ((8, 4), (8, 2), (4, 2), (4, 4), (8, 8), (16, 4), (8, 1))
SMALL_TILES = ((4, 1), (2, 1), (8, 1), (4, 2))


@dataclass(frozen=True, slots=True, order=True)
class TsmmRowsConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmm_rows"
    letters: ClassVar[dict[str, str]] = {
        "threads": "t",
        "vector_bytes": "b",
        "lanes": "l",
        "vectors": "v",
        "teams": "w",
        "columns": "c",
        "rows": "p",
        "row_tiles": "r",
        "min_blocks": "m",
    }

    threads: int  # per block
    vector_bytes: int  # of one load
    lanes: int  # along a row of A
    vectors: int  # of a row that one lane loads
    teams: int  # of such lanes, each with columns of C of its own
    columns: int  # of C that one lane accumulates in registers
    rows: int  # of A that one lane has in registers
    row_tiles: int  # tiles of rows for each block of the grid
    min_blocks: int  # on a multiprocessor, which bounds the registers


def width(config: TsmmRowsConfig, problem: Problem) -> int:
    """Elements of a vector."""
    return config.vector_bytes // problem.dtype.element_bytes


def depth(config: TsmmRowsConfig, problem: Problem) -> int:
    """Columns of A that the lanes of a row have at once."""
    return config.lanes * config.vectors * width(config, problem)


def block_rows(config: TsmmRowsConfig) -> int:
    """Rows of a tile."""
    return config.threads // (config.lanes * config.teams) * config.rows


def _work(config: TsmmRowsConfig, problem: Problem) -> float:
    """Instructions for a row of A, of all its lanes: products, sums of the lanes, loads and stores."""
    words = problem.dtype.registers
    products = config.vectors * width(config, problem) * config.columns
    shuffles = (config.columns - max(config.columns // config.lanes, 1)) * (words + 1)
    return config.lanes * config.teams * (products + shuffles + 12 * config.vectors + 12)


def _config(candidate: Candidate) -> TsmmRowsConfig:
    assert isinstance(candidate.config, TsmmRowsConfig)
    return candidate.config


def _vectors_fit(candidate: Candidate) -> bool:
    """Whether rows of k elements are whole vectors, and of no wider ones."""
    return _config(candidate).vector_bytes == widest_vector(candidate.problem)


def widest_vector(problem: Problem) -> int:
    """Bytes of the widest vector that whole rows of A are made of."""
    size = problem.dtype.element_bytes
    return max((b for b in VECTOR_BYTES if b >= size and problem.k * size % b == 0), default=size)


def _lanes_fit(candidate: Candidate) -> bool:
    """Whether the lanes of a row have all of it at once, and half of them would not."""
    covered = depth(_config(candidate), candidate.problem)
    return covered // 2 < candidate.problem.k <= covered


def _columns_fit(candidate: Candidate) -> bool:
    config = _config(candidate)
    columns, wanted = config.teams * config.columns, min(candidate.problem.n, MOST_COLUMNS)
    return columns // 2 < wanted <= columns


def _grid_fills_device(candidate: Candidate) -> bool:
    config = _config(candidate)
    return config.row_tiles == 1 or candidate.problem.m >= candidate.launch.rows_per_block * candidate.limits.sms


def _rows_within_m(candidate: Candidate) -> bool:
    config = _config(candidate)
    return config.rows == ROWS_TILES[0][0] or block_rows(config) <= candidate.problem.m


class TsmmRows(Family[TsmmRowsConfig]):
    name = "tsmm_rows"
    summary = "tall and skinny row-major A times small B, lanes along the rows, B in registers"
    template = "tsmm_rows.cu.jinja"
    dtypes = ("f32", "f64")
    tunables = (
        Tunable("threads", "", "threads of a block"),
        Tunable("vector_bytes", "", "bytes of one load"),
        Tunable("lanes", "", "lanes along a row of A"),
        Tunable("vectors", "", "vectors of a row that one lane loads"),
        Tunable("teams", "", "teams of lanes with the same part of A, each with columns of C of its own"),
        Tunable("columns", "t2", "columns of C that one lane accumulates in registers"),
        Tunable("rows", "t3", "rows of A that one lane has in registers, on their way or arrived"),
        Tunable("row_tiles", "tcf", "tiles of rows for each block of the grid"),
        Tunable("min_blocks", "", "blocks that a multiprocessor must hold, which bounds the registers"),
    )
    rules = (
        Rule("vectors-fit-rows", "shape", "loads are the widest that whole rows of A are made of", _vectors_fit),
        Rule("lanes-fit-rows", "shape", "the lanes of a row should have all of it, and none be idle", _lanes_fit),
        Rule("columns-fit-n", "shape", "the teams should have every column, and no more than needed", _columns_fit),
        Rule("rows-within-m", "shape", "a tile of more rows than m leaves lanes idle", _rows_within_m),
        Rule(
            "grid-fills-device",
            "shape",
            "striding over rows pays only where the grid still gives every multiprocessor a block",
            _grid_fills_device,
        ),
        REGISTERS_REACHABLE,
    )
    config_type = TsmmRowsConfig

    def configurations(self) -> Iterator[TsmmRowsConfig]:
        for vector_bytes, layout, columns, ahead, min_blocks in product(
            VECTOR_BYTES, LAYOUTS, COLUMNS, ROWS_TILES, MIN_BLOCKS
        ):
            if layout[2] * columns <= MOST_COLUMNS:
                yield TsmmRowsConfig(THREADS, vector_bytes, *layout, columns, *ahead, min_blocks)

    def resources(self, config: TsmmRowsConfig, problem: Problem) -> Resources:
        part = config.vectors * width(config, problem)
        elements = part * (config.columns + config.rows) + config.columns
        return Resources(
            threads=config.threads,
            registers=elements * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=0,
            bytes_in_flight=config.rows * config.vectors * config.vector_bytes // config.teams,
            reuse=config.columns,
        )

    def launch(self, config: TsmmRowsConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=block_rows(config) * config.row_tiles,
            smem_bytes=0,
            columns_per_block=config.teams * config.columns,
        )

    def traffic(self, config: TsmmRowsConfig, problem: Problem) -> Traffic:
        passes = -(-problem.n // (config.teams * config.columns))
        read = problem.m * problem.k * passes + problem.k * problem.n
        return Traffic(read * problem.dtype.element_bytes, problem.written_bytes)

    def supports(self, problem: Problem) -> bool:
        return problem.contiguous[0] == "k" and problem.dtype_name in self.dtypes

    def probe_shapes(self, config: TsmmRowsConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """What has branches of its own, whole and in part: tiles of rows, groups of columns, rows of vectors.

        In the first two rows are whole vectors, in part of the lanes and in all; in the third C's packs are whole as
        well, and blocks go on to further tiles; in the fourth, rows are longer than all lanes have at once.
        """
        high, columns = block_rows(config), config.teams * config.columns
        whole, one = depth(config, problem), width(config, problem)
        return (
            (high + 1, 1, max(whole - one, 1)),
            (2 * high * config.row_tiles - 1, columns + 1, whole),
            ((2 * config.row_tiles + 1) * high - PACK_BYTES, 2 * columns, whole),
            (min(high, 67), columns, 2 * whole + one),
            (34, max(columns - 1, 1), max(whole - 1, 1)),
        )

    def preferred(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmmRowsConfig, ...]:
        """Where the winners on an H200 lay: as few lanes a row as registers for B allow, many blocks of few tiles."""
        n = min(problem.n, MOST_COLUMNS)
        layouts = [
            TsmmRowsConfig(THREADS, widest_vector(problem), *layout, columns, 8, 1, 1)
            for layout in LAYOUTS
            for columns in COLUMNS
            if columns * layout[2] // 2 < n <= columns * layout[2] <= MOST_COLUMNS
        ]
        layouts = [c for c in layouts if depth(c, problem) // 2 < problem.k <= depth(c, problem)]
        light, heavy = (
            [c for c in layouts if self.resources(c, problem).registers <= most] for most in MOST_REGISTERS
        )
        fitting = sorted(light or heavy, key=lambda config: _work(config, problem))
        return in_turns(
            [
                replace(config, rows=rows, row_tiles=tiles, min_blocks=least)
                for rows, tiles in (LARGE_TILES if problem.m >= LARGE_M else SMALL_TILES)
                for least in self._min_blocks(replace(config, rows=rows), problem, limits)
            ]
            for config in fitting[:3]
        )

    def _min_blocks(self, config: TsmmRowsConfig, problem: Problem, limits: DeviceLimits) -> list[int]:
        """The most blocks whose registers are enough."""
        registers = self.resources(config, problem).registers
        enough = [b for b in MIN_BLOCKS if registers <= TIGHT * limits.registers_per_sm / (THREADS * b)]
        return enough[-1:]

    def context(self, config: TsmmRowsConfig, problem: Problem) -> dict[str, Any]:
        return {
            "about": "lanes along the rows of A, B in registers",
            "storage": problem.storage,
            "b_along_n": problem.contiguous[1] == "n",
            "c_along_n": problem.row_major_c,
        }


FAMILY = TsmmRows()
