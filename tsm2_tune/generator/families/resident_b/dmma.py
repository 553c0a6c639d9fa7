"""A tall A times a small B on the f64 tensor cores: B stays in shared memory, each warp streams rows of A.

Each warp has its own pipeline in shared memory for its rows of A. B is stored in the order of the tensor core's
fragments. No warp waits for another: some multiply while others store, so tensor cores and memory are both busy. One
template serves f32, f64 and complex numbers of both. Products of f32 are exact in f64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar

from tsm2_tune.generator.config import Periods, Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES, has_f64_tensor_cores
from tsm2_tune.generator.families.family import WARP_THREADS, rule_of, vector_elements
from tsm2_tune.generator.families.resident_b.kernel import (
    PERSISTENT_RULES,
    PersistentResidentB,
    ResidentBConfig,
)
from tsm2_tune.generator.paper_model import OVERHEAD_REGISTERS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import tunable
from tsm2_tune.generator.space.rules import Rule, covering_rule
from tsm2_tune.generator.space.tunables import RingStages, Tunable
from tsm2_tune.generator.split_k import FEW_SPLITS_OF_BATCHES, MULTIPROCESSORS
from tsm2_tune.generator.tiles import covering
from tsm2_tune.generator.tiling import VECTOR_BYTES, BlockPlan

THREADS = (256, 384)
# For a small m, (threads, teams): a block computes all of its rows at once.
BLOCKS_OF_SMALL = ((128, 1), (192, 1), (320, 1), (192, 2), (256, 2), (320, 2), (384, 4), (640, 4))
COLUMNS = (8, 16, 32, 64)
DEPTH = (8, 16, 32, 64)
THROUGH = (1, 2)  # options of `copy`
# A block on each multiprocessor, or few blocks: for few rows, or for a batch.
SPLITS = (*FEW_SPLITS_OF_BATCHES, 16, 40, 64, *MULTIPROCESSORS)
BANKS_BYTES, LANES_DOWN = 128, 8  # bytes of all shared-memory banks; lanes along the rows of an mma's result
# Fastest on an H200, by element type and `columns`; first for a column-major A, then for a row-major one: (threads,
# strips, ring_k, stages, copy). With a column-major A, a warp's rows are best 256 bytes of a column.
Choices = tuple[tuple[int, int, int, int, int], ...]
WINNERS: dict[tuple[str, int], tuple[Choices, Choices]] = {
    ("f32", 64): (((256, 2, 32, 4, 1), (256, 2, 32, 4, 2)), ((256, 2, 32, 4, 1), (256, 2, 32, 3, 2))),
    ("f64", 32): (
        ((256, 2, 16, 4, 2), (256, 2, 32, 2, 2), (256, 2, 16, 3, 2)),
        ((256, 1, 32, 3, 2), (256, 1, 32, 4, 2), (384, 1, 32, 3, 2)),
    ),
    ("f64", 64): (
        ((256, 2, 16, 4, 1), (256, 2, 16, 3, 2), (256, 2, 16, 4, 2)),
        ((256, 1, 32, 3, 2), (256, 1, 32, 4, 2)),
    ),
    ("c64", 16): (((256, 4, 16, 3, 2), (384, 4, 16, 3, 2)), ((384, 2, 16, 4, 2), (256, 4, 16, 3, 2))),
    ("c64", 32): (((384, 2, 32, 3, 2), (384, 2, 32, 2, 2)), ((384, 2, 32, 2, 2), (384, 2, 32, 3, 2))),
    ("c64", 64): (((256, 2, 32, 3, 2), (256, 2, 16, 4, 2)), ((256, 2, 32, 3, 2), (256, 2, 16, 4, 2))),
    ("c128", 16): (((384, 2, 16, 3, 2),), ((256, 1, 16, 3, 2), (384, 2, 16, 3, 2))),
    ("c128", 32): (
        ((256, 2, 32, 2, 2), (256, 2, 16, 4, 2)),
        ((256, 1, 32, 3, 2), (384, 1, 32, 2, 2)),
    ),
    ("c128", 64): (
        ((256, 2, 16, 3, 2), (256, 2, 16, 3, 1), (256, 2, 16, 4, 2)),
        ((256, 2, 16, 4, 2), (256, 2, 16, 3, 1)),
    ),
}
SMALL_ROWS = 160  # the most rows per multiprocessor for a small m
# Fastest for a k of at most FEW, for either storage order of A.
SHORT_WINNERS: dict[tuple[str, int], Choices] = {
    ("f64", 64): ((256, 2, 8, 4, 1), (256, 1, 8, 4, 1)),
    ("c128", 8): ((384, 1, 8, 3, 1), (256, 1, 8, 4, 1)),
}
FEW = 8  # columns of C, or of A, up to which fused multiply-adds are fast enough


@dataclass(frozen=True, slots=True)
class ResidentBDmmaConfig(ResidentBConfig):
    family: ClassVar[str] = "resident_b_dmma"

    strips: Annotated[int, Tunable("m16 tiles of C (m8 tiles for complex types) that one warp computes")]
    columns: Annotated[int, Tunable("columns of B in shared memory, and of C in registers")]
    depth: Annotated[int, Tunable("rows of B in shared memory")]
    ring_k: Annotated[int, Tunable("k extent of one pipeline stage", is_constant=False)]
    stages: RingStages
    copy: Annotated[
        int,
        Tunable(
            "how A is copied to shared memory: through L1 and L2 (ca, 1) or only L2 (cg, 2)",
            is_constant=False,
            values=("registers", "ca", "cg"),
        ),
    ]
    splits: Annotated[int, Tunable("blocks among which all rows are divided", default=1, is_launch=True)]
    teams: Annotated[
        int, Tunable("warps of a block that compute the same rows of C and different columns", default=1)
    ] = 1


def _warp_rows(config: ResidentBDmmaConfig, problem: Problem) -> int:
    return config.strips * (8 if problem.dtype.is_complex else 16)


def pitch(config: ResidentBDmmaConfig, problem: Problem) -> int:
    """Return the distance in elements from one contiguous line of A to the next in shared memory.

    The distance avoids bank conflicts among the 8 lanes that read at the same time. If A is contiguous along k, four
    lanes read 64 bytes of one line, and the other four read 64 bytes of the line `width` lines further on. If A is
    not contiguous along k, each pair of lanes reads 32 bytes of one line, and the lines of successive pairs are 1
    line (complex numbers) or 2 lines (real numbers) apart.
    """
    element = problem.dtype.element_bytes
    products = 1 if problem.dtype.is_complex else 2
    along_k = problem.contiguous[0] == "k"
    line = config.ring_k if along_k else _warp_rows(config, problem)
    lines_on, banks = (vector_elements(problem), (64,)) if along_k else (products, (32, 96))
    return next(
        elements
        for elements in range(line, line + BANKS_BYTES, vector_elements(problem))
        if elements * element * lines_on % BANKS_BYTES in banks
    )


def least_columns(problem: Problem) -> int:
    """Return the least columns of a warp tile: each of the four lanes that share a row of C has a whole vector."""
    return max(4 * vector_elements(problem), COLUMNS[0])


def step(problem: Problem) -> int:
    """Return the products along k per step of a warp: a vector for each of four lanes, or those of an mma."""
    run = 1 if problem.dtype.is_complex else 2
    return 4 * (vector_elements(problem) if problem.contiguous[0] == "k" else run)


def _blocks(limits: DeviceLimits) -> int:
    """Return the largest option of `splits` with at most one block per multiprocessor, else the least option."""
    return max((blocks for blocks in SPLITS if blocks <= limits.sms), default=SPLITS[0])


def _whole_vectors(config: ResidentBDmmaConfig, problem: Problem) -> bool:
    whole_rows = _warp_rows(config, problem) * problem.dtype.element_bytes >= LANES_DOWN * VECTOR_BYTES
    return whole_rows and config.columns // config.teams >= least_columns(problem)


class ResidentBDmma(PersistentResidentB[ResidentBDmmaConfig]):
    on_tensor_cores = True
    summary = (
        "tall A times B of up to 64 columns on the f64 tensor cores, each warp with a pipeline for its rows of A"
    )
    about = "each warp streams its rows of A, B stays in shared memory"
    template = "resident_b/dmma.cu.jinja"
    rules = (
        HAS_F64_TENSOR_CORES,
        rule_of(
            "whole-vectors",
            "limit",
            "a lane's contiguous elements of C must be whole vectors",
            _whole_vectors,
            of=("strips", "columns", "teams"),
        ),
        rule_of(
            "whole-steps",
            "limit",
            "a pipeline stage must be a multiple of the k extent that four lanes load at a time",
            lambda config, problem: config.ring_k % step(problem) == 0,
            of=("ring_k",),
        ),
        covering_rule("columns", "n", COLUMNS, least_columns),
        covering_rule("depth", "k", DEPTH, step),
        Rule(
            "small-blocks",
            "shape",
            "if m is large, a warp should compute all columns of its rows",
            lambda c: (
                (tunable(c, "threads"), tunable(c, "teams")) not in BLOCKS_OF_SMALL
                or c.problem.m <= SMALL_ROWS * c.limits.sms
            ),
            of=("threads", "teams"),
        ),
        *PERSISTENT_RULES,
    )
    config_type = ResidentBDmmaConfig
    axes: ClassVar = {
        "threads teams strips copy": [
            *((threads, 1, strips, copy) for threads, strips, copy in product(THREADS, (1, 2, 4), THROUGH)),
            *((*block, strips, THROUGH[0]) for block, strips in product(BLOCKS_OF_SMALL, (1, 2))),
        ],
        "columns": COLUMNS,
        "depth": DEPTH,
        "ring_k": (8, 16, 32),
        "stages": (2, 3, 4, 5),
        "splits": SPLITS,
    }
    where: ClassVar = {
        "depth ring_k": lambda config: config.ring_k <= config.depth <= 4 * config.ring_k,
        "columns teams": lambda config: config.columns // config.teams >= COLUMNS[0],
    }

    def block_plan(self, config: ResidentBDmmaConfig, problem: Problem) -> BlockPlan:
        lines = _warp_rows(config, problem) if problem.contiguous[0] == "k" else config.ring_k
        place = lines * pitch(config, problem) * problem.dtype.element_bytes  # of one stage
        rings = config.threads // WARP_THREADS * config.stages * place
        b = config.depth * config.columns * 8 * problem.dtype.parts  # bytes of B, as doubles
        resources = Resources(
            threads=config.threads,
            registers=config.strips * (config.columns // config.teams + 16) + OVERHEAD_REGISTERS,
            smem_bytes=b + rings,
            bytes_in_flight=(config.stages - 1) * place // WARP_THREADS,
            reuse=config.columns // config.teams,
        )
        rows = config.threads // WARP_THREADS // config.teams * _warp_rows(config, problem)
        tile = Periods(rows, config.columns, max(config.ring_k, config.depth))
        return replace(self.persistent_block_plan(resources, tile), k_per_pass=config.depth)

    def fits(self, problem: Problem) -> bool:
        """Return whether all of B fits in shared memory. The kernel computes other problems too, part by part."""
        return super().fits(problem) and problem.n <= COLUMNS[-1] and problem.k <= DEPTH[-1]

    def probe_shapes(self, config: ResidentBDmmaConfig, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        rows = self.periods(config, problem).m
        return (
            # Several tiles of rows for a warp, less than a k tile.
            (2 * rows * config.splits + 1, 1, config.ring_k - 1),
            (min(rows, 66), 2 * config.columns + 1, 2 * config.depth + 1),  # B does not fit in shared memory
            (2 * rows + 8, config.columns, config.depth - 4),  # the last tile of rows and the last k tile are partial
            (2 * rows, config.columns + 1, config.depth - 3),  # an odd k: rows of A are not whole vectors
        )

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[ResidentBDmmaConfig, ...]:
        """Return what was fastest on an H200, a block per multiprocessor; none if other families are as fast."""
        if not has_f64_tensor_cores(limits, problem):
            return ()
        if problem.m <= SMALL_ROWS * limits.sms:
            return self._proposals_of_small(problem, limits)
        columns, depth = covering(COLUMNS, problem.n), covering(DEPTH, problem.k)
        choices: Choices = ()
        if problem.k <= FEW:
            choices = SHORT_WINNERS.get((problem.dtype_name, columns), ())
        elif problem.n > FEW:
            choices = WINNERS.get((problem.dtype_name, columns), ((), ()))[problem.contiguous[0] == "k"]
        blocks = _blocks(limits)
        return tuple(
            dict.fromkeys(
                ResidentBDmmaConfig(threads, strips, columns, depth, min(ring_k, depth), stages, copy, blocks)
                for threads, strips, ring_k, stages, copy in choices
            )
        )

    def _proposals_of_small(self, problem: Problem, limits: DeviceLimits) -> tuple[ResidentBDmmaConfig, ...]:
        """Return configurations for a small m, whose blocks compute all of their rows at once.

        A block has one warp for each warp tile of rows, or 2 or 4 warps that divide the columns of the warp tile. The
        stages of a warp's pipeline have room for all, or nearly all, of a row of A.
        """
        columns = covering(COLUMNS, max(problem.n, least_columns(problem)))
        depth = covering(DEPTH, max(problem.k, step(problem)))
        doubles = problem.dtype.component.element_bytes == 8
        ring_k, strips = (min(depth, 16), 1) if doubles else (min(depth, 32), 2)
        blocks = _blocks(limits)
        one = ResidentBDmmaConfig(THREADS[0], strips, columns, depth, ring_k, depth // ring_k + 1, 1, blocks)
        warps = -(-problem.m // (_warp_rows(one, problem) * blocks))
        found = []
        for teams in (2, 4, 1) if doubles else (4, 2, 1):
            fitting = [t for t, w in BLOCKS_OF_SMALL if w == teams and t // WARP_THREADS // w >= warps]
            if fitting and columns // teams >= least_columns(problem):
                found.append(replace(one, threads=min(fitting), teams=teams))
        return tuple(found)

    def context(self, config: ResidentBDmmaConfig, problem: Problem) -> dict[str, Any]:
        # The k extent of the mma instruction, in real products: 16 if that was faster on an H200.
        wide = problem.dtype_name == "c128" and config.columns == COLUMNS[-1] and problem.contiguous[0] != "k"
        return super().context(config, problem) | {"pitch": pitch(config, problem), "products": 16 if wide else 8}
