"""The tables of docs/minplus.md, from a result file of timed configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.tables import markdown, number

Row = Mapping[str, Any]

MOST_OF_A_PROBLEM = 4  # limit of the configurations per problem in the table
BOUND, UNBOUND, GENERATED = "registers by the formula", "registers unbounded", "as generated"
VARIANTS = (BOUND, "unrolled by 4", "unrolled by 2", "not unrolled", UNBOUND)
FLOPS_PER_PRODUCT = 2


def tables(found: Row) -> dict[str, str]:
    """Return {name of a region in docs: Markdown}."""
    return {
        "minplus-fastest": fastest(found["rows"], found["gflops"]),
        "minplus-tried": tried(found["rows"]),
        "minplus-values": by_values(found["values"], found["gflops"]),
    }


def fastest(rows: Sequence[Row], gflops: Mapping[str, float]) -> str:
    """Return a Markdown table of the fastest configurations without spills, several for each problem."""
    heads = ("m = n = k", "dtype", "op", "configuration", "registers", "us", "TFLOP/s", "% of ceiling")
    lines = []
    every = [row for row in rows if row["variant"] in (BOUND, UNBOUND, GENERATED) and row["spill_bytes"] == 0]
    every.sort(key=lambda row: (*problem(row), row["us"]))
    for _, group in groupby(every, problem):
        for row in list(group)[:MOST_OF_A_PROBLEM]:
            registers = f"{row['registers']}{', unbounded' if row['variant'] == UNBOUND else ''}"
            name = f"`{row['configuration']}`"
            lines.append((str(row["m"]), row["dtype"], row["op"], name, registers, *rate(row, gflops)))
    return markdown(heads, lines, texts=("op", "configuration"))


def tried(rows: Sequence[Row]) -> str:
    """Return a Markdown table of configurations timed in several variants, with spilled bytes in brackets."""
    times = {(row["configuration"], row["variant"]): row for row in rows if problem(row)[::2] == (-4096, "nn")}
    several = dict.fromkeys(name for name, variant in times if variant not in (BOUND, UNBOUND, GENERATED))
    lines = [(f"`{name}`", *(_with_spills(times.get((name, variant))) for variant in VARIANTS)) for name in several]
    return markdown(("configuration", *VARIANTS), lines, texts=("configuration",))


def by_values(values: Sequence[Row], gflops: Mapping[str, float]) -> str:
    """Return a Markdown table of times by the values in the matrices."""
    heads = ("dtype", "values", "us", "TFLOP/s", "% of ceiling")
    lines = [(row["dtype"], row["values"], *rate(row, gflops)) for row in values if row["variant"] == BOUND]
    return markdown(heads, lines, texts=("values",))


def problem(row: Row) -> tuple[int, str, str]:
    """Return the sort key of a row's problem, the largest problem first."""
    return -row["m"], row["dtype"], row["op"]


def rate(row: Row, gflops: Mapping[str, float]) -> tuple[str, str, str]:
    """Return microseconds, TFLOP/s and percentage of the element type's peak rate, as text."""
    tflops = FLOPS_PER_PRODUCT * row["m"] * row["n"] * row["k"] / row["us"] * 1e-6
    return number(row["us"]), f"{tflops:.1f}", f"{100e3 * tflops / gflops[row['dtype']]:.0f}"


def _with_spills(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{number(row['us'])}{' (' + str(row['spill_bytes']) + ')' if row['spill_bytes'] else ''}"
