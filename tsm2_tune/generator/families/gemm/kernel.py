"""Products of matrices that are not skinny, in both semirings: the universal stencil of BACUGen.

Source: Kurzak, Tomov, Dongarra, "Autotuning GEMMs for Fermi", section 5.2. A block has a tile of C in registers. K
tiles of A and B pass through shared memory with padded rows. While one k tile is multiplied, the next k tile is
loaded into registers (Algorithm 1). Alpha and beta are applied when C is stored.

On Fermi, the search space is the published one of section 5.3, see `bacugen`. On later GPUs it also has vector
accesses to shared memory, vector loads, and several k tiles in shared memory, copied asynchronously.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import Ints, Occupancy, occupancies
from tsm2_tune.generator.dtypes import MIN_PLUS
from tsm2_tune.generator.families.family import WARP_THREADS, Family, vector_elements
from tsm2_tune.generator.families.gemm.bacugen import (
    MOST_BLK,
    MOST_DIM,
    MOST_K_BLK,
    MOST_THREADS,
    blocks,
    published_occupancy,
    with_reading_grids,
)
from tsm2_tune.generator.families.gemm.stencil import (
    BUFFERS,
    FERMI,
    LOADS,
    OF_GRIDS,
    READS,
    STENCIL_RULES,
    VECTORS,
    GemmConfig,
    at_a_time,
    line_bytes,
    with_widest_grids,
)
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.columnar import Joined, Rows
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.rules import GUIDELINE_RULES, HARDWARE_RULES, Rule
from tsm2_tune.generator.tiles import SKINNY
from tsm2_tune.generator.tiling import BlockPlan

# BACUGen's Table 1. The reuse of c64 is that of the paper's winner by Algorithm 3.
TABLE_1 = {dtype: Guidelines(512, 2, reuse) for dtype, reuse in (("f32", 3), ("c64", 4), ("f64", 2), ("c128", 2))}
# Fastest on an H200, and similar ones: m_blk, n_blk, k_blk, m_dim, n_dim, vector, load, buffers.
WINNERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "f32": (
        (128, 128, 16, 16, 16, 4, 4, 2),
        (128, 128, 16, 16, 16, 4, 1, 2),
        (128, 128, 16, 16, 16, 4, 4, 1),
        (128, 128, 16, 16, 16, 4, 1, 1),
        (128, 64, 16, 16, 8, 4, 4, 2),
        (64, 128, 16, 8, 16, 4, 1, 1),
    ),
    "f64": ((64, 64, 8, 8, 8, 2, 2, 1), (64, 64, 8, 8, 8, 2, 2, 2), (64, 64, 8, 8, 8, 2, 1, 1)),
    "c64": (
        (64, 64, 8, 8, 16, 2, 2, 2),
        (128, 64, 8, 16, 16, 2, 2, 2),
        (64, 64, 8, 8, 16, 2, 1, 2),
        (64, 64, 8, 8, 16, 2, 1, 1),
    ),
    "c128": ((32, 32, 8, 8, 8, 1, 1, 2), (64, 32, 8, 16, 8, 1, 1, 2), (64, 32, 8, 16, 8, 1, 1, 1)),
}
# (threads per multiprocessor, reuse): the least values of the fastest configurations on an H200.
LEAST = {"f32": (512, 4.0), "c64": (512, 16 / 3), "f64": (256, 4.0), "c128": (384, 4.0)}
WAYS = tuple(product(VECTORS, READS, LOADS, BUFFERS))
ENOUGH = 300  # variants that the default guidelines leave at least
BLOCKS_AT_A_TIME = 4096  # rows of `blocks()` that `configurations` expands at a time: most callers use the first ones
LINE_BYTES = (32, 64, 128)  # from a sector of device memory to a line of the L1
THREADS_STEP = 128  # one warp for each partition of a multiprocessor


class Gemm(Family[GemmConfig]):
    summary = "general matrices: a tile of C in registers, k tiles of A and B prefetched through shared memory"
    about = "a tile of C in registers, k tiles of A and B prefetched"
    template = "gemm/kernel.cu.jinja"
    rules = STENCIL_RULES
    config_type = GemmConfig
    winners = WINNERS
    least: ClassVar[dict[str, tuple[int, float]]] = LEAST

    def table(self, vector: int, read: str, load: int, buffers: int) -> GemmConfig:
        """Return a table of all configurations with these four values. Its reading grids are 0."""
        grids = dict.fromkeys(("m_dim_a", "n_dim_a", "m_dim_b", "n_dim_b"), 0)
        return self.config_type(**blocks().columns, **grids, vector=vector, read=read, load=load, buffers=buffers)

    def configurations(self) -> Iterator[GemmConfig]:
        """Yield all configurations for column-major operands. For other orders, reading grids are transposed."""
        for way in WAYS:
            for some in np.split(np.arange(len(blocks())), range(BLOCKS_AT_A_TIME, len(blocks()), BLOCKS_AT_A_TIME)):
                columns = with_reading_grids(some, Problem(1, 1, 1, "f32")).values()
                for row in zip(*(column.tolist() for column in columns), strict=True):
                    values: tuple[Any, ...] = (*row, *way)
                    yield self.config_type(*values)

    def has(self, config: GemmConfig, problem: Problem) -> bool:
        threads = config.m_dim * config.n_dim
        along_a, along_b, _ = problem.contiguous
        stripes = (
            (config.m_dim_a, config.n_dim_a, config.m_blk, along_a == "k"),
            (config.m_dim_b, config.n_dim_b, config.n_blk, along_b == "k"),
        )
        return (
            (config.vector, config.read, config.load, config.buffers) in WAYS
            and 0 < config.m_dim <= MOST_DIM
            and 0 < config.n_dim <= MOST_DIM
            and threads % WARP_THREADS == 0
            and threads <= MOST_THREADS
            and 0 < config.k_blk <= MOST_K_BLK
            and 0 < config.m_blk <= MOST_BLK
            and 0 < config.n_blk <= MOST_BLK
            and config.m_blk % config.m_dim == config.n_blk % config.n_dim == 0
            and all(
                along * across == threads
                and (config.k_blk if along_k else lines) % along == 0
                and (lines if along_k else config.k_blk) % across == 0
                for along, across, lines, along_k in stripes
            )
        )

    def kept_in_tables(
        self, problem: Problem, limits: DeviceLimits, guidelines: Guidelines, rules: Sequence[Rule]
    ) -> tuple[Sequence[Candidate], Counter[str]]:
        dropped = Counter[str]()
        tables = self._tables(problem, limits, guidelines, rules, dropped)
        return Joined([Rows(one) for one in tables]), dropped

    def _tables(
        self,
        problem: Problem,
        limits: DeviceLimits,
        guidelines: Guidelines,
        rules: Sequence[Rule],
        dropped: Counter[str],
    ) -> list[Candidate]:
        """Return the kept candidates as tables, one for each of WAYS, and add the dropped ones to `dropped`."""
        return [
            self._kept(Candidate(self, self.table(*one), problem, limits, guidelines), rules, dropped) for one in WAYS
        ]

    def _kept(self, candidate: Candidate, rules: Sequence[Rule], dropped: Counter[str]) -> Candidate:
        """Return a table of the candidates that the rules keep, with reading grids.

        Add the number of candidates that each rule drops to `dropped`. Rules that do not depend on reading grids are
        applied first, to a table without reading grids. A row of this table counts as many candidates as it has
        reading grids. Then the reading grids are added, and the other rules are applied.
        """
        every, config = blocks(), candidate.config
        assert isinstance(config, GemmConfig)
        rows, variants, left = np.arange(len(every)), every.variants, candidate
        for rule in rules:
            keeps: Any = True if rule in OF_GRIDS or not len(rows) else rule.keeps(left)  # a bool, or one per row
            if not np.all(keeps):
                keeps, before = np.broadcast_to(keeps, rows.shape), int(variants.sum())
                rows, variants = rows[keeps], variants[keeps]
                dropped[rule.name] += before - int(variants.sum())
                few = {name: column[rows] for name, column in every.columns.items()}
                left = replace(candidate, config=replace(config, **few))
        columns = with_reading_grids(rows, candidate.problem)
        for rule in OF_GRIDS:
            read = replace(candidate, config=replace(config, **columns))
            keeps = np.asarray(rule.keeps(read))
            dropped[rule.name] += int((~keeps).sum())
            columns = {name: column[keeps] for name, column in columns.items()}
        return replace(candidate, config=replace(config, **columns))

    @cache  # noqa: B019, since a family lives as long as the program
    def guidelines(self, problem: Problem, limits: DeviceLimits) -> Guidelines:
        """Return guidelines that leave some hundreds of variants on this device. On Fermi return the paper's Table 1.

        The thresholds for threads and for reuse are the least values among the fastest variants on an H200. The
        threshold for threads is reduced until at least 300 variants remain. Then the threshold for bytes per load is
        the largest that leaves at least 300 variants.
        """
        if limits.compute_capability[0] == FERMI:
            return TABLE_1[problem.dtype.element_name]
        threads, reuse = self.least[problem.dtype_name]
        found = Guidelines(0, 2, reuse, LINE_BYTES[0])
        for fewer in range(threads, -1, -THREADS_STEP):
            found = replace(found, min_threads_per_sm=fewer)
            lines = self._line_bytes(problem, limits, found)
            if len(lines) >= ENOUGH:
                break
        longest = max((line for line in LINE_BYTES if (lines >= line).sum() >= ENOUGH), default=LINE_BYTES[0])
        return replace(found, min_line_bytes=longest)

    def _line_bytes(self, problem: Problem, limits: DeviceLimits, guidelines: Guidelines) -> Ints:
        """Return an array with the result of `line_bytes` for each variant that the rules keep."""
        rules = (*self.rules, *HARDWARE_RULES, *GUIDELINE_RULES)
        tables = self._tables(problem, limits, guidelines, rules, Counter())
        configs = (table.config for table in tables)
        return np.concatenate([line_bytes(one, problem) for one in configs if isinstance(one, GemmConfig)])

    def block_plan(self, config: GemmConfig, problem: Problem) -> BlockPlan:
        """Return a block's tile, and its resources by the formulas of Algorithm 3.

        A thread has registers for its sums and its elements of A and B. Bytes in flight need registers too, unless
        shared memory has several k tiles.
        """
        threads, dtype = config.m_dim * config.n_dim, problem.dtype
        m_thr, n_thr = config.m_blk // config.m_dim, config.n_blk // config.n_dim
        ahead = (config.m_blk + config.n_blk) * config.k_blk // threads
        staged = (config.m_blk + config.vector) * config.k_blk
        if config.vector == 1:
            staged += (config.k_blk + 1) * config.n_blk
        else:
            staged += (config.n_blk + config.vector) * config.k_blk
        held = ahead if config.buffers == 1 else 0
        resources = Resources(
            threads=threads,
            registers=(m_thr * n_thr + m_thr + n_thr + held) * dtype.registers + OVERHEAD_REGISTERS,
            smem_bytes=config.buffers * staged * dtype.element_bytes,
            bytes_in_flight=max(config.buffers - 1, 1) * ahead * dtype.element_bytes,
            reuse=dtype.parts * m_thr * n_thr / (m_thr + n_thr),
        )
        return BlockPlan(resources, Periods(config.m_blk, config.n_blk, config.k_blk))

    def occupancy(self, resources: Resources, limits: DeviceLimits) -> Occupancy:
        """Return the occupancy, calculated from estimated resources. On Fermi use the formula of the paper."""
        if limits.compute_capability[0] == FERMI:
            return published_occupancy(resources, limits, registers=resources.registers - OVERHEAD_REGISTERS)
        if isinstance(resources.threads, np.ndarray):
            return occupancies(
                limits,
                threads=resources.threads,
                registers=np.asarray(resources.registers),
                smem_bytes=np.asarray(resources.smem_bytes),
            )
        return super().occupancy(resources, limits)

    def fits(self, problem: Problem) -> bool:
        return super().fits(problem) and min(problem.m, problem.n) > SKINNY

    def probe_shapes(self, config: GemmConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        m_blk, n_blk, k_blk = config.m_blk, config.n_blk, config.k_blk
        return (
            (m_blk, 2 * n_blk, 2 * k_blk),  # two whole tiles side by side
            (2 * m_blk + 1, n_blk + 1, 2 * k_blk + 1),
            (m_blk + 2, n_blk + 2, 2 * k_blk + 2),  # only some vectors are aligned
            (max(m_blk // 2 - 1, 1), n_blk + 1, 2 * k_blk),  # less than half of a tile in one direction
            (m_blk + 1, max(n_blk // 2 - 1, 1), 2 * k_blk),  # and in the other
            (m_blk + 1, 2 * n_blk - 1, max(k_blk - 1, 1)),
            (max(m_blk - 1, 1), n_blk + 1, k_blk + 1),
            (m_blk + 1, max(n_blk - 1, 1), k_blk),
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[GemmConfig, ...]:
        """Return the configurations that were fastest on an H200, best first; none on Fermi."""
        if limits.compute_capability[0] == FERMI:
            return ()
        winners = self.winners[problem.dtype_name]
        found = (with_widest_grids(self.config_type, problem, *numbers) for numbers in winners)
        return tuple(dict.fromkeys(filter(None, found)))

    def context(self, config: GemmConfig, problem: Problem) -> dict[str, Any]:
        wide_a, wide_b = at_a_time(config.load, config.buffers, problem)
        bits = problem.dtype.component.c_type
        return super().context(config, problem) | {
            "bounds": "threads",
            "zero": "scalar(0)",  # the value of a k tile's elements outside of A or B
            "bits": f"{bits}2",  # the CUDA type of two real numbers
            "piece_bits": f"{bits}{config.load * problem.dtype.parts}",  # the CUDA type that a thread loads at a time
            "read_by": READS[config.read],
            "wide_a": wide_a,
            "wide_b": wide_b,
            "squares": (config.vector == vector_elements(problem) and config.m_dim % 2 == config.n_dim % 2 == 0),
        }


# Fastest on an H200, and similar ones: columns as in WINNERS.
MINPLUS_WINNERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "minplus_f32": (
        (128, 64, 16, 16, 8, 4, 1, 1),
        (64, 64, 16, 8, 8, 4, 4, 2),
        (128, 64, 16, 16, 8, 4, 4, 1),
        (128, 128, 16, 16, 16, 4, 4, 2),
    ),
    "minplus_f64": (
        (64, 64, 16, 16, 8, 2, 1, 1),
        (64, 64, 16, 16, 8, 2, 2, 1),
    ),
}
# (threads per multiprocessor, reuse): the least values. In f64 a sum and a minimum take much longer than a
# multiply-add, so less reuse is enough.
MINPLUS_LEAST = {"minplus_f32": (512, 4.0), "minplus_f64": (384, 8 / 3)}
# Of a multiprocessor, since compute capability 3.0. A warp has registers of one partition.
PARTITIONS, REGISTERS_PER_PARTITION, REGISTER_UNIT = 4, 16384, 8


@dataclass(frozen=True, slots=True)
class MinplusConfig(GemmConfig):
    family: ClassVar[str] = "minplus"


class Minplus(Gemm):
    """The matrix product in the semiring (min, +): C[i, j] = min over l of (A[i, l] + B[l, j]).

    Source: G. Zachmann, "Massively Parallel Algorithms: Matrix Algorithms", lecture, May 2022, slides 35 to 39:
    all-pairs shortest paths by a tiled matrix product with other operators.

    No instruction fuses an addition and a minimum, so each value of l needs two instructions. In f32 since compute
    capability 9.0, two values of l need only three instructions if no element of a k tile is negative: one
    instruction computes the minimum of three integers.
    """

    summary = "min-plus products of any shape: a tile of C in registers, k tiles of A and B prefetched"
    template = "gemm/minplus.cu.jinja"
    dtypes = ("minplus_f32", "minplus_f64")
    config_type = MinplusConfig
    winners = MINPLUS_WINNERS
    least = MINPLUS_LEAST

    def fits(self, problem: Problem) -> bool:
        return problem.dtype.semiring is MIN_PLUS

    def context(self, config: GemmConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "zero": "infinity",
            "bounds": f"threads, {self._blocks(config, problem)}",
        }

    def _blocks(self, config: GemmConfig, problem: Problem) -> int:
        """Return the least blocks per multiprocessor for __launch_bounds__, which bounds a thread's registers.

        The bound is one allocation unit more than the estimated registers. Without a bound, or with the estimate as
        the bound, a product of 4096x4096x4096 in f32 is slower on an H200. With 128 x 128 tiles it takes 4904 us, but
        5315 us without a bound, since the compiler uses 135 registers and one block fewer is resident. With 128 x 64
        tiles it takes 4651 us, but 5253 us with the estimate as the bound, since the compiler spills registers.
        """
        resources = self.resources(config, problem)
        registers = (resources.registers // REGISTER_UNIT + 2) * REGISTER_UNIT
        warps = PARTITIONS * (REGISTERS_PER_PARTITION // (WARP_THREADS * registers))
        return max(1, warps * WARP_THREADS // resources.threads)
