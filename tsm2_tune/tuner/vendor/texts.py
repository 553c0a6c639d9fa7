"""What a table says of the vendor beside a winner."""

from __future__ import annotations

from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.vendor.libraries import version_text

NOT_MEASURED = "-"


def vendor_us(row: BestRow, digits: int = 1) -> str:
    """The vendor's median in microseconds, marked where its answer is outside the bound."""
    if row.vendor_us is None:
        return NOT_MEASURED
    return f"{row.vendor_us:.{digits}f}" + ("" if row.vendor_right else " (wrong)")


def x_cublas(row: BestRow) -> str:
    """How many times as fast as the vendor the winner is; below 1 the vendor is faster."""
    return NOT_MEASURED if row.x_cublas is None else f"{row.x_cublas:.2f}"


def routine(row: BestRow) -> str:
    """Which routine of the vendor's it was, with the version of its library."""
    if row.vendor_routine is None or row.vendor_version is None:
        return NOT_MEASURED
    return f"{row.vendor_routine} of {version_text(row.vendor_version)}"
