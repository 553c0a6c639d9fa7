"""Convert a result file of `versus_cublas` to CSV, one line per cell: times with their intervals, and the winner.

Times are medians in microseconds with a clean L2 cache, with the ends of their 95 % confidence intervals. Regime G is
X^T X: its cuBLAS times are those of syrk or herk. `speed_up` is the time of the faster of cuBLAS and cuBLASLt, if its
result is correct, divided by ours. Small products are also timed as replays of a CUDA graph: `launch_floor_us` is the
time of an empty kernel.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from benchmarks.cells import in_set
from benchmarks.headline import OPPONENTS, WHO, Row, rivals_us
from tsm2_tune.generator.families import parse_config

WORDS = ("regime", "layout", "dtype", "op", "m", "n", "k")
TIMES = tuple(f"{who}_{part}us" for who in WHO for part in ("", "low_", "high_"))
GRAPHS = ("ours_graph_us", "cublas_graph_us", "launch_floor_us")
HEADS = (
    *WORDS, "set", *TIMES, *(f"{who}_verified" for who in OPPONENTS), "speed_up", "percent_of_floor", *GRAPHS,
    "sm_clock_mhz", "configuration",
)  # fmt: skip


def cells_csv(rows: Iterable[Row]) -> str:
    """Return the CSV text: a header, then one line for each row in the file's order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADS)
    writer.writerows([_text(described(row).get(head)) for head in HEADS] for row in rows)
    return text.getvalue()


def described(row: Row) -> Row:
    """Return the row with derived fields, such as the speedup."""
    rivals, config = rivals_us(row), parse_config(row["configuration"])
    return row | {
        "set": "headline" if in_set(row, "headline") else "other",
        "speed_up": None if rivals is None else rivals / row["ours_us"],
        "configuration": row["configuration"] if config is None else config.text,
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)
