"""Inner products: C = X^T Y with a k that is far larger than m and n.

`kernel` has the base classes. `fma`, `fma_16bit` and `dmma` load the operands straight into registers. `fma_ring`
and `mma16` copy them through shared memory.
"""

from __future__ import annotations

from tsm2_tune.generator.families.inner.dmma import (
    InnerComplexDmma,
    InnerComplexDmmaConfig,
    InnerDmma,
    InnerDmmaConfig,
)
from tsm2_tune.generator.families.inner.fma import InnerFma, InnerFmaConfig
from tsm2_tune.generator.families.inner.fma_16bit import InnerFma16Bit, InnerFma16BitConfig
from tsm2_tune.generator.families.inner.fma_ring import InnerFmaRing, InnerFmaRingConfig
from tsm2_tune.generator.families.inner.mma16 import InnerMma16, InnerMma16Config, InnerTf32, InnerTf32Config

__all__ = [
           "InnerComplexDmmaConfig",
           "InnerDmmaConfig",
           "InnerFma16BitConfig",
           "InnerFmaConfig",
           "InnerFmaRingConfig",
           "InnerMma16Config",
           "InnerTf32Config",
]  # fmt: skip

FAMILIES = (InnerFma(), InnerDmma(), InnerComplexDmma(), InnerFma16Bit(), InnerMma16(), InnerTf32(), InnerFmaRing())
