"""Columns of the tables of winners, the fastest kernels of each problem, and texts about winners."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

from tsm2_tune.generator.device.roofline import rate_text
from tsm2_tune.tuner.measure.vendor import table_cells
from tsm2_tune.tuner.measure.vendor.table_cells import Column, number

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
    """Return "stale" if the winner's kernel or compiler has changed, "verified in part" if checks lack, else ""."""
    return "stale" if row.stale else "" if row.verified_in_full else "verified in part"


def summary_text(rows: Sequence[BestRow]) -> str:
    """Return a line that compares the winners with cuBLAS; "" if cuBLAS was not timed."""
    found = [row.x_cublas for row in rows if row.x_cublas is not None]
    if not found:
        return ""
    faster = sum(one >= 1 for one in found)
    return f"geometric mean {geometric_mean(found):.2f} x cuBLAS: {faster} faster, {len(found) - faster} slower"


Columns = dict[str, Column]  # by heading
DROPPED = ("+- %", "cuBLAS us", "% floor", "trial")  # the columns to omit on a narrow terminal, in this order


def columns_of(rows: Sequence[BestRow]) -> Columns:
    """Return the columns of the short table of winners, with the product or layout if rows differ in it."""
    return {
        "shape": lambda row: row.problem.shape,
        "type": lambda row: row.dtype,
        **_differing(rows),
        "us": lambda row: _us_text(row.median_us),
        "+- %": lambda row: f"{spread_percent(row):.1f}",
        **_beside_vendor(rows, _vendor_text),
        "% floor": number("percent_of_floor", 1),
        "family": lambda row: row.family,
        "trial": lambda row: str(row.trial_id),
        **_notes(rows),
    }


def long_columns_of(rows: Sequence[BestRow]) -> Columns:
    """Return the columns of the long table of winners, which includes the configurations."""
    return {
        "problem": lambda row: row.problem.text,
        "configuration": lambda row: row.config,
        "us": number("median_us", 1),
        "+- %": lambda row: f"{spread_percent(row):.1f}",
        "rate": lambda row: rate_text(row.gbytes_per_s),
        "% floor": number("percent_of_floor", 1),
        **_beside_vendor(rows, table_cells.vendor_us),
        **table_cells.other_states(rows, us="{} us", digits=1),
        "ties": lambda row: str(row.ties),
        "trial": lambda row: str(row.trial_id),
        **_notes(rows),
    }


def _us_text(us: float) -> str:
    """Return the time as text: with one decimal below 1000 us, else without decimals."""
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def _vendor_text(row: BestRow) -> str:
    return table_cells.vendor_us(row, digits=1 if row.vendor_us is None or row.vendor_us < 1000 else 0)


def _beside_vendor(rows: Sequence[BestRow], text: Callable[[BestRow], str]) -> Columns:
    is_measured = any(row.vendor_us is not None for row in rows)
    return {"cuBLAS us": text, "x": number("x_cublas", 2)} if is_measured else {}


def _notes(rows: Sequence[BestRow]) -> Columns:
    return {"note": state_text} if any(map(state_text, rows)) else {}


def uniform_text(rows: Sequence[BestRow]) -> str:
    """Return a text with the product if it is equal in all rows, and with the layout if it is equal in all rows."""
    found = ({text(row.op) for row in rows} for text in (product_text, layout_text))
    return ", ".join(next(iter(one)) for one in found if len(one) == 1)


def _differing(rows: Sequence[BestRow]) -> Columns:
    """Return one column with the product or the layout or both, whichever differ between rows; none if both agree."""
    has_layouts, has_products = (len({text(row.op) for row in rows}) > 1 for text in (layout_text, product_text))
    if not has_products:
        return {"layout": lambda row: layout_text(row.op).removesuffix("-major")} if has_layouts else {}
    short = {"row-major": " row", "column-major": " col"} if has_layouts else {}
    return {"product": lambda row: product_text(row.op) + short.get(layout_text(row.op), "")}
