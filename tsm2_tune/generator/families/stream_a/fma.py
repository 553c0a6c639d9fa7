"""stream_a with fused multiply-adds: a thread loads vectors of rows of A and computes all of these rows itself."""

from __future__ import annotations

from tsm2_tune.generator.families.stream_a.kernel import (
    VECTOR_BYTES,
    WARP_THREADS,
    Options,
    StreamA,
    rows_within_m,
    streaming_rules,
)
from tsm2_tune.generator.families.stream_a.tunables import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem

OPTIONS = Options(
    threads=(64, 128),
    rows=(1, 2),
    columns=(1, 2, 3, 4, 6, 8, 12, 16),
    prefetch_stages=((4, 2), (8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 8), (32, 8)),
    min_blocks=(1, 2, 4, 6),
)
TILE_DEPTH = 64  # rows of B in one shared-memory buffer


class StreamAFma(StreamA[StreamAFmaConfig]):
    name = "stream_a_fma"
    summary = "large A times skinny B: A streams through registers, k is split over blocks"
    template = "stream_a/fma.cu.jinja"
    c_vector_bytes = VECTOR_BYTES
    options = OPTIONS
    rules = streaming_rules(OPTIONS, rows_within_m(threads=OPTIONS.threads[0], vectors=OPTIONS.rows[0]))
    config_type = StreamAFmaConfig

    def fits(self, problem: Problem) -> bool:
        return problem.contiguous[0] == "m" and super().fits(problem)

    def warp_rows(self, config: StreamAFmaConfig, problem: Problem) -> int:
        return WARP_THREADS * config.vectors * self.vector_rows(problem)

    def vector_rows(self, problem: Problem) -> int:
        return VECTOR_BYTES // problem.dtype.element_bytes

    def few_rows(self, config: StreamAFmaConfig) -> int:
        return config.threads + 34

    def tile_depth(self, config: StreamAFmaConfig) -> int:
        return TILE_DEPTH

    def pitch(self, config: StreamAFmaConfig, problem: Problem) -> int:
        """Return the number of elements from one row of B to the next in shared memory.

        If B is column-major and `columns` a multiple of 8, a vector of padding avoids bank conflicts.
        """
        padded = config.columns % 8 == 0 and problem.contiguous[1] == "k"
        return config.columns + (self.vector_rows(problem) if padded else 0)

    def registers(self, config: StreamAFmaConfig, problem: Problem) -> int:
        rows = config.vectors * self.vector_rows(problem)
        return (rows * (config.columns + config.prefetch) + config.columns) * problem.dtype.registers
