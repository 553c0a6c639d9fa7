"""stream_a: a large A times a skinny B, or a tall A times a small B, at the bandwidth of device memory.

A is read once, B is in shared memory, and rows of C are accumulated in registers. If C has too few rows to fill the
device, blocks split k. The families differ in how a warp loads A: fma loads vectors of rows, and dmma and mma16 load
the fragments of tensor cores. mma16_ring copies A to shared memory first.
"""

from tsm2_tune.generator.families.stream_a.kernel import (
    StreamAComplexDmma,
    StreamADmma,
    StreamADmmaConfig,
    StreamAFma,
    StreamAFmaConfig,
    StreamAMma16Config,
)
from tsm2_tune.generator.families.stream_a.mma16 import (
    FEW_COLUMNS,
    MANY_COLUMNS,
    StreamAMma16,
    StreamAMma16Ring,
    StreamATf32,
    StreamATf32Ring,
)

__all__ = ["FAMILIES", "FEW_COLUMNS", "MANY_COLUMNS", "StreamADmmaConfig", "StreamAFmaConfig", "StreamAMma16Config"]

FAMILIES = (
    StreamAFma(),
    StreamADmma(),
    StreamAComplexDmma(),
    StreamAMma16(),
    StreamATf32(),
    StreamAMma16Ring(),
    StreamATf32Ring(),
)
