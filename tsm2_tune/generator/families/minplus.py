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

from tsm2_tune.generator.families.gemm import Gemm, GemmConfig
from tsm2_tune.generator.problem import MIN_PLUS, Problem

# First choices: m_blk, n_blk, k_blk, m_dim, n_dim, vector.
WINNERS = {
    "minplus_f32": (
        (128, 128, 16, 16, 16, 4),
        (128, 128, 8, 16, 16, 4),
        (128, 64, 16, 16, 8, 4),
        (64, 64, 16, 8, 8, 4),
    ),
    "minplus_f64": ((64, 64, 8, 8, 8, 2), (64, 64, 16, 16, 16, 2), (32, 32, 8, 8, 8, 2)),
}
REGISTERS_PER_SM, REGISTER_UNIT = 65536, 8  # since compute capability 3.0, and that of a thread's


@dataclass(frozen=True, slots=True, order=True)
class MinplusConfig(GemmConfig):
    """Every choice that the template needs: those of the stencil."""

    family: ClassVar[str] = "minplus"


class Minplus(Gemm):
    name = "minplus"
    summary = "the semiring (min, +), of any shape: a tile of C in registers, stripes of A and B one stripe ahead"
    template = "minplus.cu.jinja"
    dtypes = ("minplus_f32", "minplus_f64")
    config_type = MinplusConfig
    winners = WINNERS

    def supports(self, problem: Problem) -> bool:
        return problem.dtype.semiring is MIN_PLUS

    def context(self, config: GemmConfig, problem: Problem) -> dict[str, Any]:
        resources = self.resources(config, problem)
        registers = -(-resources.registers // REGISTER_UNIT) * REGISTER_UNIT
        return super().context(config, problem) | {
            "storage": f"{problem.storage}\n// in the semiring (min, +)",
            "zero": "infinity",
            # Left to itself the compiler takes more: 189 where 128 are enough for the first choice of f32.
            "bounds": f"threads, {max(1, REGISTERS_PER_SM // (resources.threads * registers))}",
        }


FAMILY = Minplus()
