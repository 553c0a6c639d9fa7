"""Inner products: C = X^T Y with a k that is far larger than m and n.

`kernel` has the base classes. `fma` and `dmma` load the operands straight into registers. `fma_ring` and `mma16` copy
them through shared memory.
"""

from __future__ import annotations

from tsm2_tune.generator.families.inner.dmma import InnerComplexDmma, InnerDmma
from tsm2_tune.generator.families.inner.fma import InnerFma, InnerFma16Bit, InnerFmaConfig
from tsm2_tune.generator.families.inner.fma_ring import InnerFmaRing
from tsm2_tune.generator.families.inner.mma16 import InnerMma16, InnerTf32

__all__ = ["FAMILIES", "InnerFmaConfig"]

FAMILIES = (InnerFma(), InnerDmma(), InnerComplexDmma(), InnerFma16Bit(), InnerMma16(), InnerTf32(), InnerFmaRing())
