"""TSMM for a row-major A and C whose rows are no whole vectors: tiles of rows pass through shared memory.

Where rows of A and of C lie without gaps, a tile of them is one piece of memory, however long a row is: it comes and
goes in vectors, and nobody looks at where a row begins but the lanes that multiply, each of which has rows of its
own. A block has B, a ring of A's tiles and a tile of C in shared memory. Of how many rows a tile is, the kernel makes
of the room that n and k leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family, Tunable
from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Candidate, Rule, covering_rule
from tsm2_tune.generator.splitting import WIDE_SPLIT_RULES, WIDE_SPLITS, wide_splits
from tsm2_tune.runtime.expecting import Division

THREADS = (128, 256)
ROWS = (1, 2, 4)
COLUMNS = (2, 4, 8, 16)
STAGES = (1, 2, 3)
SMEM_KB = (55, 74, 112)  # of which a multiprocessor of an H100 or H200 holds 4, 3 and 2
VECTOR_BYTES, WARP_THREADS = 16, 32
LEAST_BUSY = 0.55  # of the blocks, that should have rows
MOST_EXTENT = 64  # of n and k: of more, the families for larger products reuse A
MOST_SUMS = 32  # registers for a lane's sums: with more, 16 warps on a multiprocessor spill
MOST_REGISTERS = 128  # of each of as many warps
COPY_REGISTERS = 60  # for the addresses of copies, several at a time
SMALL_STRIPS = 4  # of rows, for each multiprocessor, of fewer of which all should be at work


@dataclass(frozen=True, slots=True, order=True)
class TsmmRingConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmm_ring"
    letters: ClassVar[dict[str, str]] = {
        "threads": "t",
        "rows": "r",
        "columns": "c",
        "stages": "s",
        "smem_kb": "b",
        "splits": "k",
    }
    launch_tunables: ClassVar[tuple[str, ...]] = ("splits",)

    threads: int  # per block
    rows: int  # of C that one lane accumulates in registers
    columns: int  # of C that one lane accumulates in registers
    stages: int  # places of the ring, each with a tile of A
    smem_kb: int  # of shared memory, of a block
    splits: int  # of all rows: the blocks


def _config(candidate: Candidate) -> TsmmRingConfig:
    assert isinstance(candidate.config, TsmmRingConfig)
    return candidate.config


def strip(config: TsmmRingConfig) -> int:
    """Rows that a warp multiplies at a time."""
    return WARP_THREADS * config.rows


def width(problem: Problem) -> int:
    """Elements of a vector."""
    return VECTOR_BYTES // problem.dtype.element_bytes


def pitch(length: int, problem: Problem) -> int:
    """Elements from one line of so many to the next in shared memory: an odd number of the widest packs of a line."""
    return length + (width(problem) if length % (2 * width(problem)) == 0 else 0)


def most_strips(config: TsmmRingConfig, problem: Problem, *, n: int, k: int, places: int) -> int:
    """How many strips of a tile have room, beside B, in so many places of the ring and in C's tile."""
    left = config.smem_kb * 1024 // problem.dtype.element_bytes - k * -(-n // config.columns) * config.columns
    return max(left, 0) // (strip(config) * (places * pitch(k, problem) + pitch(n, problem)))


def _longest(config: TsmmRingConfig, problem: Problem, n: int) -> int:
    """The most products of a sum for which all has room, of so many columns of C, with one place of the ring."""
    elements = config.smem_kb * 1024 // problem.dtype.element_bytes
    return max((k for k in range(1, elements) if most_strips(config, problem, n=n, k=k, places=1)), default=1)


def _work(config: TsmmRingConfig, problem: Problem) -> float:
    """Instructions for a row of C and a product of each of its sums: multiply-adds, reads of A and of B."""
    parts = problem.dtype.parts
    fmas = config.rows * config.columns * parts * parts
    reads_of_b = config.columns // width(problem)
    return -(-problem.n // config.columns) * (fmas + config.rows + reads_of_b + 4) / config.rows


def is_odd(problem: Problem) -> bool:
    """Whether rows of A or of C are other than a power of two of vectors, for which others have loads and stores."""
    vectors = (problem.n / width(problem), problem.k / width(problem))
    return any(count != int(count) or int(count) & (int(count) - 1) for count in vectors)


def _has_room(candidate: Candidate) -> bool:
    config, problem = _config(candidate), candidate.problem
    return most_strips(config, problem, n=problem.n, k=problem.k, places=config.stages) >= 1


def _rows_for_all(candidate: Candidate) -> bool:
    config = _config(candidate)
    strips = -(-candidate.problem.m // strip(config))
    return config.splits == WIDE_SPLITS[0] or strips >= LEAST_BUSY * config.splits


class TsmmRing(Family[TsmmRingConfig]):
    name = "tsmm_ring"
    summary = "tall row-major A times small B where rows are no whole vectors, through shared memory in one piece"
    template = "tsmm_ring.cu.jinja"
    tunables = (
        Tunable("threads", "", "threads of a block"),
        Tunable("rows", "", "rows of C that one lane accumulates in registers"),
        Tunable("columns", "t2", "columns of C that one lane accumulates in registers"),
        Tunable("stages", "", "places of the ring, each with a tile of A, on their way or arrived"),
        Tunable("smem_kb", "", "KiB of shared memory of a block: B, the ring, and a tile of C"),
        Tunable("splits", "", "blocks among which all rows are divided"),
    )
    rules = (
        Rule(
            "columns-are-vectors",
            "limit",
            "a lane's columns of B are whole vectors in shared memory",
            lambda c: _config(c).columns * c.problem.dtype.element_bytes % VECTOR_BYTES == 0,
        ),
        covering_rule(
            "columns-within-n",
            "a column group wider than needed for n computes columns that nobody asked for",
            tunable="columns",
            options=COLUMNS,
            extent=lambda problem: max(problem.n, width(problem)),
        ),
        Rule(
            "sums-in-registers",
            "shape",
            "more sums in a lane than registers of 16 warps have room for would spill",
            lambda c: _config(c).rows * _config(c).columns * c.problem.dtype.sum.registers <= MOST_SUMS,
        ),
        Rule(
            "rows-are-odd",
            "shape",
            "rows of a power of two of vectors are loaded and stored as they are",
            lambda c: is_odd(c.problem),
        ),
        Rule(
            "all-has-room",
            "shape",
            "fewer stages are another configuration; A is read, or C written, once more for each part of n or of k",
            _has_room,
        ),
        Rule("rows-for-all", "shape", "most blocks should have rows", _rows_for_all),
        *WIDE_SPLIT_RULES,
    )
    odd_lines = 1.0  # it has no others
    config_type = TsmmRingConfig

    def configurations(self) -> Iterator[TsmmRingConfig]:
        for values in product(THREADS, ROWS, COLUMNS, STAGES, SMEM_KB, WIDE_SPLITS):
            yield TsmmRingConfig(*values)

    def resources(self, config: TsmmRingConfig, problem: Problem) -> Resources:
        strips = most_strips(config, problem, n=problem.n, k=problem.k, places=config.stages)
        on_their_way = config.stages * strips * strip(config) * problem.k * problem.dtype.element_bytes
        sums = config.rows * config.columns * problem.dtype.sum.registers
        factors = config.rows * VECTOR_BYTES // 4 + config.columns * problem.dtype.registers
        return Resources(
            threads=config.threads,
            registers=min(sums + factors + COPY_REGISTERS + OVERHEAD_REGISTERS, MOST_REGISTERS),
            smem_bytes=config.smem_kb * 1024,
            bytes_in_flight=on_their_way // config.threads,
            reuse=config.columns,
        )

    def launch(self, config: TsmmRingConfig, problem: Problem) -> Launch:
        """No tile has parts in several blocks: to its workspace, every element is one."""
        return Launch(
            threads=config.threads,
            rows_per_block=1,
            columns_per_block=1,
            smem_bytes=config.smem_kb * 1024,
            splits=config.splits,
            persistent=True,
        )

    def periods(self, config: TsmmRingConfig, problem: Problem) -> Periods:
        even = 2 * width(problem)  # by which lines are apart or not
        return Periods(strip(config), max(config.columns, even), even)

    def division(self, config: TsmmRingConfig, problem: Problem, resident: int) -> Division:
        """A block has all columns, and sums of as many products as have room beside the fewest."""
        deepest = _longest(config, problem, config.columns)
        found = super().division(config, problem, resident)
        return replace(found, tile_rows=strip(config), tile_columns=0, step=deepest, deepest=deepest)

    def traffic(self, config: TsmmRingConfig, problem: Problem) -> Traffic:
        """A once, C once: what has room. B comes from the L2 for each block."""
        return Traffic(problem.read_bytes, problem.written_bytes)

    def supports(self, problem: Problem) -> bool:
        """Where one tile has all columns. Larger ones are served, part after part."""
        row_major = problem.contiguous[0] == "k" and problem.row_major_c
        small = max(problem.n, problem.k) <= MOST_EXTENT
        return problem.dtype_name in self.dtypes and not problem.is_gram and row_major and small

    def probe_shapes(self, config: TsmmRingConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Several strips a block; odd rows in several groups of columns; rows of whole vectors, apart and not, and of
        half vectors; parts of n and of k; parts of k of which the last has lines apart and the first not."""
        high, columns, even = strip(config), config.columns, 2 * width(problem)
        longest = _longest(config, problem, columns)
        return (
            (2 * high * config.splits + 1, 1, 3),
            (min(high + 1, 67), 2 * columns + 1, 7),
            (2 * high + 8, max(2 * columns, even), even),
            (high + 5, 3 * even // 2, 5 * even // 2),
            (high + 3, even + even // 4 + 1, even + max(even // 4, 1)),
            (37, 2 * columns + 1, longest + 3),
            (high, columns, 2 * ((longest - 1) // even * even) + 1),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[TsmmRingConfig, ...]:
        """The fewest instructions for each row; as many blocks as fill a multiprocessor's shared memory."""
        if not is_odd(problem):
            return ()
        few = problem.m < SMALL_STRIPS * limits.sms * WARP_THREADS * ROWS[-1]
        shapes = [
            TsmmRingConfig(THREADS[0], rows, columns, 2, SMEM_KB[0], WIDE_SPLITS[0])
            for rows, columns in product(ROWS[:2] if few else ROWS, COLUMNS)
            if rows * columns * problem.dtype.sum.registers <= MOST_SUMS and columns % width(problem) == 0
        ]
        best = sorted(shapes, key=lambda config: _work(config, problem))[:3]
        memory = ((128, 2, 55, 4), (256, 2, 112, 2), (128, 2, 74, 3), (128, 1, 55, 4))
        found = [
            replace(one, threads=threads, stages=stages, smem_kb=kb, splits=wide_splits(limits, blocks))
            for threads, stages, kb, blocks in memory
            for one in best
        ]
        return tuple(dict.fromkeys(found))

    def context(self, config: TsmmRingConfig, problem: Problem) -> dict[str, Any]:
        return {
            "about": "tiles of rows of A and of C through shared memory in one piece",
            "storage": problem.storage,
            "b_along_n": problem.contiguous[1] == "n",
        }


FAMILY = TsmmRing()
