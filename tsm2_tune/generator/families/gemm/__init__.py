"""General matrices: a block has a tile of C in registers, and k tiles of A and B pass through shared memory.

`bacugen` enumerates the published search space, and `stencil` declares the tunables and rules. `kernel` contains the
family gemm, which computes sums of products, and the family minplus, which computes minima of sums.
"""

from __future__ import annotations

from tsm2_tune.generator.families.gemm.kernel import Gemm, Minplus, MinplusConfig
from tsm2_tune.generator.families.gemm.stencil import GemmConfig

__all__ = ["FAMILIES", "GemmConfig", "MinplusConfig"]

FAMILIES = (Gemm(), Minplus())
