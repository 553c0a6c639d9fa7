"""The tables of the tuned kernels beside cuBLAS and cuBLASLt, from a result file of `versus_cublas`.

python -m benchmarks.headline benchmarks/results/h200-versus-cublas.json
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.cells import SHAPE_SETS, ShapeSet, in_set
from benchmarks.result_file import read
from benchmarks.table import provenance
from tsm2_tune.commands.errors import Command

Row = dict[str, Any]

DIRTY = "_dirty"  # in names of fields: with the L2 dirty; those without it are with the L2 clean
OPPONENTS = ("cublas", "cublaslt")
WHO = ("ours", *OPPONENTS)
WORDS = ("regime", "layout", "dtype", "m x n x k")


def headline(rows: Sequence[Row], cublas: str = "cuBLAS") -> str:
    """Markdown, a line a cell: microseconds of all three, the faster opponent's time over ours, share of the floor,
    winner.

    All of that with the L2 clean; where it was measured, ours and the speed-up also with the L2 dirty.
    """
    has_dirty = any(map(is_dirty_too, rows))
    of_dirty = ("ours us, dirty", "speed-up, dirty") if has_dirty else ()
    heads = (*WORDS, "ours us", f"{cublas} us", "cuBLASLt us", "speed-up", *of_dirty, "% of floor", "configuration")
    lines = [
        (
            *words(row),
            *fastest_in_bold([time_text(row, who) for who in WHO], [right_us(row, who) for who in WHO]),
            ratio(rivals_us(row), row["ours_us"]),
            *(dirty_texts(row) if has_dirty else ()),
            f"{row['percent_of_floor']:.0f}",
            f"`{row['configuration']}`",
        )
        for row in rows
    ]
    return markdown(heads, lines, texts=("configuration",))


def products(rows: Sequence[Row]) -> str:
    """The headline of the products of two matrices that take longer than starting them."""
    return headline([row for row in rows if not row["small"] and row["regime"] != "G"])


def gram(rows: Sequence[Row]) -> str:
    """The headline of X^T X: cuBLAS computes half of it, by syrk or herk, cuBLASLt all of it; empty without any."""
    found = [row for row in rows if row["regime"] == "G"]
    return headline(found, "syrk") if found else ""


def small_products(rows: Sequence[Row]) -> str:
    """Markdown of the cells that a graph replayed: microseconds of ours, cuBLAS and a kernel that does nothing."""
    heads = (*WORDS, "ours us", "cuBLAS us", "launch floor us", "over the floor us")
    lines = []
    for row in rows:
        ours, floor = row.get("ours_graph_us"), row.get("launch_floor_us")
        if ours is None or floor is None:
            continue
        values = [ours, row["cublas_graph_us"]]
        times = (
            *fastest_in_bold([number(value, 2) for value in values], values),
            number(floor, 2),
            f"{ours - floor:.2f}",
        )
        lines.append((*words(row), *times))
    return markdown(heads, lines) if lines else ""


def means(rows: Iterable[Row]) -> list[Row]:
    """Return the geometric means of the speed-ups by regime, element type and layout, small cells apart.

    `faster` is over the faster opponent in each cell; `behind` counts the cells in which that is faster than ours.
    X^T X is left out: cuBLAS takes hundreds of times as long there.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["regime"] == "G":
            continue
        regime = row["regime"] + (" small" if row["small"] else "")
        groups.setdefault((regime, row["dtype"], row["layout"]), []).append(row)
    return [
        {
            "regime": regime,
            "dtype": dtype,
            "layout": layout,
            "cells": len(group),
            "faster": geometric_mean(speed_ups(group)),
            "cublas": geometric_mean(speed_ups(group, ["cublas"])),
            "cublaslt": geometric_mean(speed_ups(group, ["cublaslt"])),
            "behind": sum(ratio < 1 for ratio in speed_ups(group)),
            "faster_dirty": geometric_mean(speed_ups(group, state=DIRTY)),
            "cublas_dirty": geometric_mean(speed_ups(group, ["cublas"], DIRTY)),
            "cublaslt_dirty": geometric_mean(speed_ups(group, ["cublaslt"], DIRTY)),
        }
        for (regime, dtype, layout), group in groups.items()
    ]


def means_text(rows: Iterable[Row]) -> str:
    """The means as Markdown; those with the L2 dirty where any was measured so."""
    found = means(rows)
    of_dirty = any(mean["cublas_dirty"] is not None for mean in found)
    over = {"faster": "over the faster", "cublas": "over cuBLAS", "cublaslt": "over cuBLASLt"}
    dirty = {f"{name}{DIRTY}": f"{head}, dirty" for name, head in over.items()} if of_dirty else {}
    heads = ("regime", "dtype", "layout", "cells", *over.values(), "cells behind")
    lines = [
        (
            *(mean[name] for name in ("regime", "dtype", "layout")),
            str(mean["cells"]),
            *(number(mean[name], 2) for name in over),
            str(mean["behind"]),
            *(number(mean[name], 2) for name in dirty),
        )
        for mean in found
    ]
    return "Geometric means of the speed-ups\n\n" + markdown((*heads, *dirty.values()), lines)


def fastest_in_bold(texts: Sequence[str], values: Sequence[float | None]) -> list[str]:
    """The texts of the values, the least of these in bold."""
    least = min(value for value in values if value is not None)
    return [f"**{text}**" if value == least else text for text, value in zip(texts, values, strict=True)]


def right_us(row: Row, who: str, state: str = "") -> float | None:
    """The time of one of WHO; None where it has no such product, or gave an answer that failed the check.

    `state` is DIRTY where that of the dirty L2 is asked for; None also where that was not measured.
    """
    time: float | None = row[f"{who}_us"] if not state else row.get(f"{who}{state}_us")
    return None if row.get(f"{who}_verified") is False else time


def time_text(row: Row, who: str) -> str:
    """The time, and whether the answer failed the check."""
    return number(row[f"{who}_us"]) + (" (wrong)" if row.get(f"{who}_verified") is False else "")


def rival(row: Row, opponents: Sequence[str] = OPPONENTS, state: str = "") -> str | None:
    """The faster one of those whose answer was right; None where none has the product, or was measured."""
    times = {who: us for who in opponents if (us := right_us(row, who, state)) is not None}
    return min(times, key=lambda who: times[who]) if times else None


def rivals_us(row: Row, opponents: Sequence[str] = OPPONENTS, state: str = "") -> float | None:
    """Its time."""
    who = rival(row, opponents, state)
    return None if who is None else right_us(row, who, state)


def speed_ups(rows: Iterable[Row], opponents: Sequence[str] = OPPONENTS, state: str = "") -> list[float]:
    """The faster opponent's time over ours, of the cells in which one is right and was measured in the state."""
    return [us / row[f"ours{state}_us"] for row in rows if (us := rivals_us(row, opponents, state)) is not None]


def is_dirty_too(row: Row) -> bool:
    """Return whether the cell was measured with the L2 dirty too."""
    return row.get(f"ours{DIRTY}_us") is not None


def dirty_texts(row: Row) -> tuple[str, str]:
    """Return, for a dirty L2, our microseconds and the faster opponent's time over ours."""
    if not is_dirty_too(row):
        return "–", "–"
    ours = row[f"ours{DIRTY}_us"]
    return number(ours), ratio(rivals_us(row, state=DIRTY), ours)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def words(row: Row) -> tuple[str, ...]:
    """The fields that name the cell."""
    return row["regime"], row["layout"], row["dtype"], f"{row['m']} x {row['n']} x {row['k']}"


def number(value: float | None, digits: int = 0) -> str:
    """Whole microseconds from 100 on, else one digit more; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.{digits or (0 if value >= 100 else 1)}f}"


def ratio(numerator: float | None, denominator: float) -> str:
    return number(numerator / denominator if numerator is not None else None, 2)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """A table, whose columns of numbers are aligned to the right."""
    left = {*WORDS, *texts}
    rule = "|" + "".join("---|" if head in left else "---:|" for head in heads)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


def runs_of(found: dict[str, Any]) -> str:
    """Return a paragraph with the facts of each run of the bench."""
    return "\n\n".join(f"{provenance(run)} `{run['command']}`" for run in _runs(found))


def runs_together(found: dict[str, Any]) -> str:
    """The same as one paragraph, with the ceilings that the runs measured from least to most."""
    runs = _runs(found)
    (same,) = {(run["device"], run["driver"], run["toolkit"], f"cuBLAS {run['cublas']}") for run in runs}
    dates = _span(run["date"] for run in runs)
    read, copied = (_span(f"{run[f'{what}_gbytes_per_s'] / 1e3:.2f}" for run in runs) for what in ("read", "copy"))
    single, double = (_span(f"{run['gflops'][name] / 1e3:.1f}" for run in runs) for name in ("f32", "f64"))
    return (
        f"{', '.join(same)}; {dates}, {len(runs)} runs. Ceilings: {read} TB/s read, {copied} TB/s copied,"
        f" {single} TFLOP/s by FMA in f32, {double} TFLOP/s on the tensor cores in f64."
    )


def _span(texts: Iterable[str]) -> str:
    """The least and the most."""
    found = sorted(texts)
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def _runs(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found.get("earlier_runs", ()), found]


@click.command(cls=Command)
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--shapes-of", "shape_set", type=click.Choice(SHAPE_SETS), default="headline", show_default=True)
def main(path: Path, shape_set: ShapeSet) -> None:
    """Print the tables of the shapes in the set, their means, and what the numbers belong to."""
    found = read(path)
    rows = [row for row in found["rows"] if in_set(row, shape_set)]
    parts = [
        runs_of(found),
        products(rows),
        gram(rows),
        small_products([row for row in rows if row["small"]]),
        means_text(rows),
    ]
    click.echo("\n\n".join(part for part in parts if part))


if __name__ == "__main__":
    main()
