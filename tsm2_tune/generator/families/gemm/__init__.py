"""General matrices: a block has a tile of C in registers, and k tiles of A and B pass through shared memory.

`bacugen` has the published search space, and `stencil` has the tunables and rules. `kernel` has the family for sums
of products, `minplus` the family for minima of sums.
"""

from __future__ import annotations

from tsm2_tune.generator.families.gemm.kernel import Gemm, GemmConfig
from tsm2_tune.generator.families.gemm.minplus import Minplus, MinplusConfig

__all__ = ["FAMILIES", "GemmConfig", "MinplusConfig"]

FAMILIES = (Gemm(), Minplus())
