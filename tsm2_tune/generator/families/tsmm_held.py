"""TSMM where rows of A are short: a thread holds its rows in registers and writes C some columns at a time.

Where C is wide, what counts is how it is written: every store of a warp is one contiguous piece of a column, A is
read once, and a thread has so few sums that many warps store at the same time. Where all is small, A and B are on
their way at once, and the columns of C are divided among blocks, so that many warps start.
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
from tsm2_tune.generator.rules import VECTOR_HOLDS_AN_ELEMENT, Rule, columns_within_n, covering_rule
from tsm2_tune.generator.tunables import EvictFirst, Tunable
from tsm2_tune.runtime.expecting import Division

THREADS = (64, 128, 256)
VECTOR_BYTES = (4, 8, 16)
DEPTH = (2, 4, 8, 16)
COLUMNS = (2, 4, 8, 16)
ACROSS = (2, 4, 8, 16, 32, 64)
PACK = 16  # rows: whole vectors of every type
LARGE = ((128, 4, 4, 64), (256, 4, 4, 64), (128, 2, 8, 64))


@dataclass(frozen=True, slots=True, order=True)
class TsmmHeldConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmm_held"

    threads: Annotated[int, Tunable("threads of a block", letter="t")]
    vector_bytes: Annotated[int, Tunable("bytes of one load and one store: the rows of a thread", letter="b")]
    depth: Annotated[int, Tunable("columns of A that one thread has in registers", letter="d")]
    columns: Annotated[int, Tunable("columns of C that one thread computes at a time", symbol="t2", letter="c")]
    across: Annotated[int, Tunable("columns of C of a block", letter="n")]
    evict_first: EvictFirst = 1


def _config(candidate: Candidate) -> TsmmHeldConfig:
    assert isinstance(candidate.config, TsmmHeldConfig)
    return candidate.config


def _rows_within_m(candidate: Candidate) -> bool:
    config, rows = _config(candidate), candidate.launch.rows_per_block
    least_bytes = max(VECTOR_BYTES[0], candidate.problem.dtype.element_bytes)
    return (config.threads, config.vector_bytes) == (THREADS[0], least_bytes) or rows <= candidate.problem.m


class TsmmHeld(Family[TsmmHeldConfig]):
    name = "tsmm_held"
    summary = "tall A of a few columns times small B, rows of A in registers, C written some columns at a time"
    template = "tsmm_held.cu.jinja"
    vectors_of_c = True
    dtypes = (*FMA_DTYPES, "bf16", "f16")  # of the last two products are added up in f32
    rules = (
        VECTOR_HOLDS_AN_ELEMENT,
        columns_within_n(COLUMNS),
        covering_rule(
            "across-within-n",
            "a block of more columns than n computes columns that nobody asked for",
            tunable="across",
            options=ACROSS,
            extent=lambda problem: problem.n,
        ),
        covering_rule(
            "depth-within-k",
            "more rows of B than k are zeros that are multiplied",
            tunable="depth",
            options=DEPTH,
            extent=lambda problem: problem.k,
        ),
        Rule(
            "rows-held",
            "shape",
            "rows of A that are longer than what a thread holds are read again for every few columns of C",
            lambda c: c.problem.k <= _config(c).depth,
        ),
        Rule("rows-within-m", "shape", "a block of more rows than m loads element by element", _rows_within_m),
    )
    config_type = TsmmHeldConfig

    def configurations(self) -> Iterator[TsmmHeldConfig]:
        for values in product(THREADS, VECTOR_BYTES, DEPTH, COLUMNS, ACROSS):
            config = TsmmHeldConfig(*values)
            if config.columns <= config.across:
                yield config

    def resources(self, config: TsmmHeldConfig, problem: Problem) -> Resources:
        rows = config.vector_bytes // problem.dtype.element_bytes
        sums = (rows + 1) * config.columns * problem.dtype.sum.registers
        return Resources(
            threads=config.threads,
            registers=sums + config.depth * config.vector_bytes // 4 + OVERHEAD_REGISTERS,
            smem_bytes=config.depth * config.across * problem.dtype.sum.element_bytes,
            bytes_in_flight=config.depth * config.vector_bytes,
            reuse=config.across,
        )

    def launch(self, config: TsmmHeldConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.threads * config.vector_bytes // problem.dtype.element_bytes,
            columns_per_block=config.across,
            smem_bytes=self.resources(config, problem).smem_bytes,
        )

    def periods(self, config: TsmmHeldConfig, problem: Problem) -> Periods:
        return Periods(self.launch(config, problem).rows_per_block, config.across, config.depth)

    def deepest(self, config: TsmmHeldConfig) -> int:
        return config.depth

    def division(self, config: TsmmHeldConfig, problem: Problem, resident: int) -> Division:
        found = super().division(config, problem, resident)
        return replace(found, vector_bytes=config.vector_bytes, width=config.columns)

    def traffic(self, config: TsmmHeldConfig, problem: Problem) -> Traffic:
        passes = -(-problem.n // config.across)
        elements = problem.m * problem.k * passes + problem.k * problem.n
        return Traffic(elements * problem.dtype.element_bytes, problem.written_bytes)

    def probe_shapes(self, config: TsmmHeldConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Blocks part-filled in rows and columns, and an A that is not held; whole vectors, but no whole blocks.

        In the last, matrices begin aligned where their leading dimensions are not.
        """
        rows = self.launch(config, problem).rows_per_block
        return (
            (2 * rows + 1, 1, max(config.depth - 1, 1)),
            (min(rows, 66), config.across + config.columns + 1, 2 * config.depth + 1),
            (2 * rows - PACK, config.across, max(config.depth - 1, 1)),
            (2 * rows + 1, config.across, config.depth),
        )

    def context(self, config: TsmmHeldConfig, problem: Problem) -> dict[str, Any]:
        return {"about": "A in registers, C some columns at a time"}


FAMILIES = (TsmmHeld(),)
