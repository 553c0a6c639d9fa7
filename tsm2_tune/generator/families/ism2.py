"""ISM2: a tall and skinny matrix times a small one, several rows a thread, in both published optimisations.

Source: Rivera, Chen, Xiong, Song, Tao, "ISM2: Optimizing Irregular-Shaped Matrix-Matrix Multiplication on
GPUs", section 5.2 (Algorithms 6 and 7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig, Launch, Periods, Resources, Traffic
from tsm2_tune.generator.families.family import Family
from tsm2_tune.generator.families.tsm2 import (
    COLUMNS,
    PREFETCH,
    SHAPE_RULES,
    THREADS,
    staged_bytes,
)
from tsm2_tune.generator.model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Rule
from tsm2_tune.generator.tunables import Tunable
from tsm2_tune.runtime.expecting import Division

ROW_TILES = (1, 2, 4, 8, 16, 32, 64)  # [tcf]; past 64 the paper saw the speed decline (section 5.2)

OPTIMISATIONS = {
    1: "Algorithm 6: TSM2's V3 repeated over tiles of rows",
    2: "Algorithm 7: rows stride past each staged tile of B, C prefetched",
}


@dataclass(frozen=True, slots=True, order=True)
class Ism2Config(KernelConfig):
    """Every choice that the ISM2 template needs. The paper's symbol is in brackets."""

    family: ClassVar[str] = "ism2"

    optimisation: Annotated[int, Tunable("1: rows outermost; 2: rows inside the tile of B, C prefetched", letter="o")]
    threads: Annotated[
        int, Tunable("threads of a block; also the rows of B staged at a time", symbol="t1", letter="t")
    ]
    columns: Annotated[int, Tunable("columns of C that one thread accumulates in registers", symbol="t2", letter="c")]
    prefetch: Annotated[int, Tunable("elements of A that one thread loads ahead", symbol="t3", letter="p")]
    row_tiles: Annotated[
        int, Tunable("rows of A for each thread of the grid", symbol="tcf", usual=1, is_launch=True, letter="r")
    ]


def _grid_fills_device(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, Ism2Config)
    rows_per_block = config.threads * config.row_tiles
    return config.row_tiles == 1 or candidate.problem.m >= rows_per_block * candidate.limits.sms


class Ism2(Family[Ism2Config]):
    name = "ism2"
    summary = "tall and skinny A times small B, m/tcf threads stride over the rows; optimisations 1 and 2"
    template = "ism2.cu.jinja"
    vectors_of_c = True
    rules = (
        *SHAPE_RULES,
        Rule(
            "grid-fills-device",
            "shape",
            "striding over rows pays only where the grid still gives every multiprocessor a block",
            _grid_fills_device,
        ),
    )
    config_type = Ism2Config

    def configurations(self) -> Iterator[Ism2Config]:
        for choice in product(OPTIMISATIONS, THREADS, COLUMNS, PREFETCH, ROW_TILES):
            yield Ism2Config(*choice)

    def resources(self, config: Ism2Config, problem: Problem) -> Resources:
        # Optimisation 1 holds what TSM2's V3 holds; optimisation 2 also C before this tile and the next row's.
        elements = (3 if config.optimisation == 1 else 5) * config.columns + 2 * config.prefetch
        return Resources(
            threads=config.threads,
            registers=elements * problem.dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=staged_bytes(
                threads=config.threads, columns=config.columns, prefetch=config.prefetch, problem=problem
            ),
            bytes_in_flight=config.prefetch * problem.dtype.element_bytes,
            reuse=config.columns,
        )

    def launch(self, config: Ism2Config, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=config.threads * config.row_tiles,
            smem_bytes=self.resources(config, problem).smem_bytes,
        )

    def periods(self, config: Ism2Config, problem: Problem) -> Periods:
        return Periods(config.threads, config.columns, max(config.threads, config.prefetch))

    def division(self, config: Ism2Config, problem: Problem, resident: int) -> Division:
        """A block goes over its rows of A once for each group of columns."""
        found = super().division(config, problem, resident)
        return replace(found, tile_columns=config.columns, depth=config.prefetch)

    def traffic(self, config: Ism2Config, problem: Problem) -> Traffic:
        passes = -(-problem.n // config.columns)  # over A: one for each group of columns
        elements = problem.m * problem.k * passes + problem.k * problem.n
        tile_rows = config.threads // config.prefetch * config.prefetch
        # Optimisation 2 writes C after every tile of B and reads it before all but the first.
        tiles = -(-problem.k // tile_rows) if config.optimisation == 2 else 1
        return Traffic(
            elements * problem.dtype.element_bytes + (tiles - 1) * problem.written_bytes,
            tiles * problem.written_bytes,
        )

    def context(self, config: Ism2Config, problem: Problem) -> dict[str, Any]:
        return {"about": OPTIMISATIONS[config.optimisation]}


FAMILIES = (Ism2(),)
