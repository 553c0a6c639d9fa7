"""Texts of table cells for the fastest kernel of a shape: cuBLAS's time and routine, times in other L2 states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tsm2_tune.tuner.measure.vendor.libraries import version_text
from tsm2_tune.tuner.results.trial import IN_FINALS

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.best_view import BestRow

NOT_MEASURED = "-"
Column = Callable[["BestRow"], str]  # returns a row's cell


def number(name: str, digits: int) -> Column:
    """Return the column of a field of BestRow, with this number of decimals."""
    return lambda row: number_text(getattr(row, name), digits)


def vendor_us(row: BestRow, digits: int = 1) -> str:
    """Return the median of cuBLAS or cuBLASLt in microseconds as text, marked if the library's result is wrong."""
    return number_text(row.vendor_us, digits) + ("" if row.vendor_us is None or row.vendor_right else " (wrong)")


def routine(row: BestRow) -> str:
    """Return the name of the vendor's routine and the version of its library."""
    if row.vendor_routine is None or row.vendor_version is None:
        return NOT_MEASURED
    return f"{row.vendor_routine} of {version_text(row.vendor_version)}"


def other_states(rows: Sequence[BestRow], *, us: str, digits: int) -> dict[str, Column]:
    """Return the columns, by heading, for times in other L2 states of which a row has a measurement.

    `us` is the heading of time columns, with a placeholder for the state. `digits` is the number of decimals.
    """
    columns: dict[str, Column] = {}
    for cache in IN_FINALS:
        others = [row for row in rows if row.cache != cache]
        of_gain = (f"{cache} x cuBLAS", f"{cache}_x_cublas", 2)
        for heading, name, decimals in ((us.format(cache), f"{cache}_us", digits), of_gain):
            if any(getattr(row, name) is not None for row in others):
                columns[heading] = number(name, decimals)
    return columns


def number_text(value: float | None, digits: int) -> str:
    """Return the number with this many decimals, or a dash for None."""
    return NOT_MEASURED if value is None else f"{value:.{digits}f}"
