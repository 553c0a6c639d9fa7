"""Tables of the tuned kernels beside cuBLAS and cuBLASLt, from a result file of `versus_cublas`.

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

DIRTY = "_dirty"  # suffix of fields measured with a dirty L2; fields without it are for a clean L2
OPPONENTS = ("cublas", "cublaslt")
WHO = ("ours", *OPPONENTS)
WORDS = ("regime", "layout", "dtype", "m x n x k")


def headline(rows: Sequence[Row], cublas: str = "cuBLAS") -> str:
    """Return a Markdown table with one line per cell.

    Its columns are the microseconds of our kernel, cuBLAS and cuBLASLt with a clean L2 cache, our speedup over the
    faster library, the percentage of the floor, and the configuration. If any cell was measured with a dirty L2,
    columns for it follow the speedup.
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
    """Return the headline table of products of two matrices whose work takes longer than a launch."""
    return headline([row for row in rows if not row["small"] and row["regime"] != "G"])


def gram(rows: Sequence[Row]) -> str:
    """Return the headline table of X^T X, or "" without such cells.

    cuBLAS computes one triangle of the result (syrk or herk), and cuBLASLt the whole.
    """
    found = [row for row in rows if row["regime"] == "G"]
    return headline(found, "syrk") if found else ""


def small_products(rows: Sequence[Row]) -> str:
    """Return a Markdown table of cells replayed from a CUDA graph: microseconds of ours, cuBLAS, an empty kernel."""
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
    """Return geometric means of the speedups by regime, element type and layout, with small cells apart.

    `faster` is the speedup over the faster library of each cell. `behind` counts the cells in which that library is
    faster than our kernel. X^T X is left out, because cuBLAS takes hundreds of times as long.
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
    """Return the means as a Markdown table, with columns for a dirty L2 if any cell was measured with it."""
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
    """Return the texts with the one of the least value in bold."""
    least = min(value for value in values if value is not None)
    return [f"**{text}**" if value == least else text for text, value in zip(texts, values, strict=True)]


def right_us(row: Row, who: str, state: str = "") -> float | None:
    """Return one contestant's time, or None if it lacks the product or its result was wrong.

    `state` is DIRTY for the time with a dirty L2; the result is None if that was not measured.
    """
    time: float | None = row[f"{who}_us"] if not state else row.get(f"{who}{state}_us")
    return None if row.get(f"{who}_verified") is False else time


def time_text(row: Row, who: str) -> str:
    """Return the time as text, marked if the result was wrong."""
    return number(row[f"{who}_us"]) + (" (wrong)" if row.get(f"{who}_verified") is False else "")


def rival(row: Row, opponents: Sequence[str] = OPPONENTS, state: str = "") -> str | None:
    """Return the fastest library with a correct result, or None if there is none."""
    times = {who: us for who in opponents if (us := right_us(row, who, state)) is not None}
    return min(times, key=lambda who: times[who]) if times else None


def rivals_us(row: Row, opponents: Sequence[str] = OPPONENTS, state: str = "") -> float | None:
    """Return the time of the fastest library with a correct result, or None."""
    who = rival(row, opponents, state)
    return None if who is None else right_us(row, who, state)


def speed_ups(rows: Iterable[Row], opponents: Sequence[str] = OPPONENTS, state: str = "") -> list[float]:
    """Return our speedups over the fastest library, for the cells in which a library was correct.

    The times are those with the L2 in `state`.
    """
    return [us / row[f"ours{state}_us"] for row in rows if (us := rivals_us(row, opponents, state)) is not None]


def is_dirty_too(row: Row) -> bool:
    """Return whether the cell was also measured with a dirty L2."""
    return row.get(f"ours{DIRTY}_us") is not None


def dirty_texts(row: Row) -> tuple[str, str]:
    """Return our microseconds with a dirty L2 and the speedup over the faster library, as text."""
    if not is_dirty_too(row):
        return "–", "–"
    ours = row[f"ours{DIRTY}_us"]
    return number(ours), ratio(rivals_us(row, state=DIRTY), ours)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def words(row: Row) -> tuple[str, ...]:
    """Return the table cells that identify a row: regime, layout, element type, shape."""
    return row["regime"], row["layout"], row["dtype"], f"{row['m']} x {row['n']} x {row['k']}"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number as text: whole from 100 on, with one more digit below; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.{digits or (0 if value >= 100 else 1)}f}"


def ratio(numerator: float | None, denominator: float) -> str:
    return number(numerator / denominator if numerator is not None else None, 2)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """Return a Markdown table. Its columns of numbers are right-aligned."""
    left = {*WORDS, *texts}
    rule = "|" + "".join("---|" if head in left else "---:|" for head in heads)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


def runs_of(found: dict[str, Any]) -> str:
    """Return one paragraph with the facts of each run in the file."""
    return "\n\n".join(f"{provenance(run)} `{run['command']}`" for run in _runs(found))


def runs_together(found: dict[str, Any]) -> str:
    """Return the facts of all runs as one paragraph, with the range of their measured peak rates."""
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
    """Return "least to greatest", or one text if both are equal."""
    found = sorted(texts)
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def _runs(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found.get("earlier_runs", ()), found]


@click.command(cls=Command)
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--shapes-of", "shape_set", type=click.Choice(SHAPE_SETS), default="headline", show_default=True)
def main(path: Path, shape_set: ShapeSet) -> None:
    """Print the tables of a shape set, their means, and the facts of the runs."""
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
