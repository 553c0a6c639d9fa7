"""stream_a with fused multiply-adds: a thread loads vectors of rows of A and computes all of these rows itself."""

from __future__ import annotations

from tsm2_tune.generator.families.family import WARP_THREADS, vector_elements
from tsm2_tune.generator.families.stream_a.kernel import Axes, StreamA, rows_within_m, streaming_rules
from tsm2_tune.generator.families.stream_a.tunables import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.split_k import SPLITS_ROW_TILES
from tsm2_tune.generator.tiling import VECTOR_BYTES

AXES: Axes = {
    "threads": (64, 128),
    "vectors": (1, 2),
    "columns": (1, 2, 3, 4, 6, 8, 12, 16),
    "prefetch stages": ((4, 2), (8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 8), (32, 8)),
    "splits row_tiles": SPLITS_ROW_TILES,
    "min_blocks": (1, 2, 4, 6),
}
TILE_DEPTH = 64  # rows of B in one shared-memory buffer


class StreamAFma(StreamA[StreamAFmaConfig]):
    summary = "large A times skinny B: A streams through registers, k is split over blocks"
    template = "stream_a/fma.cu.jinja"
    c_vector_bytes = VECTOR_BYTES
    axes = AXES
    rules = streaming_rules(AXES, rows_within_m(threads=64, vectors=1))
    config_type = StreamAFmaConfig

    def fits(self, problem: Problem) -> bool:
        return problem.contiguous[0] == "m" and super().fits(problem)

    def warp_rows(self, config: StreamAFmaConfig, problem: Problem) -> int:
        return WARP_THREADS * config.vectors * vector_elements(problem)

    def probe_rows(self, config: StreamAFmaConfig, problem: Problem) -> tuple[int, int]:
        return config.threads + 34, vector_elements(problem)

    def tile_depth(self, config: StreamAFmaConfig) -> int:
        return TILE_DEPTH

    def pitch(self, config: StreamAFmaConfig, problem: Problem) -> int:
        """Return the number of elements from one row of B to the next in shared memory.

        If B is column-major and `columns` a multiple of 8, a vector of padding avoids bank conflicts.
        """
        padded = config.columns % 8 == 0 and problem.contiguous[1] == "k"
        return config.columns + (vector_elements(problem) if padded else 0)

    def registers(self, config: StreamAFmaConfig, problem: Problem) -> int:
        rows = config.vectors * vector_elements(problem)
        return (rows * (config.columns + config.prefetch) + config.columns) * problem.dtype.registers
