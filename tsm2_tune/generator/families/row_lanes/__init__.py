"""A row-major A with the lanes of a warp along its rows.

`kernel` has what the families share. Where A is large and B skinny, k is split over blocks and B is in shared memory;
where A is tall and B small, all of B is in registers.
"""

from __future__ import annotations

from tsm2_tune.generator.families.row_lanes.register_b import RowLanesRegisterB, RowLanesRegisterBConfig
from tsm2_tune.generator.families.row_lanes.shared_b import RowLanesSharedB, RowLanesSharedBConfig

__all__ = ["FAMILIES", "RowLanesRegisterBConfig", "RowLanesSharedBConfig"]

FAMILIES = (RowLanesRegisterB(), RowLanesSharedB())
