"""Tables and CSV of a result file of `versus_cublas`: gains and losses against cuBLAS and cuBLASLt."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable
from typing import Literal

from benchmarks.cells import CELL_KEY, in_set
from benchmarks.tables import OPPONENTS, WHO, Row, markdown, number, rival, vendor_us
from tsm2_tune.generator.families import parse_config

Outcome = Literal["ahead", "even", "behind"]

MATTERS = 0.02  # a library counts as faster if it takes less by this fraction of our time
NAMES = {"bf16": "bf16, f16", "f16": "bf16, f16"}  # labels of element types that share a line
REGIMES = ("R", "L", "L small", "T", "T small", "G")
TIMES = tuple(f"{who}_{part}us" for who in WHO for part in ("", "low_", "high_"))
COLUMNS = (
    *CELL_KEY, "set", *TIMES, *(f"{who}_verified" for who in OPPONENTS), "speed_up", "percent_of_floor",
    "ours_graph_us", "cublas_graph_us", "launch_floor_us", "sm_clock_mhz", "configuration",
)  # fmt: skip


def outcome(row: Row) -> Outcome:
    """Return "ahead", "even" or "behind": our time compared with the faster library's.

    It is "even" if the 95 % confidence intervals of the medians overlap.
    """
    who = rival(row)
    if who is None:
        return "ahead"
    faster, slower = ("ours", who) if row["ours_us"] <= row[f"{who}_us"] else (who, "ours")
    if row[f"{faster}_high_us"] >= row[f"{slower}_low_us"]:
        return "even"
    return "ahead" if faster == "ours" else "behind"


def lead_of_rival(row: Row) -> float:
    """Return the fraction by which the faster library's time is less than ours; negative if it is more."""
    who = rival(row)
    return 0.0 if who is None else 1 - row[f"{who}_us"] / row["ours_us"]


def summary(rows: Iterable[Row]) -> str:
    """Return a Markdown table with one line per regime and element type.

    Its columns are the numbers of cells in which ours is ahead, even or behind, the speedups over the faster of
    cuBLAS and cuBLASLt, and the median percentage of the floor: the least time that memory and arithmetic allow.
    Cells whose work takes less time than a launch have lines of their own.
    """
    lines = []
    for (regime, dtype), group in _groups(rows):
        found = [outcome(row) for row in group]
        ratios = [us / row["ours_us"] for row in group if (us := vendor_us(row)) is not None]
        lines.append(
            (
                regime,
                dtype,
                str(len(group)),
                *(str(found.count(one)) for one in ("ahead", "even", "behind")),
                str(len(_lost(group))),
                *(number(of(ratios) if ratios else None, 2) for of in (statistics.median, min)),
                f"{statistics.median(row['percent_of_floor'] for row in group):.0f}",
            )
        )
    far = f"by over {100 * MATTERS:.0f} %"
    heads = ("regime", "dtype", "cells", "faster", "even", "slower", far, "speed-up", "worst", "% of floor")
    return markdown(heads, lines)


def lost(rows: Iterable[Row]) -> str:
    """Return a Markdown list of the cells in which a library is clearly faster, by regime and element type."""
    lines = []
    for (regime, dtype), group in _groups(rows):
        found = _lost(group)
        if found:
            columns = ", ".join(map(str, sorted({row["n"] for row in found})))
            cells = "1 cell" if len(found) == 1 else f"{len(found)} cells"
            most = max(map(lead_of_rival, found))
            lines.append(f"- {regime}, {dtype}: {cells}, n = {columns}; at most {100 * most:.0f} %")
    return "\n".join(lines)


def _groups(rows: Iterable[Row]) -> list[tuple[tuple[str, str], list[Row]]]:
    """Return the rows grouped by regime and element type, in this order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        regime = row["regime"] + (" small" if row["small"] else "")
        groups.setdefault((regime, NAMES.get(row["dtype"]) or str(row["dtype"])), []).append(row)
    return sorted(groups.items(), key=lambda item: REGIMES.index(item[0][0]))


def _lost(rows: Iterable[Row]) -> list[Row]:
    """Return the rows in which a library is faster by more than MATTERS, a fraction of our time."""
    return [row for row in rows if outcome(row) == "behind" and lead_of_rival(row) > MATTERS]


def cells_csv(rows: Iterable[Row]) -> str:
    """Return CSV text with a line for each row: medians with a clean L2, ends of their intervals, and the winner.

    Regime G is X^T X: its cuBLAS times are those of syrk or herk. `speed_up` is the time of the faster of cuBLAS and
    cuBLASLt, if its result is correct, divided by ours.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        us, config = vendor_us(row), parse_config(row["configuration"])
        derived = {
            "set": "headline" if in_set(row, "headline") else "other",
            "speed_up": None if us is None else us / row["ours_us"],
            "configuration": row["configuration"] if config is None else config.text,
        }
        writer.writerow(_text((row | derived).get(name)) for name in COLUMNS)
    return text.getvalue()


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)
