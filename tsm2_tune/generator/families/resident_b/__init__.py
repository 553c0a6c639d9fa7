"""A tall A times a small B: B stays on the multiprocessor while rows of A pass.

`kernel` has what the families share. In `fma` a thread loads its rows of A into registers, and the grid covers the
rows of C. In `fma_ring` and `dmma` A passes through a ring in shared memory, and persistent blocks take turns at the
rows: by fused multiply-adds, and on the f64 tensor cores.
"""

from __future__ import annotations

from tsm2_tune.generator.families.resident_b.dmma import ResidentBDmma, ResidentBDmmaConfig
from tsm2_tune.generator.families.resident_b.fma import (
    ResidentBFma,
    ResidentBFmaConfig,
    ResidentBFmaHeld,
    ResidentBFmaHeldConfig,
)
from tsm2_tune.generator.families.resident_b.fma_ring import ResidentBFmaRing, ResidentBFmaRingConfig

__all__ = [
    "FAMILIES",
    "ResidentBDmmaConfig",
    "ResidentBFmaConfig",
    "ResidentBFmaHeldConfig",
    "ResidentBFmaRingConfig",
]

FAMILIES = (ResidentBFma(), ResidentBFmaHeld(), ResidentBDmma(), ResidentBFmaRing())
