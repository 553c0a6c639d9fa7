"""stream_a: a large A times a skinny B, or a tall A times a small B, at the memory's rate.

A is read once and streams past B, which is in shared memory; rows of C are accumulated in registers. k is split over
blocks where m alone does not fill the device. The ways to multiply differ in how a warp holds A: fma in vectors of
rows, f64 and mma16 in the fragments of tensor cores, mma16_ring in shared memory first.
"""

from tsm2_tune.generator.families.stream_a.f64 import TsmrMma, TsmrZmma
from tsm2_tune.generator.families.stream_a.fma import Tsmr
from tsm2_tune.generator.families.stream_a.mma16 import TsmrHalf, TsmrTf32
from tsm2_tune.generator.families.stream_a.mma16_ring import FEW_COLUMNS, MANY_COLUMNS, TsmrHalfRing, TsmrTf32Ring
from tsm2_tune.generator.families.stream_a.tunables import (
    TsmrConfig,
    TsmrHalfConfig,
    TsmrHalfRingConfig,
    TsmrMmaConfig,
    TsmrTf32Config,
    TsmrTf32RingConfig,
    TsmrZmmaConfig,
)

__all__ = [
    "FAMILIES",
    "FEW_COLUMNS",
    "MANY_COLUMNS",
    "TsmrConfig",
    "TsmrHalfConfig",
    "TsmrHalfRingConfig",
    "TsmrMmaConfig",
    "TsmrTf32Config",
    "TsmrTf32RingConfig",
    "TsmrZmmaConfig",
]  # fmt: skip

FAMILIES = (Tsmr(), TsmrMma(), TsmrZmma(), TsmrHalf(), TsmrTf32(), TsmrHalfRing(), TsmrTf32Ring())
