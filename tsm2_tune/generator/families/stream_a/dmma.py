"""stream_a on the f64 tensor cores, for f64 and complex numbers.

A's fragments are loaded from device memory straight into registers. The rows and columns of a fragment may be
permuted if the permutations in A, B and C agree. So a lane's two rows of a fragment are adjacent in a column-major A,
and its two columns are adjacent in a row-major A. One load moves both.

A complex product is four real products. The real and imaginary parts of A are adjacent in memory, so a 16-byte load
moves both parts. The f64 tensor cores are as fast as f32 FMAs and leave most of the issue slots free. So the kernel
multiplies c64 on the f64 tensor cores too, in double precision.
"""

from __future__ import annotations

from typing import ClassVar

from tsm2_tune.generator.device.tensor_cores import HAS_F64_TENSOR_CORES
from tsm2_tune.generator.families.family import WARP_THREADS, vector_elements
from tsm2_tune.generator.families.stream_a.kernel import Axes, StreamA, rows_within_m, streaming_rules
from tsm2_tune.generator.families.stream_a.tunables import StreamAComplexDmmaConfig, StreamADmmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import RESOURCES, Rule
from tsm2_tune.generator.split_k import SPLITS_ROW_TILES
from tsm2_tune.generator.tiling import VECTOR_BYTES

REAL: Axes = {
    "threads": (64, 128, 256),
    "strips": (1, 2, 4),
    "columns": (8, 16, 32, 64),
    "prefetch stages": ((16, 2), (32, 2), (32, 4), (64, 2), (64, 4)),
    "splits row_tiles": SPLITS_ROW_TILES,
    "min_blocks": (1, 2, 3, 4, 6),
}
COMPLEX = REAL | {"columns": (8, 16, 32), "prefetch stages": ((16, 2), (32, 2), (32, 4))}
STRIP_ROWS = 16  # rows per strip, for f64
STRIP_VECTORS = 8  # vectors of rows per strip, for complex numbers
MMA_REGISTERS = 64  # ptxas 13.0 rejects m16n8k8 of doubles if a thread may have 63 registers or fewer


def _registers_for_mma(candidate: Candidate) -> bool:
    threads = candidate.resources.threads * tunable(candidate, "min_blocks")
    return candidate.limits.registers_per_sm // threads >= MMA_REGISTERS


def _rules(axes: Axes) -> tuple[Rule, ...]:
    registers_for_mma = Rule(
        "registers-for-mma",
        "limit",
        f"ptxas compiles an m16 mma of doubles only if a thread may have {MMA_REGISTERS} registers",
        _registers_for_mma,
        of=(RESOURCES, "min_blocks"),
    )
    return HAS_F64_TENSOR_CORES, registers_for_mma, *streaming_rules(axes, rows_within_m(threads=64, strips=1))


class StreamADmma(StreamA[StreamADmmaConfig]):
    summary = "large or tall A times skinny B on the f64 tensor cores, A loaded straight into fragments"
    template = "stream_a/dmma.cu.jinja"
    on_tensor_cores = True
    c_vector_bytes = VECTOR_BYTES
    dtypes: ClassVar[tuple[str, ...]] = ("f64",)
    axes = REAL
    odd_products = 2
    rules = _rules(REAL)
    config_type: type[StreamADmmaConfig] = StreamADmmaConfig

    def warp_rows(self, config: StreamADmmaConfig, problem: Problem) -> int:
        return STRIP_ROWS * config.strips

    def tile_depth(self, config: StreamADmmaConfig) -> int:
        return max(32 if config.columns > 32 else 64, config.prefetch)

    def registers(self, config: StreamADmmaConfig, problem: Problem) -> int:
        elements_of_warp = self.warp_rows(config, problem) * (config.columns + config.prefetch)
        return elements_of_warp // WARP_THREADS * problem.dtype.registers


class StreamAComplexDmma(StreamADmma):
    summary = "large or tall A times skinny B, complex, on the f64 tensor cores, A loaded straight into fragments"
    template = "stream_a/complex_dmma.cu.jinja"
    dtypes = ("c64", "c128")
    axes = COMPLEX
    odd_products = 1
    rules = _rules(COMPLEX)
    config_type = StreamAComplexDmmaConfig

    def warp_rows(self, config: StreamADmmaConfig, problem: Problem) -> int:
        return STRIP_VECTORS * vector_elements(problem) * config.strips

    def tile_depth(self, config: StreamADmmaConfig) -> int:
        return 32

    def registers(self, config: StreamADmmaConfig, problem: Problem) -> int:
        width = vector_elements(problem)
        # Sums, of two registers for each double; loads of A in flight; fragments of A and B.
        return config.strips * (width * config.columns + config.prefetch + 8 * width) + 8
