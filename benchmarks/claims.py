"""What the pages claim of a result file of `versus_cublas`: how much faster, and where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from benchmarks.headline import OPPONENTS, WORDS, markdown, number, right_us, rival, speed_ups, words

Row = dict[str, Any]
Outcome = Literal["ahead", "even", "behind"]

MATTERS = 0.02  # of our time, that an opponent takes less
REAL_AND_COMPLEX = ("f32", "f64", "c64", "c128")
WIDTHS: dict[str, Callable[[Row], bool]] = {
    "up to 16": lambda row: row["n"] <= 16,
    "32 and 64": lambda row: row["n"] in (32, 64),
}


def outcome(row: Row) -> Outcome:
    """Beside the faster opponent: even where the 95 % intervals of the medians overlap."""
    who = rival(row)
    if who is None:
        return "ahead"
    faster, slower = ("ours", who) if row["ours_us"] <= row[f"{who}_us"] else (who, "ours")
    if row[f"{faster}_high_us"] >= row[f"{slower}_low_us"]:
        return "even"
    return "ahead" if faster == "ours" else "behind"


def lead_of_rival(row: Row) -> float:
    """The share of our time that the faster opponent takes less."""
    who = rival(row)
    return 0.0 if who is None else 1 - row[f"{who}_us"] / row["ours_us"]


def counts(rows: Iterable[Row]) -> str:
    """Markdown, a line an element type, X^T X apart: in how many cells ours is ahead, even or behind."""
    products = [row for row in rows if row["regime"] != "G"]
    names = list(dict.fromkeys(row["dtype"] for row in products))
    groups = [(name, [row for row in products if row["dtype"] == name]) for name in names]
    lines = []
    for name, group in (*groups, ("all", products)):
        found = [outcome(row) for row in group]
        leads = [lead_of_rival(row) for row, one in zip(group, found, strict=True) if one == "behind"]
        far = sum(lead > MATTERS for lead in leads)
        most = f"{100 * max(leads):.0f} %" if leads else "–"
        lines.append(
            (name, str(len(group)), *(str(found.count(one)) for one in ("ahead", "even", "behind")), str(far), most)
        )
    heads = ("dtype", "cells", "ahead", "even", "behind", f"by more than {100 * MATTERS:.0f} %", "most")
    return markdown(heads, lines, texts=("dtype",))


def behind(rows: Iterable[Row]) -> str:
    """Markdown of the cells, X^T X apart, in which an opponent takes less by what matters, farthest first."""
    found = [
        row for row in rows if row["regime"] != "G" and outcome(row) == "behind" and lead_of_rival(row) > MATTERS
    ]
    found.sort(key=lead_of_rival, reverse=True)
    heads = (*WORDS, "ours us", "cuBLAS us", "cuBLASLt us", "less by", "SM clock MHz", "configuration")
    lines = [
        (
            *words(row),
            *(number(right_us(row, who)) for who in ("ours", *OPPONENTS)),
            f"{100 * lead_of_rival(row):.0f} %",
            number(row["sm_clock_mhz"]),
            f"`{row['configuration']}`",
        )
        for row in found
    ]
    return markdown(heads, lines, texts=("configuration",))


def ranges(rows: Sequence[Row]) -> str:
    """Markdown of column-major products that take longer than starting them, a column a regime, a line an element
    type and width: least and most speed-up over the faster opponent, and percent of the floor."""
    lines = []
    for dtype in REAL_AND_COMPLEX:
        for width, is_so in WIDTHS.items():
            cells = []
            for regime in ("R", "L", "T"):
                group = [
                    row
                    for row in rows
                    if (row["regime"], row["dtype"], row["layout"]) == (regime, dtype, "column")
                    and not row["small"]
                    and is_so(row)
                ]
                shares = [row["percent_of_floor"] for row in group]
                cells.append(f"{_range(speed_ups(group), '.2f')}; {_range(shares, '.0f')} %" if group else "–")
            lines.append((dtype, width, *cells))
    return markdown(("dtype", "columns", "R", "L", "T"), lines, texts=("dtype", "columns"))


def _range(values: Sequence[float], digits: str) -> str:
    least, most = format(min(values), digits), format(max(values), digits)
    return least if least == most else f"{least} to {most}"
