"""Texts of table cells for the fastest kernel of a shape: cuBLAS's time and routine, times in other L2 states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tsm2_tune.tuner.measure.vendor.libraries import version_text
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.best_view import BestRow

NOT_MEASURED = "-"
Value = Callable[["BestRow"], float | None]
STATE_CELLS: dict[Cache, tuple[Value, Value]] = {  # state of the L2 -> its time in microseconds, and its gain
    Cache.CLEAN: (lambda row: row.clean_us, lambda row: row.clean_x_cublas),
    Cache.DIRTY: (lambda row: row.dirty_us, lambda row: row.dirty_x_cublas),
}


def vendor_us(row: BestRow, digits: int = 1) -> str:
    """Return the median of cuBLAS or cuBLASLt in microseconds as text, marked if the library's result is wrong."""
    return _text(row.vendor_us, digits) + ("" if row.vendor_us is None or row.vendor_right else " (wrong)")


def x_cublas(row: BestRow) -> str:
    """Return the text of the speedup over cuBLAS or cuBLASLt: the library's time divided by the kernel's time."""
    return _text(row.x_cublas, 2)


def routine(row: BestRow) -> str:
    """Return the name of the vendor's routine and the version of its library."""
    if row.vendor_routine is None or row.vendor_version is None:
        return NOT_MEASURED
    return f"{row.vendor_routine} of {version_text(row.vendor_version)}"


def other_states(rows: Sequence[BestRow], *, us: str, digits: int) -> dict[str, Callable[[BestRow], str]]:
    """Return table columns for times in other L2 states: heading -> function that returns a cell's text.

    An L2 state without a measurement has no column. `us` is the heading of time columns, with a placeholder for the
    state. `digits` is the number of decimals.
    """
    columns: dict[str, Callable[[BestRow], str]] = {}
    for cache in IN_FINALS:
        others = [row for row in rows if row.cache != cache]
        times, gains = STATE_CELLS[cache]
        for heading, value, decimals in ((us.format(cache), times, digits), (f"{cache} x cuBLAS", gains, 2)):
            if any(value(row) is not None for row in others):
                columns[heading] = partial(_cell, value=value, digits=decimals)
    return columns


def _cell(row: BestRow, value: Value, digits: int) -> str:
    return _text(value(row), digits)


def _text(value: float | None, digits: int) -> str:
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"
