"""A large row-major A times a skinny B at the bandwidth of device memory, with k split over blocks.

One warp, or all warps of a block side by side, load long contiguous pieces of a few rows of A at a time. The rows of
B for a block's split of k stay in shared memory while the block computes one strip of rows after another. A lane
multiplies each element of B that it reads by all of its rows of A. B leaves room for the L1, through which A is
loaded. At the end of a strip the lanes of a row add up their sums with warp shuffles. If several warps share a row,
they add up their sums through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import log
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import has_f64_tensor_cores
from tsm2_tune.generator.families.family import WARP_THREADS, rule_of, vector_elements
from tsm2_tune.generator.families.row_lanes.kernel import (
    VECTOR_BYTES,
    VECTORS_FIT_ROWS,
    RowLanes,
    RowLanesConfig,
    widest_vector,
)
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.grid import Grid
from tsm2_tune.generator.space.rules import (
    REGISTERS_SPARED,
    RESOURCES,
    VECTOR_HOLDS_AN_ELEMENT,
    Rule,
    covering_rule,
)
from tsm2_tune.generator.space.tunables import EvictFirst, PartsOfK, Tunable, declared
from tsm2_tune.generator.split_k import LEAST_SHARE, most_loads
from tsm2_tune.generator.tiling import VECTOR_BYTES as PACK_BYTES
from tsm2_tune.generator.tiling import BlockPlan

THREADS_MIN_BLOCKS = ((512, 1), (256, 2), (192, 2), (128, 3), (128, 4))
ALL = 0  # as `lanes`: all threads of a block share a row
COLUMNS = (1, 2, 3, 4, 6, 8, 16, 32)
# Options of (vector_bytes, lanes, rows, vectors, stages). Narrow vectors are for rows of A that are not aligned.
READS = (
    *((16, ALL, 4, *ahead) for ahead in ((2, 2), (1, 2))),
    *((16, 32, 4, *ahead) for ahead in ((2, 2), (1, 2))),
    *((16, 8, 2, *ahead) for ahead in ((2, 2), (4, 1))),
    *((narrow, *along, 2, 2) for narrow in VECTOR_BYTES[1:] for along in ((32, 4), (8, 2))),
)
SPLITS = (1, 2, 4, 5, 8, 10, 16, 20, 32)
# Rows per block, divided by `splits`. With m = 20480 and 132 multiprocessors, 80 rows are one wave of 2 blocks per
# multiprocessor, and 54 rows one wave of 3.
ROWS_OF_SPLIT = (5, 10, 20, 27, 40, 54, 60, 80, 100, 120)
ROWS_OF_ONE_BLOCK = (40, 80, 120, 160, 200, 240)  # the same with one block per multiprocessor
# Shared memory for B per multiprocessor, of 256 KiB for shared memory and L1. Loads of A in flight need the L1: with
# at least 60 KiB of L1, A is loaded at 97 % of the bandwidth of device memory, with 28 KiB at 91 %.
SHARED_BYTES = 196 << 10
OTHER_BYTES = 1088  # per block: shared memory of the driver, and for the reduction of splits
BUSY = 0.7  # the least share of one wave of resident blocks that a grid should have
MOST_WAVES = 8
USUAL_SHARE = 2560  # preferred k per split: a longer one needs more of B at first, a shorter one more sums at last
WASTE, MOST_WASTE = 0.07, 0.25  # excess of the splits' whole loads over k, as a share of k: preferred, and at most
# The most columns for which tensor cores are not faster.
MOST_COLUMNS = {"f32": 8, "f64": 4, "c64": 4, "c128": 4, "bf16": 2, "f16": 2}
SHORT_ROWS = 1024  # the largest k for which other families are faster
# Fastest on an H200, by `columns`: threads, lanes, rows, vectors, stages, min_blocks.
PREFERRED = {
    1: (
        (512, 512, 4, 2, 2, 1), (256, 256, 4, 2, 2, 2), (512, 512, 4, 1, 2, 1),
        (256, 256, 4, 1, 2, 2), (256, 32, 4, 2, 2, 2),
    ),
    2: ((256, 256, 4, 2, 2, 2), (256, 256, 4, 1, 2, 2), (256, 32, 4, 1, 2, 2)),
    3: ((256, 256, 4, 2, 2, 2), (256, 256, 4, 1, 2, 2), (256, 32, 4, 2, 2, 2)),
    4: ((256, 256, 4, 1, 2, 2), (256, 256, 4, 2, 2, 2), (256, 32, 4, 2, 2, 2), (192, 32, 4, 1, 2, 2)),
    6: ((256, 256, 4, 1, 2, 2), (192, 32, 4, 2, 2, 2), (256, 32, 4, 1, 2, 2)),
    8: ((256, 32, 4, 1, 2, 2), (192, 32, 4, 2, 2, 2), (256, 256, 4, 1, 2, 2)),
    16: ((256, 8, 2, 2, 2, 2), (192, 8, 2, 2, 2, 2), (192, 32, 4, 1, 2, 2)),
}  # fmt: skip
NARROW = ((256, 32, 4, 2, 2, 2), (192, 32, 4, 2, 2, 2), (256, 8, 2, 2, 2, 2))  # if rows of A are not aligned
FEW_ROWS = 128  # rows of A up to which families of inner products are faster


@dataclass(frozen=True, slots=True)
class RowLanesSharedBConfig(RowLanesConfig):
    family: ClassVar[str] = "row_lanes_shared_b"

    rows: Annotated[int, Tunable("rows of A that one lane computes at a time")]
    columns: Annotated[int, Tunable("columns of C that one lane accumulates in registers", symbol="t2")]
    vectors: Annotated[int, Tunable("vectors of a row of A that one lane loads at a time", default=1)]
    stages: Annotated[int, Tunable("loads that one lane has in registers, in flight or in use", symbol="t3")]
    splits: PartsOfK
    strips: Annotated[
        int,
        Tunable(
            "strips of C that one block computes; a strip is the rows that a warp computes at a time",
            symbol="tcf",
            is_launch=True,
        ),
    ]
    min_blocks: Annotated[
        int,
        Tunable("minimum resident blocks per multiprocessor, which limits registers and shared memory", default=1),
    ]
    evict_first: EvictFirst = 1


def strip_rows(config: RowLanesSharedBConfig) -> int:
    """Return the rows of a strip, which a warp, or a block whose warps share rows, computes at a time."""
    return max(WARP_THREADS // config.lanes, 1) * config.rows


def run(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the number of elements of a row of A that one load moves; 0 if an element is wider than the load."""
    return config.vector_bytes // problem.dtype.element_bytes


def step(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the number of columns of A that the lanes that share a row load at a time."""
    return config.vectors * config.lanes * max(run(config, problem), 1)


def prefetch(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the number of columns of A that the lanes that share a row have in registers, in all stages."""
    return config.stages * step(config, problem)


def _chunk_bytes(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the bytes of shared memory for `step` rows of B, with padding of one lane's elements per load."""
    factors = max(run(config, problem), 1) * config.columns
    return config.vectors * factors * (config.lanes + 1) * problem.dtype.element_bytes


def _left_bytes(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the bytes of shared memory for the partial sums of two strips; 0 unless several warps share a row."""
    sums = config.rows * config.columns * problem.dtype.sum.element_bytes
    return 2 * config.threads // WARP_THREADS * sums if config.lanes > WARP_THREADS else 0


def chunks(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the number of chunks of `step` rows of B in shared memory: as many as fit, at least two."""
    room = SHARED_BYTES // config.min_blocks - OTHER_BYTES - _left_bytes(config, problem)
    return max(room // _chunk_bytes(config, problem), 2)


def staged_rows(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the largest k of a split whose rows of B fit in shared memory, a multiple of `prefetch`."""
    return chunks(config, problem) // config.stages * prefetch(config, problem)


def smem_bytes(config: RowLanesSharedBConfig, problem: Problem) -> int:
    """Return the bytes of dynamic shared memory per block: for B, and for partial sums."""
    return chunks(config, problem) * _chunk_bytes(config, problem) + _left_bytes(config, problem)


def _strips(rows_of_strip: int, splits: int, min_blocks: int) -> list[int]:
    """Return the options of `strips` that give a block about as many rows as is usual for this number of splits."""
    usual = ROWS_OF_SPLIT if min_blocks > 1 else ROWS_OF_ONE_BLOCK
    return list(dict.fromkeys(-(-rows * splits // rows_of_strip) for rows in usual))


def _share(config: RowLanesSharedBConfig, problem: Problem) -> int:
    return -(-problem.k // config.splits)


def _few_waves(candidate: Candidate) -> bool:
    config, problem = candidate.config, candidate.problem
    assert isinstance(config, RowLanesSharedBConfig)
    blocks, resident = candidate.launch.blocks(problem.m, problem.n), candidate.limits.sms * config.min_blocks
    if blocks > resident:
        return config.splits == 1 or blocks <= MOST_WAVES * resident
    could_divide = config.strips > _strips(strip_rows(config), config.splits, config.min_blocks)[0]
    return blocks >= BUSY * resident or not could_divide


def _wastes(variant: RowLanesSharedBConfig, problem: Problem) -> dict[int, float]:
    """Return number of splits -> waste, for splits that waste little and whose rows of B fit in shared memory.

    Each split consists of whole loads, so together the splits may exceed k. The waste is this excess, as a share of
    k.
    """
    once, depth = prefetch(variant, problem), staged_rows(variant, problem)
    shares = {splits: -(-problem.k // (splits * once)) * once for splits in SPLITS}
    return {
        splits: waste
        for splits, share in shares.items()
        if share <= depth and share * (splits - 1) < problem.k and -(-problem.k // splits) >= once
        if (waste := splits * share / problem.k - 1) <= MOST_WASTE
    }


class RowLanesSharedB(RowLanes[RowLanesSharedBConfig]):
    summary = "large row-major A times skinny B, lanes along the rows, k split over blocks"
    about = "lanes along the rows of A, B in shared memory"
    template = "row_lanes/shared_b.cu.jinja"
    beside_resources = ("splits", "strips", "evict_first")
    rules = (
        VECTOR_HOLDS_AN_ELEMENT,
        VECTORS_FIT_ROWS,
        covering_rule("columns", "n", COLUMNS),
        rule_of(
            "strips-are-vectors",
            "limit",
            "the sums of a strip must be whole vectors",
            lambda config, problem: (
                strip_rows(config) * config.columns * problem.dtype.sum.element_bytes % PACK_BYTES == 0
            ),
            of=("lanes", "rows", "columns"),
        ),
        rule_of(
            "share-worth-a-block",
            "shape",
            "a split-k slice that is shorter than a warp's loads leaves lanes idle",
            lambda config, problem: _share(config, problem) >= max(LEAST_SHARE, prefetch(config, problem)),
            of=("vector_bytes", "lanes", "vectors", "stages", "splits"),
        ),
        rule_of(
            "share-stays",
            "shape",
            "a split-k slice's rows of B should fit in shared memory, so that B is copied once",
            lambda config, problem: (
                config.splits == SPLITS[-1] or _share(config, problem) <= staged_rows(config, problem)
            ),
            of=tuple(one.name for one in declared(RowLanesSharedBConfig) if one.name != "strips"),
        ),
        Rule(
            "few-waves",
            "shape",
            "a block should run much longer than its copy of B takes, and the grid should fill the device",
            _few_waves,
            of=("lanes", "rows", "columns", "splits", "strips", "min_blocks"),
        ),
        Rule(
            "registers-in-bound",
            "shape",
            "if sums and loads need more registers than min_blocks allows, the compiler spills",
            lambda c: (
                c.resources.registers
                <= REGISTERS_SPARED * (c.limits.registers_per_sm // (c.resources.threads * tunable(c, "min_blocks")))
            ),
            of=(RESOURCES, "min_blocks"),
        ),
    )
    config_type = RowLanesSharedBConfig

    def grids(self) -> Iterable[Grid[RowLanesSharedBConfig]]:
        for (threads, min_blocks), (vector_bytes, along, *read) in product(THREADS_MIN_BLOCKS, READS):
            lanes = along or threads
            if lanes & (lanes - 1) or (min_blocks == 1 and along != ALL):
                continue
            rows = max(WARP_THREADS // lanes, 1) * read[0]
            axes = {
                "threads min_blocks vector_bytes lanes rows vectors stages": [
                    (threads, min_blocks, vector_bytes, lanes, *read)
                ],
                "columns": COLUMNS,
                "splits strips": [
                    (splits, strips) for splits in SPLITS for strips in _strips(rows, splits, min_blocks)
                ],
            }
            yield Grid(RowLanesSharedBConfig, axes)

    def block_plan(self, config: RowLanesSharedBConfig, problem: Problem) -> BlockPlan:
        dtype = problem.dtype
        in_flight = config.rows * config.vectors * config.stages * config.vector_bytes
        elements = config.rows * config.columns + 2 * vector_elements(problem)
        resources = Resources(
            threads=config.threads,
            registers=in_flight // 4 + elements * dtype.registers + OVERHEAD_REGISTERS + 16 * (dtype.registers - 1),
            smem_bytes=smem_bytes(config, problem),
            bytes_in_flight=in_flight - in_flight // config.stages // 2,
            reuse=config.columns,
        )
        tiling_fields = {
            "k_of_resident_b": staged_rows(config, problem),
            "c_vector_bytes": dtype.element_bytes,  # only lines of A count: B is copied once
        }
        return BlockPlan(
            resources,
            Periods(strip_rows(config), config.columns, prefetch(config, problem)),
            launch_fields={"rows_per_block": strip_rows(config) * config.strips},
            tiling_fields=tiling_fields,
        )

    def probe_shapes(self, config: RowLanesSharedBConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        high, once = strip_rows(config), prefetch(config, problem)
        width = vector_elements(problem)
        teams = max(config.threads // max(config.lanes, WARP_THREADS), 1)
        deep = (staged_rows(config, problem) + once + width) * config.splits
        return (
            (high - 1, 1, 2 * once * config.splits),  # a partial strip of rows
            # The last strip overlaps.
            (high * config.strips + 1, config.columns + 1, 2 * once * config.splits - width),
            (high * (2 * config.strips - 1), config.columns, once),  # all splits of k but the first are empty
            # A split's rows of B do not fit in shared memory.
            (min(high * (teams + 1), 2 * high * config.strips), 2, deep),
            (high + 3, 2 * config.columns, once * config.splits + 1),  # rows of A are not whole vectors
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[RowLanesSharedBConfig, ...]:
        """Return configurations like those that were fastest on an H200, best first.

        They compute all columns of C at once, with splits of a usual length, and all blocks are resident at the same
        time. Return none if other families are faster.
        """
        if problem.m <= FEW_ROWS or problem.k <= SHORT_ROWS:  # other families divide these better, or keep all of B
            return ()
        size = problem.dtype.element_bytes
        if problem.n > MOST_COLUMNS[problem.dtype_name] and (has_f64_tensor_cores(limits, problem) or size == 2):
            return ()
        if problem.k * size % VECTOR_BYTES[-1] and size < VECTOR_BYTES[-1]:  # some rows are not aligned to 4 bytes
            return ()
        most_columns = COLUMNS[-1] // problem.dtype.registers  # the most whose sums leave registers for loads
        columns = next(option for option in COLUMNS if option >= min(problem.n, most_columns))
        vector_bytes = widest_vector(problem)
        heavy = problem.dtype_name == "c128" and columns > 2  # sums that leave few registers for loads
        wide = PREFERRED[max(PREFERRED) if heavy else min(columns, max(PREFERRED))]
        divided = [
            self._divided(
                RowLanesSharedBConfig(threads, vector_bytes, lanes, rows, columns, vectors, stages, 1, 1, min_blocks),
                problem,
                limits,
            )
            for threads, lanes, rows, vectors, stages, min_blocks in (wide if vector_bytes == PACK_BYTES else NARROW)
        ]
        found = [choice for choice in divided if choice is not None]
        return tuple(config for _, config in sorted(found, key=lambda choice: choice[0] > WASTE))

    def _divided(
        self, variant: RowLanesSharedBConfig, problem: Problem, limits: DeviceLimits
    ) -> tuple[float, RowLanesSharedBConfig] | None:
        """Return (waste, variant), with the `splits` and `strips` that fill one wave best; None if none fit."""
        wastes = _wastes(variant, problem)
        usual = USUAL_SHARE if variant.min_blocks > 1 else problem.k  # one block per multiprocessor has room for all
        splits = min(wastes, key=lambda k: (max(wastes[k], WASTE), abs(log(problem.k / (k * usual)))), default=0)
        blocks = {
            config: self.launch(config, problem).blocks(problem.m, problem.n)
            for strips in (_strips(strip_rows(variant), splits, variant.min_blocks) if splits else ())
            if (config := replace(variant, splits=splits, strips=strips))
        }
        wave = [config for config, count in blocks.items() if count <= limits.sms * variant.min_blocks]
        return (wastes[splits], max(wave, key=lambda config: blocks[config])) if wave else None

    def context(self, config: RowLanesSharedBConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "most_loads": most_loads(self.resources(config, problem).registers),
            "chunks": chunks(config, problem),
        }
