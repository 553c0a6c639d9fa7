"""A tall A times a small B: B stays on the multiprocessor while rows of A pass.

`kernel` has what the families share. In `fma` a thread loads its rows of A into registers, and the grid covers the
rows of C. In `fma_ring` and `mma` A passes through a ring in shared memory, and persistent blocks take turns at the
rows: by fused multiply-adds, and on the f64 tensor cores.
"""

from __future__ import annotations

from tsm2_tune.generator.families.resident_b.fma import Tsmm, TsmmConfig, TsmmHeld, TsmmHeldConfig
from tsm2_tune.generator.families.resident_b.fma_ring import TsmmRing, TsmmRingConfig
from tsm2_tune.generator.families.resident_b.mma import TsmmMma, TsmmMmaConfig

__all__ = ["FAMILIES", "TsmmConfig", "TsmmHeldConfig", "TsmmMmaConfig", "TsmmRingConfig"]

FAMILIES = (Tsmm(), TsmmHeld(), TsmmMma(), TsmmRing())
