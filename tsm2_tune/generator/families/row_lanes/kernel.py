"""The base class of kernels in which several lanes share a row of a row-major A.

Neighbouring lanes load neighbouring vectors of a row, so that a warp's loads are coalesced. Each lane multiplies its
part of the row, and the lanes of a row add up their sums with warp shuffles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.families.family import Family, rule_of
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.tunables import Tunable

VECTOR_BYTES = (16, 8, 4)


@dataclass(frozen=True, slots=True)
class RowLanesConfig(KernelConfig):
    threads: Annotated[int, Tunable("threads of a block", symbol="t1")]
    vector_bytes: Annotated[int, Tunable("bytes of one load of A")]
    lanes: Annotated[int, Tunable("lanes that share a row of A")]


L = TypeVar("L", bound=RowLanesConfig)


def widest_vector(problem: Problem) -> int:
    """Return the bytes of the widest vector that divides rows of A; the bytes of an element if no vector does."""
    size = problem.dtype.element_bytes
    return max((b for b in VECTOR_BYTES if b >= size and problem.k * size % b == 0), default=size)


VECTORS_FIT_ROWS = rule_of(
    "vectors-fit-rows",
    "shape",
    "loads should be the widest that divide a row of A",
    lambda config, problem: config.vector_bytes == widest_vector(problem),
    of=("vector_bytes",),
)


class RowLanes(Family[L]):
    has_batches = True
    dtypes = (*FMA_DTYPES, "bf16", "f16")  # products of the last two are added up in f32

    def fits(self, problem: Problem) -> bool:
        return problem.contiguous[0] == "k" and super().fits(problem)
