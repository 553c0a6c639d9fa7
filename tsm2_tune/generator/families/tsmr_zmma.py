"""TSMR on the tensor cores, for complex numbers: large A times skinny B, and tall A times small B, or conjugates.

A complex product is four real ones of the f64 tensor cores. Real and imaginary parts of A are neighbours in memory:
one 16-byte load brings both, into the registers in which the tensor core wants them. The f64 tensor cores are as fast
as fused multiply-adds in f32 and leave most of the issue slots free, so that c64 is computed by them too, in double
precision.
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
from tsm2_tune.generator.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.tunables import EvictFirst, Tunable

THREADS = (64, 128, 256)
STRIPS = (1, 2, 4)
COLUMNS = (8, 16, 32)
PREFETCH_STAGES = ((16, 2), (32, 2), (32, 4))
MIN_BLOCKS = (1, 2, 3, 4, 6)
VECTOR_BYTES = 16
STRIP_VECTORS = 8
WARP_THREADS = 32


@dataclass(frozen=True, slots=True, order=True)
class TsmrZmmaConfig(KernelConfig):
    """Every choice that the template needs."""

    family: ClassVar[str] = "tsmr_zmma"

    threads: Annotated[int, Tunable("threads of a block", symbol="t1", letter="t")]
    strips: Annotated[int, Tunable("strips of 8 vectors of rows of A that one warp computes", letter="m")]
    columns: Annotated[int, Tunable("columns of C that one warp accumulates in registers", symbol="t2", letter="c")]
    prefetch: Annotated[
        int, Tunable("columns of A that one warp has in registers, on their way or arrived", symbol="t3", letter="p")
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


def tile_depth(config: TsmrZmmaConfig) -> int:
    """Rows of B staged at a time; twice as many stay where that is all."""
    return 32


def _block_rows(config: TsmrZmmaConfig, problem: Problem) -> int:
    width = VECTOR_BYTES // problem.dtype.element_bytes
    return config.threads // WARP_THREADS * STRIP_VECTORS * width * config.strips


def _rows_within_m(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, TsmrZmmaConfig)
    smallest = (config.threads, config.strips) == (THREADS[0], STRIPS[0])
    return smallest or _block_rows(config, candidate.problem) <= candidate.problem.m


class TsmrZmma(Family[TsmrZmmaConfig]):
    name = "tsmr_zmma"
    on_tensor_cores = True
    summary = "large or tall A times skinny B, complex, on the f64 tensor cores, A streaming into their fragments"
    template = "tsmr_zmma.cu.jinja"
    vectors_of_c = True
    dtypes = ("c64", "c128")
    rules = (
        HAS_F64_TENSOR_CORES,
        *streaming_rules(
            COLUMNS,
            PREFETCH_STAGES,
            Rule("rows-within-m", "shape", "a block of more rows than m leaves threads idle", _rows_within_m),
        ),
    )
    config_type = TsmrZmmaConfig

    def configurations(self) -> Iterator[TsmrZmmaConfig]:
        for threads, strips, columns, ahead, division, min_blocks in product(
            THREADS, STRIPS, COLUMNS, PREFETCH_STAGES, SPLITS_ROW_TILES, MIN_BLOCKS
        ):
            yield TsmrZmmaConfig(threads, strips, columns, *ahead, *division, min_blocks)

    def resources(self, config: TsmrZmmaConfig, problem: Problem) -> Resources:
        width = VECTOR_BYTES // problem.dtype.element_bytes
        # Two for each double of the sums; A's columns on their way; A as matrices of real numbers, and B.
        of_strip = width * config.columns + config.prefetch + 8 * width
        registers = config.strips * of_strip + 8 + OVERHEAD_REGISTERS
        in_flight = config.prefetch - config.prefetch // config.stages // 2
        return Resources(
            threads=config.threads,
            registers=registers,
            smem_bytes=2 * tile_depth(config) * config.columns * problem.dtype.element_bytes,
            bytes_in_flight=in_flight * STRIP_VECTORS * config.strips * VECTOR_BYTES // WARP_THREADS,
            reuse=config.columns,
        )

    def launch(self, config: TsmrZmmaConfig, problem: Problem) -> Launch:
        return Launch(
            threads=config.threads,
            rows_per_block=_block_rows(config, problem) * config.row_tiles,
            smem_bytes=self.resources(config, problem).smem_bytes,
            columns_per_block=config.columns,
            splits=config.splits,
        )

    def periods(self, config: TsmrZmmaConfig, problem: Problem) -> Periods:
        return Periods(_block_rows(config, problem), config.columns, tile_depth(config))

    def share_step(self, config: TsmrZmmaConfig, problem: Problem) -> int:
        return config.prefetch

    def traffic(self, config: TsmrZmmaConfig, problem: Problem) -> Traffic:
        return split_traffic(problem, columns=config.columns, splits=config.splits)

    def supports(self, problem: Problem) -> bool:
        return problem.dtype_name in self.dtypes

    def probe_shapes(self, config: TsmrZmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """What has branches of its own, whole and in part: blocks of rows, groups of columns, shares of k.

        In the first three B stays in shared memory, and shares are empty; in the last two a share takes three
        tiles of B. Row tiles are loaded element by element, as vectors that end within a prefetch, as whole ones, and
        so before a part-filled one.
        """
        rows, prefetch = _block_rows(config, problem), config.prefetch
        deep = (2 * tile_depth(config) + prefetch) * config.splits
        return (
            (rows + 1, 1, prefetch - 1),
            (2 * rows * config.row_tiles, 1, prefetch + 1),
            (2 * rows * config.row_tiles, 2 * config.columns + 1, 2 * prefetch),
            (42, config.columns + 1, deep - 1),
            ((2 * config.row_tiles - 1) * rows + 2, 2, deep),
        )

    def context(self, config: TsmrZmmaConfig, problem: Problem) -> dict[str, Any]:
        a_along_k, width = problem.contiguous[0] == "k", VECTOR_BYTES // problem.dtype.element_bytes
        return {
            "about": "complex A streams into fragments, B through shared memory",
            "kernel": self.name,
            "vector_bits": "float4" if width == 2 else "double2",
            "width": width,
            "one_tile": config.has_splits,  # of rows, of a block
            "most_loads": most_loads(self.resources(config, problem).registers),
            "storage": problem.storage,
            "a_along_k": a_along_k,
            "b_along_n": problem.contiguous[1] == "n",
            "c_along_n": problem.row_major_c,
            "lane_column": "threadIdx.x % 4 * 2" if a_along_k and width == 2 else "threadIdx.x % 4",
            "tile_depth": tile_depth(config),
        }


FAMILIES = (TsmrZmma(),)
