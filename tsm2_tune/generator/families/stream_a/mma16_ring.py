"""stream_a on tensor cores in bf16, f16, TF32 and 3xTF32: A passes through a pipeline in shared memory.

The kernel is for a C of so many columns that their sums leave no registers to load A ahead. Each warp copies its own
rows of A to shared memory with coalesced 16-byte accesses, and loads them from there as fragments.
"""

from __future__ import annotations

from typing import ClassVar

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.tensor_cores import HAS_HALF_TENSOR_CORES
from tsm2_tune.generator.families.stream_a.kernel import VECTOR_BYTES, WARP_THREADS, Options
from tsm2_tune.generator.families.stream_a.mma16 import Mma16
from tsm2_tune.generator.families.stream_a.tunables import Mma16Config, StreamAMma16RingConfig, StreamATf32RingConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule, columns_within_n
from tsm2_tune.generator.split_k import LEAST_SHARE, SPLITTING_RULES

LANE_ROWS = 8
OPTIONS = Options(
    threads=(128, 256),
    rows=(LANE_ROWS,),
    columns=(32, 64),
    prefetch_stages=((32, 2), (64, 2), (64, 4), (128, 2), (128, 4)),
    min_blocks=(1, 2, 3),
)
SMALLEST_GROUP = 32  # the least columns of A in a stage, with which a lane copies 16 bytes at a time
FEW_COLUMNS = 16  # columns of C up to which registers have room for enough of A

# Proposals for a large A, by `columns`: threads, prefetch, stages, min_blocks.
COLUMN_MAJOR: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((128, 128, 4, 2), (128, 64, 2, 3), (256, 128, 4, 1)),
    64: ((256, 128, 4, 1), (128, 128, 4, 2)),
}
ROW_MAJOR: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((256, 128, 2, 1), (128, 128, 2, 2)),
    64: ((256, 128, 2, 1), (256, 128, 4, 1)),
}
# Proposals for a small k, by `columns`: prefetch, stages, row_tiles, min_blocks.
SHORT: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    32: ((128, 4, 8, 2), (64, 2, 8, 3), (128, 4, 4, 2)),
    64: ((128, 2, 4, 2), (64, 2, 8, 2), (128, 2, 8, 2)),
}

MANY_COLUMNS = Rule(
    "ring-for-many-columns",
    "shape",
    "with few columns of C, registers hold enough of A, and shared memory is slower",
    lambda c: c.problem.n > FEW_COLUMNS,
    of=(),
)


def _group(candidate: Candidate) -> int:
    """Return the number of columns of A in one pipeline stage."""
    return tunable(candidate, "prefetch") // tunable(candidate, "stages")


class StreamAMma16Ring(Mma16):
    name = "stream_a_mma16_ring"
    summary = (
        "large or tall A times B of many columns in 16 bits on the tensor cores,"
        " A through a pipeline in shared memory"
    )
    ring_of_a = True
    options = OPTIONS
    rules: ClassVar[tuple[Rule, ...]] = (
        MANY_COLUMNS,
        columns_within_n(OPTIONS.columns),
        Rule(
            "group-within-k",
            "shape",
            "a pipeline stage of more than k columns of A would be partly empty",
            lambda c: _group(c) <= max(c.problem.k, SMALLEST_GROUP),
        ),
        Rule(
            "runs-are-pieces",
            "limit",
            "four lanes read 16 bytes each of a row of A in a pipeline stage",
            lambda c: c.problem.contiguous[0] != "k" or _group(c) * c.problem.dtype.element_bytes >= 4 * VECTOR_BYTES,
        ),
        HAS_HALF_TENSOR_CORES,
        *SPLITTING_RULES,
    )
    config_type: type[Mma16Config] = StreamAMma16RingConfig

    def registers(self, config: Mma16Config, problem: Problem) -> int:
        sums = self.warp_rows(config, problem) * config.columns // WARP_THREADS
        return sums + 4 * config.lane_rows + config.columns // 2

    def ring_bytes(self, config: Mma16Config, problem: Problem) -> int:
        return self.block_rows(config, problem) * config.prefetch * problem.dtype.element_bytes

    def proposals(self, problem: Problem, limits: DeviceLimits) -> tuple[Mma16Config, ...]:
        """Return configurations like those that were fastest on an H200, best first; none for at most 16 columns.

        They compute all columns of C at once. A row-major A is copied in whole 128-byte lines of memory.
        """
        if problem.n <= FEW_COLUMNS:
            return ()
        columns = next((option for option in OPTIONS.columns if option >= problem.n), OPTIONS.columns[-1])
        divisor = problem.dtype.element_bytes // 2  # f32: half as many elements, the same bytes in flight
        if problem.k < 2 * LEAST_SHARE:
            return tuple(
                self.config_type(128, LANE_ROWS, columns, p // divisor, s, 1, row_tiles, least)
                for p, s, row_tiles, least in SHORT[columns]
                if p // s <= max(problem.k, SMALLEST_GROUP)
            )
        variants = (ROW_MAJOR if problem.contiguous[0] == "k" else COLUMN_MAJOR)[columns]
        chosen = [self.config_type(t, LANE_ROWS, columns, p // divisor, s, 1, 1, b) for t, p, s, b in variants]
        return self.one_wave_first(chosen, problem, limits)


class StreamATf32Ring(StreamAMma16Ring):
    name = "stream_a_tf32_ring"
    summary = "large or tall A times B of many columns in TF32 or 3xTF32, A through a pipeline in shared memory"
    dtypes = ("tf32", "3xtf32")
    config_type = StreamATf32RingConfig
