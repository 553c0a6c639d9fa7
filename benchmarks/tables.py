"""Tables of result files in Markdown: numbers, the faster of ours and the libraries, facts of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]

DIRTY = "_dirty"  # suffix of fields measured with a dirty L2; fields without it are for a clean L2
OPPONENTS = ("cublas", "cublaslt")
WHO = ("ours", *OPPONENTS)
WORDS = {"regime", "layout", "dtype"}  # heads of columns of text


def fastest_in_bold(texts: Sequence[str], values: Sequence[float | None]) -> list[str]:
    """Return the texts with the one of the least value in bold."""
    least = min(value for value in values if value is not None)
    return [f"**{text}**" if value == least else text for text, value in zip(texts, values, strict=True)]


def right_us(row: Row, who: str) -> float | None:
    """Return one contestant's time, or None if it lacks the product or its result was wrong."""
    time: float | None = row[f"{who}_us"]
    return None if row.get(f"{who}_verified") is False else time


def time_text(row: Row, who: str) -> str:
    """Return the time as text, marked if the result was wrong."""
    return number(row[f"{who}_us"]) + (" (wrong)" if row.get(f"{who}_verified") is False else "")


def rival(row: Row) -> str | None:
    """Return the faster of cuBLAS and cuBLASLt with a correct result, or None if there is none."""
    times = {who: us for who in OPPONENTS if (us := right_us(row, who)) is not None}
    return min(times, key=lambda who: times[who]) if times else None


def vendor_us(row: Row) -> float | None:
    """Return the time of the faster of cuBLAS and cuBLASLt with a correct result, or None."""
    return min(filter(None, (right_us(row, who) for who in OPPONENTS)), default=None)


def is_dirty_too(row: Row) -> bool:
    """Return whether the cell was also measured with a dirty L2."""
    return row.get(f"ours{DIRTY}_us") is not None


def number(value: float | None, digits: int = 0) -> str:
    """Return a number as text: whole from 100 on, with one more digit below; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.{digits or (0 if value >= 100 else 1)}f}"


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """Return a Markdown table. Its columns of numbers are right-aligned."""
    left = {*WORDS, *texts}
    rule = "|" + "".join("---|" if head in left else "---:|" for head in heads)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


def provenance(found: Mapping[str, Any]) -> str:
    """Return one sentence about the device, the versions and the measured peak rates.

    A file with only the rates of f32 and f64 is older than the measurement of tensor cores.
    """
    vendor = "no vendor" if found["cublas"] is None else f"cuBLAS {found['cublas']}"
    of_f64 = "by FMA" if found["gflops"].keys() == {"f32", "f64"} else "on the tensor cores"
    return (
        f"{found['device']}, driver {found['driver']}, {found['toolkit']}, {vendor}, {found['date']};"
        f" measured ceilings: read {found['read_gbytes_per_s'] / 1e3:.2f} TB/s, copy"
        f" {found['copy_gbytes_per_s'] / 1e3:.2f} TB/s,"
        f" {found['gflops']['f32'] / 1e3:.1f} TFLOP/s by FMA in f32"
        f" and {found['gflops']['f64'] / 1e3:.1f} {of_f64} in f64."
    )


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
    return [*found["earlier_runs"], found]
