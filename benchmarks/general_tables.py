"""The tables of docs/general.md, from a result file of `benchmarks.general`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.tables import WHO, Row, fastest_in_bold, markdown, number, provenance, right_us, time_text
from tsm2_tune.generator.dtypes import FMA_DTYPES
from tsm2_tune.generator.problem import Problem

STENCIL = "stencil"  # the table of kernels of the family `gemm` alone
GLOBAL_SIZE = 4096  # the fastest configuration for this square is the global one
BLAS = {"f32": "S", "f64": "D", "c64": "C", "c128": "Z"}


def tables(found: Row) -> dict[str, str]:
    """Return {name of a region in docs: Markdown} for the tables that have rows."""
    rows = found["rows"]
    parts = {
        "general-run": f"{provenance(found)} `{found['command']}`",
        "general-paper": squares([row for row in rows if row["table"] == "paper"]),
        "general-sizes": by_size([row for row in rows if row["table"] == "sizes"]),
        "general-global": one_for_all([row for row in rows if row["table"] in ("sizes", "short k")]),
        "general-stencil": squares([row for row in rows if row["table"] == STENCIL]),
        "general-forms": forms([row for row in rows if row["table"] == STENCIL and row["op"] == "nn"]),
        "general-variants": spread(found["variants"]),
    }
    return {name: part for name, part in parts.items() if part}


def squares(rows: Sequence[Row]) -> str:
    """Return a Markdown table of squares: times of all three, our rate, our speedup over cuBLAS, the fastest."""
    heads = ("m = n = k", "dtype", "op", "ours us", "cuBLAS us", "cuBLASLt us", "TFLOP/s", "% of cuBLAS", "winner")
    lines = [
        (
            str(row["m"]),
            row["dtype"],
            row["op"],
            *fastest_in_bold([time_text(row, who) for who in WHO], [right_us(row, who) for who in WHO]),
            f"{rate(row):.1f}",
            percent(row, "cublas"),
            f"`{row['configuration']}`",
        )
        for row in rows
    ]
    return markdown(heads, lines, texts=("dtype", "op", "winner")) if lines else ""


def by_size(rows: Sequence[Row]) -> str:
    """Return a Markdown table by size: our TFLOP/s and, in brackets, percentages of the libraries' rates."""
    cells = {(row["m"], row["dtype"]): row for row in rows}
    lines = [
        (str(size), *(_rate_beside(cells.get((size, dtype))) for dtype in FMA_DTYPES))
        for size in sorted({size for size, _ in cells})
    ]
    return markdown(("m = n = k", *(f"{BLAS[dtype]} TFLOP/s" for dtype in FMA_DTYPES)), lines) if lines else ""


def one_for_all(rows: Sequence[Row]) -> str:
    """Return a Markdown table by shape: for each type the fastest, and the loss by the fastest at 4096."""
    cells = {(row["m"], row["k"], row["dtype"]): row for row in rows}
    lines = [
        (f"{m} x {m} x {k}", *(_loss(cells.get((m, k, dtype))) for dtype in FMA_DTYPES))
        for m, k in sorted(
            {(m, k) for m, k, _ in cells}, key=lambda shape: (shape[1] >= shape[0], shape[1], shape[0])
        )
    ]
    return markdown(("m x n x k", *FMA_DTYPES), lines, texts=("m x n x k", *FMA_DTYPES)) if lines else ""


def forms(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the first choices with their times, measured in turns per cell."""
    lines = [
        (str(row["m"]), row["dtype"], row["op"], f"`{name}`", number(us))
        for row in rows
        for name, us in sorted(row["choices_us"].items(), key=lambda item: item[1])
    ]
    heads = ("m = n = k", "dtype", "op", "configuration", "us")
    return markdown(heads, lines, texts=("dtype", "op", "configuration")) if lines else ""


def spread(variants: Sequence[Row]) -> str:
    """Return a Markdown table of TFLOP/s by element type and storage order.

    Its columns are the slowest, the median and the fastest of the stencil's timed configurations.
    """
    heads = ("m = n = k", "routine", "op", "kept", "timed", "slowest", "median", "fastest", "fastest variant")
    lines = []
    for group in variants:
        size, times = group["size"], group["times_us"]
        flops = Problem(size, size, size, group["dtype"]).flops
        rates = {name: flops / us * 1e-6 for name, us in times.items()}
        values = (min(rates.values()), statistics.median(rates.values()), max(rates.values()))
        counts = (str(group["kept"]), str(len(rates)))
        fastest = max(rates, key=lambda name: rates[name])
        lines.append(
            (
                str(size),
                f"{BLAS[group['dtype']]}GEMM",
                group["op"],
                *counts,
                *(f"{v:.1f}" for v in values),
                f"`{fastest}`",
            )
        )
    return markdown(heads, lines, texts=("routine", "op", "fastest variant")) if lines else ""


def rate(row: Row) -> float:
    """Return our rate in TFLOP/s."""
    flops: float = Problem(row["m"], row["n"], row["k"], row["dtype"], row["op"]).flops
    return float(flops / row["ours_us"] * 1e-6)


def percent(row: Row, who: str) -> str:
    """Return our rate in percent of the library's.

    Return a dash if the library lacks the product or its result was wrong.
    """
    time = right_us(row, who)
    return "–" if time is None else f"{100 * time / row['ours_us']:.0f} %"


def _rate_beside(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{rate(row):.1f} ({percent(row, 'cublas')}, {percent(row, 'cublaslt')})"


def _loss(row: Row | None) -> str:
    if row is None or row["global"] not in row["choices_us"]:
        return "–"
    best = min(row["choices_us"], key=lambda name: row["choices_us"][name])
    loss = row["choices_us"][row["global"]] / row["choices_us"][best] - 1
    return f"`{best.split(':', 1)[1]}`, {100 * loss:.0f} %" if best != row["global"] else "the same"
