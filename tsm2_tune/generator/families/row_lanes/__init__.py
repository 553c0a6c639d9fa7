"""A row-major A with the lanes of a warp along its rows.

`kernel` has what the families share. Where A is large and B skinny, k is split over blocks and B is in shared memory;
where A is tall and B small, all of B is in registers.
"""

from __future__ import annotations

from tsm2_tune.generator.families.row_lanes.b_in_registers import TsmmRows, TsmmRowsConfig
from tsm2_tune.generator.families.row_lanes.b_in_shared_memory import TsmrRows, TsmrRowsConfig

__all__ = ["FAMILIES", "TsmmRowsConfig", "TsmrRowsConfig"]

FAMILIES = (TsmmRows(), TsmrRows())
