"""What is said of a winner, in a line and in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tsm2_tune.tuner.vendor import texts

if TYPE_CHECKING:
    from tsm2_tune.tuner.stored import BestRow


def rate_text(gbytes_per_s: float) -> str:
    """The rate in TB/s, or in GB/s where that is the handier unit."""
    return f"{gbytes_per_s / 1e3:.3g} TB/s" if gbytes_per_s >= 100 else f"{gbytes_per_s:.3g} GB/s"


def winner_text(row: BestRow) -> str:
    """One line about a winner."""
    ties = f", ties with {row.ties - 1} more" if row.ties > 1 else ""
    beside_vendor = f", {texts.x_cublas(row)} x cuBLAS" if row.x_cublas is not None else ""
    return (
        f"{row.config} {row.median_us:.1f} us{_of_state(row)}, {rate_text(row.gbytes_per_s)},"
        f" {row.percent_of_floor:.0f} % of the floor{beside_vendor}{ties}"
    )


def _of_state(row: BestRow) -> str:
    """Which state of the L2 a GPU's time is of."""
    return f" {row.cache}" if row.compute_capability else ""


def device_text(row: BestRow) -> str:
    """The heading of a table of winners: the device, and the state of its L2 where it is a GPU."""
    return f"{row.device}, L2{_of_state(row)}" if row.compute_capability else row.device


def spread_percent(row: BestRow) -> float:
    """How far the interval of its median reaches."""
    return 100 * max(row.high_us / row.median_us - 1, 1 - row.low_us / row.median_us)


def state_text(row: BestRow) -> str:
    """What a winner has to be told of; empty for most."""
    return "stale" if row.stale else "" if row.verified_in_full else "verified in part"


VENDOR_COLUMNS = ("cuBLAS us", "x cuBLAS")
WINNER_COLUMNS: dict[str, Callable[[BestRow], str]] = {  # heading -> the cell's text
    "problem": lambda row: row.problem.text,
    "configuration": lambda row: row.config,
    "median us": lambda row: f"{row.median_us:.1f}",
    "+- %": lambda row: f"{spread_percent(row):.1f}",
    "rate": lambda row: rate_text(row.gbytes_per_s),
    "% of floor": lambda row: f"{row.percent_of_floor:.1f}",
    "cuBLAS us": texts.vendor_us,
    "x cuBLAS": texts.x_cublas,
    "ties": lambda row: str(row.ties),
    "": state_text,
}


def columns_of(rows: Sequence[BestRow]) -> dict[str, Callable[[BestRow], str]]:
    """The columns of a table of these winners, which are of one state: those in which one of them has something."""
    columns = dict(WINNER_COLUMNS)
    others = texts.other_states(rows, us="{} us", digits=1)
    if all(row.vendor_us is None for row in rows):
        columns = {head: text for head, text in columns.items() if head not in VENDOR_COLUMNS}
    heads = list(columns)
    place = heads.index("ties")
    return {head: columns.get(head) or others[head] for head in (*heads[:place], *others, *heads[place:])}
