"""A tall A times a small B, which each block keeps in shared memory while it streams rows of A past it.

`kernel` has the base classes. In `fma` a thread loads its rows of A into registers, and the grid covers the rows of
C. In `fma_ring` and `dmma` A passes through a pipeline in shared memory, and each persistent block computes many
tiles of rows. `fma_ring` uses fused multiply-adds, and `dmma` uses the f64 tensor cores.
"""

from __future__ import annotations

from tsm2_tune.generator.families.resident_b.dmma import ResidentBDmma
from tsm2_tune.generator.families.resident_b.fma import ResidentBFma, ResidentBFmaConfig, ResidentBFmaHeld
from tsm2_tune.generator.families.resident_b.fma_ring import ResidentBFmaRing, ResidentBFmaRingConfig

__all__ = ["FAMILIES", "ResidentBFmaConfig", "ResidentBFmaRingConfig"]

FAMILIES = (ResidentBFma(), ResidentBFmaHeld(), ResidentBDmma(), ResidentBFmaRing())
