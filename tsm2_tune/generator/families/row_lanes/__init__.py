"""Kernels for a row-major A, in which neighbouring lanes of a warp load neighbouring vectors of a row.

`kernel` has the base class. `shared_b` is for a large A and a skinny B: blocks split k, and B is in shared memory.
`register_b` is for a tall A and a small B: all of B is in registers.
"""

from __future__ import annotations

from tsm2_tune.generator.families.row_lanes.register_b import RowLanesRegisterB
from tsm2_tune.generator.families.row_lanes.shared_b import RowLanesSharedB, RowLanesSharedBConfig

__all__ = ["FAMILIES", "RowLanesSharedBConfig"]

FAMILIES = (RowLanesRegisterB(), RowLanesSharedB())
