"""`LaunchTable`: the launches of many configurations, with NumPy arrays as fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from tsm2_tune.generator.device.occupancy import Ints
from tsm2_tune.runtime.choice.launch import FLAT_SPLITS, SHARED, Launch

Column = int | Ints  # one number for all rows of the table, or an array with a number for each row


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """The launches of a table of configurations.

    It has the fields of `Launch`, where some are arrays with a number for each row, and the methods of `Launch` that
    rules and models call.
    """

    threads: Column
    rows_per_block: Column
    smem_bytes: Column
    columns_per_block: Column = 0
    splits: int = 1
    flat_splits: int = FLAT_SPLITS
    persistent: bool = False
    lone_split: bool = False
    batched: int = 0

    @property
    def has_workspace(self) -> bool:
        return (self.splits > 1 or self.lone_split) and self.batched != SHARED

    def tiles(self, m: int, n: int) -> Column:
        """Return the number of tiles of an m x n matrix C."""
        columns = (
            n if isinstance(self.columns_per_block, int) and self.columns_per_block == 0 else self.columns_per_block
        )
        return -(-m // self.rows_per_block) * -(-n // columns)

    def blocks(self, m: int, n: int) -> Column:
        """Return the number of blocks of the grid."""
        return self.splits if self.persistent else self.tiles(m, n) * self.splits


def launch_of(*positional: Any, **named: Any) -> Launch:
    """Return a `Launch` with these fields. Return a `LaunchTable`, typed as `Launch`, if one of them is an array."""
    is_table = any(isinstance(value, np.ndarray) for value in (*positional, *named.values()))
    return cast(Launch, LaunchTable(*positional, **named)) if is_table else Launch(*positional, **named)


def with_tiles(launch: Launch, **fields: int) -> Launch:
    """Return a copy of the launch with these fields replaced. Return a `LaunchTable` if a field is an array."""
    return launch_of(**(asdict(launch) | fields))
