"""The matrix product in the semiring (min, +): C[i, j] = min over l of (A[i, l] + B[l, j]).

Source: G. Zachmann, "Massively Parallel Algorithms: Matrix Algorithms", lecture, May 2022, slides 35 to 39: all-pairs
shortest paths by a tiled matrix product with other operators. The kernel, its search space and its rules are those of
`gemm`: a tile of C is in registers, and the next k tiles of A and B are in flight.

No instruction fuses an addition and a minimum, so each value of l needs two instructions. In f32 since compute
capability 9.0, two values of l need only three instructions if no element of a k tile is negative: one instruction
computes the minimum of three integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tsm2_tune.generator.families.family import WARP_THREADS
from tsm2_tune.generator.families.gemm.kernel import Gemm, GemmConfig
from tsm2_tune.generator.problem import MIN_PLUS, Problem

# Fastest on an H200, and similar ones: m_blk, n_blk, k_blk, m_dim, n_dim, vector, load, buffers.
WINNERS: dict[str, tuple[tuple[int, ...], ...]] = {
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
LEAST = {"minplus_f32": (512, 4.0), "minplus_f64": (384, 8 / 3)}
# Of a multiprocessor, since compute capability 3.0. A warp has registers of one partition.
PARTITIONS, REGISTERS_PER_PARTITION, REGISTER_UNIT = 4, 16384, 8


@dataclass(frozen=True, slots=True)
class MinplusConfig(GemmConfig):
    family: ClassVar[str] = "minplus"


class Minplus(Gemm):
    summary = "min-plus products of any shape: a tile of C in registers, k tiles of A and B prefetched"
    template = "gemm/minplus.cu.jinja"
    dtypes = ("minplus_f32", "minplus_f64")
    config_type = MinplusConfig
    winners = WINNERS
    least = LEAST

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
