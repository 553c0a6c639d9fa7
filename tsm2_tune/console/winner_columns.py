"""Columns of the tables of winners, the fastest kernels of each problem, and texts about winners."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tsm2_tune.generator.device.roofline import rate_text
from tsm2_tune.tuner.measure.vendor import table_cells

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.best_view import BestRow
    from tsm2_tune.tuner.results.trial import Measurement

FACTORS = {"n": "{}", "t": "{}^T", "c": "{}^H", "j": "conj {}"}  # an op's letters, for column-major matrices
OF_ROWS = str.maketrans("ntcj", "tnjc")  # letters for column-major matrices -> letters for row-major matrices
SORTS: dict[str, Callable[[BestRow], tuple[float | str, ...]]] = {  # sort keys of winners, ascending
    "shape": lambda row: (row.m, row.n, row.k, row.batch),
    "us": lambda row: (row.median_us,),
    "x": lambda row: (math.inf if row.x_cublas is None else row.x_cublas,),
    "floor": lambda row: (row.percent_of_floor,),
    "family": lambda row: (row.family,),
    "trial": lambda row: (row.trial_id,),
}


def product_text(op: str) -> str:
    """Return the product of an op as a formula, such as "A^T B", for matrices in the layout of `layout_text`."""
    letters = op[:2].translate(OF_ROWS) if len(op) == 3 else op
    if op[1] == "x":
        of_a, of_b = {"t": ("A^T", "A"), "c": ("A^H", "A"), "n": ("A", "A^T"), "j": ("A", "A^H")}[letters[0]]
        return f"{of_a} {of_b}"
    return " ".join(FACTORS[letter].format(name) for letter, name in zip(letters, "AB", strict=True))


def layout_text(op: str) -> str:
    """Return the layout of the op's matrices: "row-major" if the op has three letters, else "column-major"."""
    return "row-major" if len(op) == 3 else "column-major"


def device_text(row: BestRow) -> str:
    """Return the heading of a table of winners: the device and, for a GPU, the state of its L2 cache."""
    return f"{row.device}, L2 {row.cache}" if row.compute_capability else row.device


def spread_percent(row: BestRow | Measurement) -> float:
    """Return the distance from the median time to the farther end of its confidence interval, in percent."""
    return 100 * max(row.high_us / row.median_us - 1, 1 - row.low_us / row.median_us)


def state_text(row: BestRow) -> str:
    """Return a warning about a winner, or "".

    The winner is "stale" if its kernel or its compiler has changed since, "verified in part" if some checks were
    not run.
    """
    return "stale" if row.stale else "" if row.verified_in_full else "verified in part"


def summary_text(rows: Sequence[BestRow]) -> str:
    """Return a line that compares the winners with cuBLAS; "" if cuBLAS was not timed."""
    found = [row.x_cublas for row in rows if row.x_cublas is not None]
    if not found:
        return ""
    mean = math.exp(math.fsum(map(math.log, found)) / len(found))
    faster = sum(one >= 1 for one in found)
    return f"geometric mean {mean:.2f} x cuBLAS: {faster} faster, {len(found) - faster} slower"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of winners."""

    head: str
    text: Callable[[BestRow], str]
    is_number: bool = True
    dropped: int = 0  # order in which columns are omitted on a narrow terminal; 0: never


def columns_of(rows: Sequence[BestRow]) -> tuple[Column, ...]:
    """Return the columns of the short table of winners.

    If the product or the layout differs between rows, one of the columns shows it.
    """
    is_beside_vendor = any(row.vendor_us is not None for row in rows)
    columns = (
        Column("shape", lambda row: row.problem.shape, is_number=False),
        Column("type", lambda row: row.dtype, is_number=False),
        *_differing(rows),
        Column("us", lambda row: _us_text(row.median_us)),
        Column("+- %", lambda row: f"{spread_percent(row):.1f}", dropped=2),
        Column("cuBLAS us", _vendor_text, dropped=3) if is_beside_vendor else None,
        Column("x", table_cells.x_cublas) if is_beside_vendor else None,
        Column("% floor", lambda row: f"{row.percent_of_floor:.1f}", dropped=4),
        Column("family", lambda row: row.family, is_number=False),
        Column("trial", lambda row: str(row.trial_id), dropped=5),
        _if_any(rows, Column("note", state_text, is_number=False)),
    )
    return tuple(filter(None, columns))


def _us_text(us: float) -> str:
    """Return the time as text: with one decimal below 1000 us, else without decimals."""
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def _vendor_text(row: BestRow) -> str:
    return table_cells.vendor_us(row, digits=1 if row.vendor_us is None or row.vendor_us < 1000 else 0)


def uniform_text(rows: Sequence[BestRow]) -> str:
    """Return a text with the product if it is equal in all rows, and with the layout if it is equal in all rows."""
    found = ({text(row.op) for row in rows} for text in (product_text, layout_text))
    return ", ".join(next(iter(one)) for one in found if len(one) == 1)


def long_columns_of(rows: Sequence[BestRow]) -> tuple[Column, ...]:
    """Return the columns of the long table of winners, which includes the configurations."""
    others = table_cells.other_states(rows, us="{} us", digits=1)
    is_beside_vendor = any(row.vendor_us is not None for row in rows)
    columns = (
        Column("problem", lambda row: row.problem.text, is_number=False),
        Column("configuration", lambda row: row.config, is_number=False),
        Column("us", lambda row: f"{row.median_us:.1f}"),
        Column("+- %", lambda row: f"{spread_percent(row):.1f}"),
        Column("rate", lambda row: rate_text(row.gbytes_per_s)),
        Column("% floor", lambda row: f"{row.percent_of_floor:.1f}"),
        Column("cuBLAS us", table_cells.vendor_us) if is_beside_vendor else None,
        Column("x", table_cells.x_cublas) if is_beside_vendor else None,
        *(Column(head, text) for head, text in others.items()),
        Column("ties", lambda row: str(row.ties)),
        Column("trial", lambda row: str(row.trial_id)),
        _if_any(rows, Column("note", state_text, is_number=False)),
    )
    return tuple(filter(None, columns))


def _differing(rows: Sequence[BestRow]) -> Iterator[Column]:
    """Yield one column with the product or the layout or both, whichever differ between rows."""
    texts_of: dict[str, Callable[[str], str]] = {
        "product": product_text,
        "layout": lambda op: layout_text(op).removesuffix("-major"),
    }
    kinds = [head for head, text in texts_of.items() if len({text(row.op) for row in rows}) > 1]
    if kinds:
        short = {"column": "col"} if len(kinds) == 2 else {}
        yield Column(
            kinds[0],
            lambda row: " ".join(short.get(text, text) for kind in kinds for text in (texts_of[kind](row.op),)),
            is_number=False,
        )


def _if_any(rows: Sequence[BestRow], column: Column) -> Column | None:
    return column if any(column.text(row) for row in rows) else None
