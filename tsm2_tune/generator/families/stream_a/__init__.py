"""stream_a: a large A times a skinny B, or a tall A times a small B, at the memory's rate.

A is read once and streams past B, which is in shared memory; rows of C are accumulated in registers. k is split over
blocks where m alone does not fill the device. The ways to multiply differ in how a warp holds A: fma in vectors of
rows, dmma and mma16 in the fragments of tensor cores, mma16_ring in shared memory first.
"""

from tsm2_tune.generator.families.stream_a.dmma import StreamAComplexDmma, StreamADmma
from tsm2_tune.generator.families.stream_a.fma import StreamAFma
from tsm2_tune.generator.families.stream_a.mma16 import StreamAMma16, StreamATf32
from tsm2_tune.generator.families.stream_a.mma16_ring import (
    FEW_COLUMNS,
    MANY_COLUMNS,
    StreamAMma16Ring,
    StreamATf32Ring,
)
from tsm2_tune.generator.families.stream_a.tunables import (
    StreamAComplexDmmaConfig,
    StreamADmmaConfig,
    StreamAFmaConfig,
    StreamAMma16Config,
    StreamAMma16RingConfig,
    StreamATf32Config,
    StreamATf32RingConfig,
)

__all__ = [
    "FAMILIES",
    "FEW_COLUMNS",
    "MANY_COLUMNS",
    "StreamAComplexDmmaConfig",
    "StreamADmmaConfig",
    "StreamAFmaConfig",
    "StreamAMma16Config",
    "StreamAMma16RingConfig",
    "StreamATf32Config",
    "StreamATf32RingConfig",
]  # fmt: skip

FAMILIES = (
    StreamAFma(),
    StreamADmma(),
    StreamAComplexDmma(),
    StreamAMma16(),
    StreamATf32(),
    StreamAMma16Ring(),
    StreamATf32Ring(),
)
