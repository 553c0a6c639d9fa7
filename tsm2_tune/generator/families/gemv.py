"""GEMV: a matrix A times a vector x (n = 1). Tunables choose one of four ways to divide the work.

G. Zachmann, "Massively Parallel Algorithms: Matrix Algorithms" (Bremen, 2022), divides the rows of A among threads in
four ways: one thread per row; several threads per row; several rows per thread; several threads per row and several
rows per thread ("both"). Here these ways are four cases of one search space: `lanes` threads of each of `splits`
blocks share a row, and a thread has `rows` rows. `GemvConfig.decomposition` names the case.

The lecture is about GPUs with smaller caches and without wide loads, so the kernel differs from it in two ways. A
block reads x through the L1, and not through shared memory between two barriers. A load moves a vector of adjacent
columns of a row-major A, or of adjacent rows of a column-major A. For a column-major A a thread has all rows of its
vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families.family import VECTORS_OF_16_BYTES, WARP_THREADS, Family, rule_of, vector_elements
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import PartsOfK, Tunable
from tsm2_tune.generator.split_k import (
    LEAST_SHARE,
    adders,
    flat_splits,
    grid_fills_device,
    in_turns,
    share_worth_a_block,
    splits_to_prefer,
)
from tsm2_tune.generator.tiles import covering
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

Decomposition = Literal["one thread a row", "several threads a row", "several rows a thread", "both"]
DECOMPOSITIONS: tuple[Decomposition, ...] = get_args(Decomposition)

THREADS = (128, 256, 512)
LANES = (1, 2, 4, 8, 16, 32, 128, 256, 512)
VECTORS = (1, 2, 4, 8)
PREFETCH = (1, 2, 4, 8)
SPLITS = (1, 2, 3, 4, 6, 8, 13, 16, 26, 32, 48, 64, 96, 132, 192, 264, 396, 528)
MOST_WAVES = 4  # the most waves of blocks with k split
REGISTER_BYTES = 4
PREFERRED_SPLITS = 2  # the most options of `splits` to propose for a variant
SUM_BITS = {4: "unsigned", 8: "uint2", 16: "uint4"}  # by its bytes, the CUDA type that moves a vector of sums
ROWS_OF_SHORT = 4  # rows per thread, if rows are too short for several loads in flight
# Variants to try first: (threads, lanes, rows, prefetch). For a column-major A, `rows` counts vectors of rows. The
# method `corner` reduces lanes and prefetch for shorter rows, and increases lanes for a C of few rows.
Variant = tuple[int, int, int, int]
BLOCK = 0  # as `lanes`: all threads of the block
ALONG_ROWS: dict[Decomposition, tuple[Variant, ...]] = {
    "one thread a row": ((128, 1, 1, 8), (256, 1, 1, 4)),
    "several threads a row": ((256, 32, 1, 8), (256, BLOCK, 1, 8), (256, 8, 1, 8)),
    "several rows a thread": ((128, 1, 4, 4), (128, 1, 2, 8)),
    "both": ((512, BLOCK, 4, 2), (256, 32, 8, 2), (256, BLOCK, 2, 4), (256, BLOCK, 4, 2), (256, 8, 8, 1)),
}
ALONG_COLUMNS: dict[Decomposition, tuple[Variant, ...]] = {
    "one thread a row": ((256, 1, 1, 8), (128, 1, 1, 8)),
    "several threads a row": ((256, 1, 1, 8), (256, 8, 1, 8)),
    "several rows a thread": ((128, 1, 1, 8), (128, 1, 2, 8), (256, 1, 1, 8)),
    "both": ((128, 1, 1, 8), (128, 1, 2, 4), (256, 1, 1, 8), (256, 8, 1, 8)),
}


@dataclass(frozen=True, slots=True)
class GemvConfig(KernelConfig):
    family: ClassVar[str] = "gemv"

    threads: Annotated[int, Tunable("threads of a block", symbol="t1")]
    lanes: Annotated[int, Tunable("threads of a block that share a row of A")]
    rows: Annotated[int, Tunable("rows of A that one thread multiplies", symbol="tcf")]
    vector: Annotated[int, Tunable("contiguous elements of A per load")]
    prefetch: Annotated[int, Tunable("loads of each row of A that one thread has in registers", symbol="t3")]
    splits: PartsOfK

    @property
    def decomposition(self) -> Decomposition:
        """The lecture's name for how rows are divided among threads."""
        several_threads, several_rows = self.lanes * self.splits > 1, self.rows > 1
        if several_threads:
            return "both" if several_rows else "several threads a row"
        return "several rows a thread" if several_rows else "one thread a row"


def _a_along_k(problem: Problem) -> bool:
    return problem.contiguous[0] == "k"


def block_m(config: GemvConfig) -> int:
    """Return the number of rows of C that a block computes."""
    return config.threads // config.lanes * config.rows


def step(config: GemvConfig, problem: Problem) -> int:
    """Return the number of columns of A that the threads that share a row load at a time."""
    return config.lanes * (config.vector if _a_along_k(problem) else 1)


def _sums_of_tile(config: GemvConfig, problem: Problem) -> int:
    """Return the number of partial sums per row of C that the warps of a block write to shared memory."""
    teams = config.threads // config.lanes
    of_warp = min(config.lanes, WARP_THREADS) if _a_along_k(problem) else max(WARP_THREADS // teams, 1)
    return config.lanes // of_warp


def _adders(config: GemvConfig, problem: Problem) -> int:
    return adders(threads=config.threads, tile_bytes=block_m(config) * problem.dtype.sum.element_bytes)


def _line(problem: Problem) -> int:
    """Return the elements of a contiguous row or column of A."""
    return problem.k if _a_along_k(problem) else problem.m


def widest(problem: Problem) -> int:
    """Return the widest vector, in elements, that divides the contiguous rows or columns of A."""
    most = vector_elements(problem)
    return max(vector for vector in VECTORS if vector <= most and _line(problem) % vector == 0)


def _rows_within_m(config: GemvConfig, problem: Problem) -> bool:
    fewest = 1 if _a_along_k(problem) else config.vector
    smallest = (config.threads, config.rows) == (THREADS[0], fewest) and step(config, problem) >= problem.k
    return smallest or block_m(config) <= problem.m


def _least_share(candidate: Candidate) -> int:
    return max(LEAST_SHARE, candidate.block_plan.k_step)  # at least a column for each lane


class Gemv(Family[GemvConfig]):
    summary = (
        "matrix times vector: one or more threads per row of A, one or more rows per thread, k split over blocks"
    )
    template = "gemv.cu.jinja"
    has_batches = True
    dtypes = (*FMA_DTYPES, "bf16", "f16")  # sums of the last two are in f32
    rules = (
        rule_of(
            "one-column",
            "shape",
            "the kernel multiplies one vector: with more columns of B, it would read A again for each",
            lambda config, problem: problem.n == 1,
            of=(),
        ),
        VECTORS_OF_16_BYTES,
        rule_of(
            "rows-are-vectors",
            "limit",
            "a load of a column-major A contains several rows, which must belong to the same thread",
            lambda config, problem: _a_along_k(problem) or config.rows % config.vector == 0,
            of=("rows", "vector"),
        ),
        rule_of(
            "vectors-fit-lines",
            "shape",
            "if a row (or column) of A is not a multiple of the vector, it is loaded element by element",
            lambda config, problem: _line(problem) % config.vector == 0,
            of=("vector",),
        ),
        rule_of(
            "rows-within-m",
            "shape",
            "a block of more rows than m loads element by element",
            _rows_within_m,
            of=("threads", "lanes", "rows", "vector"),
        ),
        rule_of(
            "lanes-within-k",
            "shape",
            "lanes beyond the end of a row would be idle",
            lambda config, problem: config.lanes == 1 or step(config, problem) < 2 * problem.k,
            of=("lanes", "vector"),
        ),
        share_worth_a_block("threads", "lanes", "vector", least=_least_share),
        grid_fills_device(1, _least_share),
        Rule(
            "few-waves",
            "shape",
            "k should be split only until the blocks fill the device a few times",
            lambda c: (
                tunable(c, "splits") == 1
                or c.launch.blocks(c.problem.m, c.problem.n)
                <= MOST_WAVES * c.limits.sms * max(c.occupancy.blocks_per_sm, 1)
            ),
        ),
    )
    config_type = GemvConfig
    axes: ClassVar = {
        "threads": THREADS,
        "lanes": LANES,
        "rows": (1, 2, 4, 8, 16),
        "vector": VECTORS,
        "prefetch": PREFETCH,
        "splits": SPLITS,
    }
    where: ClassVar = {"threads lanes": lambda config: config.lanes <= config.threads}

    def block_plan(self, config: GemvConfig, problem: Problem) -> BlockPlan:
        dtype, along_k = problem.dtype, _a_along_k(problem)
        vector_bytes = config.vector * dtype.element_bytes
        pieces = config.rows if along_k else -(-config.rows // config.vector)
        b_bytes = vector_bytes if along_k else dtype.element_bytes
        loads = pieces * -(-vector_bytes // REGISTER_BYTES) + -(-b_bytes // REGISTER_BYTES)
        copies = max(_sums_of_tile(config, problem), _adders(config, problem) if config.splits > 1 else 1)
        resources = Resources(
            threads=config.threads,
            registers=config.prefetch * loads + config.rows * dtype.sum.registers + OVERHEAD_REGISTERS,
            smem_bytes=copies * block_m(config) * dtype.sum.element_bytes,
            bytes_in_flight=(2 * config.prefetch - 1) * pieces * vector_bytes // 2,
            reuse=1,
        )
        once = step(config, problem)
        tile = Periods(block_m(config), 1, config.prefetch * once)
        return BlockPlan(resources, tile, once, launch_fields={"flat_splits": flat_splits(block_m(config))})

    def probe_shapes(self, config: GemvConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        high, once, vector = block_m(config), step(config, problem), config.vector
        along_k = _a_along_k(problem)
        return (
            (max(high - vector, 1), 2, (config.prefetch + 1) * once + vector),  # a partial tile of rows
            (high + vector, 1, (config.prefetch + 1) * once * config.splits - vector * (once > vector)),
            (2 * high + along_k, 2, once if along_k else once * vector + 1),
            (high + 1, 3, once * config.splits + 1),  # rows and columns of A are not whole vectors
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[GemvConfig, ...]:
        """Return configurations to try first. The four decompositions alternate, beginning with "both"."""
        return in_turns(self.corner(name, problem, limits) for name in reversed(DECOMPOSITIONS))

    def corner(self, name: Decomposition, problem: Problem, limits: DeviceLimits) -> tuple[GemvConfig, ...]:
        """Return the configurations of one decomposition that suit the shape, best first; none if n is not 1."""
        if problem.n > 1:
            return ()
        several_threads, several_rows = name in DECOMPOSITIONS[1::2], name in DECOMPOSITIONS[2:]
        along_k = _a_along_k(problem)
        vector = widest(problem) if along_k or several_rows else 1
        found = []
        for threads, lanes, height, prefetch in (ALONG_ROWS if along_k else ALONG_COLUMNS)[name]:
            rows = height * (1 if along_k else vector)
            columns = -(-problem.k // (vector if along_k else 1))  # loads per row
            needed = covering(LANES, -(-threads * rows // problem.m))  # for a C of few rows
            useful = max(option for option in LANES if option < 2 * columns)
            lanes = min(max(lanes or threads, needed), useful, threads) if several_threads else 1
            ahead = min(prefetch, covering(PREFETCH, -(-columns // lanes)))
            if along_k and several_rows and ahead < prefetch:
                rows = max(rows, ROWS_OF_SHORT)
            config = GemvConfig(threads, lanes, rows, vector, ahead, 1)
            splits = self._splits(config, problem, limits) if several_threads else [1]
            found.append([replace(config, splits=number) for number in splits])
        return tuple(config for config in dict.fromkeys(in_turns(found)) if config.decomposition == name)

    def _splits(self, config: GemvConfig, problem: Problem, limits: DeviceLimits) -> list[int]:
        """Return the numbers of splits of k to try first, ranked by a model of the kernel's time."""
        return splits_to_prefer(
            limits,
            problem,
            resources=self.resources(config, problem),
            min_blocks=1,
            tiles=self.launch(config, problem).tiles(problem.m, problem.n),
            prefetch=step(config, problem),
            options=SPLITS,
        )[:PREFERRED_SPLITS]

    def context(self, config: GemvConfig, problem: Problem) -> dict[str, Any]:
        sum_bytes = problem.dtype.sum.element_bytes
        sum_width = min(VECTOR_BYTES // sum_bytes, block_m(config))  # a small tile has no more sums than rows
        return super().context(config, problem) | {
            "about": f"matrix times vector, {config.decomposition}",
            "sum_width": sum_width,
            "sum_bits": SUM_BITS[sum_width * sum_bytes],
            "flat_splits": flat_splits(block_m(config)),
            "group_splits": GROUP_SPLITS,
            "adders": _adders(config, problem),
        }


GEMV = Gemv()
FAMILIES = (GEMV,)
