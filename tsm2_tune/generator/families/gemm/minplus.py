"""The product of matrices in the semiring (min, +): C[i, j] = min over l of (A[i, l] + B[l, j]).

Source: G. Zachmann, "Massively Parallel Algorithms: Matrix Algorithms", lecture, May 2022, slides 35 to 39: shortest
paths between all pairs of nodes by the tiled product of matrices, with other operators. The kernel is `gemm`'s, with
its space and its rules: a tile of C in registers, stripes of A and B through shared memory one stripe ahead.

An addition and a minimum have no fused instruction. In f32 two lengths at a time are compared with the least so far,
in one instruction for integers that compute capability 9.0 has, wherever no number of a stripe has a sign: three
instructions for two products, and four elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tsm2_tune.generator.families.gemm.bacugen import WARP_THREADS
from tsm2_tune.generator.families.gemm.kernel import Gemm, GemmConfig
from tsm2_tune.generator.problem import MIN_PLUS, Problem

# What won on an H200, and its neighbours: m_blk, n_blk, k_blk, m_dim, n_dim, vector, load, buffers.
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
# In f64 a sum and a minimum take so much longer than a multiply-add that less reuse is enough.
LEAST = {"minplus_f32": (512, 4.0), "minplus_f64": (384, 8 / 3)}
# Since compute capability 3.0; a warp lives in one of the partitions.
PARTITIONS, REGISTERS_PER_PARTITION, REGISTER_UNIT = 4, 16384, 8


@dataclass(frozen=True, slots=True)
class MinplusConfig(GemmConfig):
    """Every choice that the template needs: those of the stencil."""

    family: ClassVar[str] = "minplus"


class Minplus(Gemm):
    name = "minplus"
    summary = "the semiring (min, +), of any shape: a tile of C in registers, stripes of A and B one stripe ahead"
    template = "gemm/minplus.cu.jinja"
    dtypes = ("minplus_f32", "minplus_f64")
    config_type = MinplusConfig
    winners = WINNERS
    least = LEAST

    def supports(self, problem: Problem) -> bool:
        return problem.dtype.semiring is MIN_PLUS

    def context(self, config: GemmConfig, problem: Problem) -> dict[str, Any]:
        return super().context(config, problem) | {
            "zero": "infinity",
            "bounds": f"threads, {self._blocks(config, problem)}",
        }

    def _blocks(self, config: GemmConfig, problem: Problem) -> int:
        """Return how many blocks a multiprocessor shall have room for, with a unit of registers more than the
        formula's.

        Left to itself the compiler takes 135 where with 128 a block more fits: on an H200, f32 at 4096 by tiles of
        128 x 128, 5315 us and not 4904. Held to the formula's very number it spills: by 128 x 64 5253 us, not 4651.
        """
        resources = self.resources(config, problem)
        registers = (resources.registers // REGISTER_UNIT + 2) * REGISTER_UNIT
        warps = PARTITIONS * (REGISTERS_PER_PARTITION // (WARP_THREADS * registers))
        return max(1, warps * WARP_THREADS // resources.threads)
