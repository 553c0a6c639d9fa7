"""Export of the fastest kernels as tables: CSV and JSON with all columns, Markdown and LaTeX with the main columns.

Texts from the database may be malicious, so each format escapes its special characters.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from tsm2_tune import __version__
from tsm2_tune.tuner.measure.vendor import table_cells
from tsm2_tune.tuner.measure.vendor.table_cells import Column, number
from tsm2_tune.tuner.results.best_view import BestRow

Escape = Callable[[str], str]
Columns = Mapping[str, Column]

# Heading -> function that returns a cell's text. Times are medians with their 95 % confidence intervals.
COLUMNS: dict[str, Column] = {
    "dtype": lambda row: row.dtype,
    "op": lambda row: row.op,
    "m": lambda row: str(row.m),
    "n": lambda row: str(row.n),
    "k": lambda row: str(row.k),
    "batch": lambda row: str(row.batch),
    "configuration": lambda row: row.config,
    "median (us)": number("median_us", 2),
    "low (us)": number("low_us", 2),
    "high (us)": number("high_us", 2),
    "GB/s": number("gbytes_per_s", 1),
    "% of floor": number("percent_of_floor", 1),
    "cuBLAS (us)": lambda row: table_cells.vendor_us(row, digits=2),
    "x cuBLAS": number("x_cublas", 2),
    "cuBLAS routine": table_cells.routine,
    "tied": lambda row: str(row.ties),
    "stale": lambda row: "yes" if row.stale else "no",
    "verified": lambda row: "in full" if row.verified_in_full else "in part",
    "tuned (UTC)": lambda row: row.tuned_at[:16],
}
# Left-aligned columns. Numbers are right-aligned.
TEXT_COLUMNS = {"dtype", "op", "configuration", "cuBLAS routine", "stale", "verified", "tuned (UTC)"}

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
}
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width forms
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
MARKDOWN = {character: f"\\{character}" for character in "\\`*_[]<>|~&#$"}


def visible(text: str) -> str:
    """Replace each unprintable character (control, line end, change of direction) by a space. Return the text."""
    return "".join(c if c.isprintable() else " " for c in text)


def one_line(text: str) -> str:
    """Return the text with every run of white space and unprintable characters replaced by one space."""
    return " ".join(visible(text).split())


def escaped(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(c, c) for c in one_line(text))


def facts_of(record: Any) -> dict[str, Any]:
    """Return field name -> value of a record for CSV and JSON. The field `cache` is renamed `l2_state`."""
    return {"l2_state" if name == "cache" else name: value for name, value in asdict(record).items()}


def csv_text(rows: Sequence[BestRow], database: str) -> str:
    """Return CSV text (RFC 4180): a header, and one line for each winner. No cell is a formula."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(facts_of(rows[0])))
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in facts_of(row).items()} for row in rows)
    return file.getvalue()


def csv_cell(value: object) -> object:
    """Return the value of a CSV cell. A text that looks like a formula gets an apostrophe, as OWASP recommends."""
    if not isinstance(value, str):
        return value  # a number, which may be negative
    text = visible(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def json_text(rows: Sequence[BestRow], database: str) -> str:
    """Return the text of a JSON object. Its member `best` is the list of winners."""
    best = [facts_of(row) | {"parameters": row.tunables} for row in rows]
    document = {"program": f"tsm2-tune {__version__}", "database": database, "best": best}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def markdown_text(rows: Sequence[BestRow], database: str) -> str:
    """Return Markdown text: for each device, toolkit and L2 state a heading and a table of winners."""
    escape, parts = partial(escaped, table=MARKDOWN), []
    for setting, group in by_setting(rows):
        columns = columns_of(group)
        rule = ["---" if name in TEXT_COLUMNS else "---:" for name in columns]
        lines = [[escape(name) for name in columns], rule, *cells(group, columns, escape)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {escape(setting.device)}\n\n{escape(facts(setting))}\n\n{table}\n")
    return "\n".join(parts)


def latex_text(rows: Sequence[BestRow], database: str) -> str:
    """Return LaTeX text: a `table` environment for each device, toolkit and L2 state. No package is needed."""
    escape, parts = partial(escaped, table=LATEX), []
    for setting, group in by_setting(rows):
        columns = columns_of(group)
        alignment = "".join("l" if name in TEXT_COLUMNS else "r" for name in columns)
        head, *body = ([escape(name) for name in columns], *cells(group, columns, escape))
        first, *lines = [" & ".join(line) + r" \\" for line in (head, *body)]
        caption = rf"\caption{{{escape(setting.device)}. {escape(facts(setting))}}}"
        begin = (r"\begin{table}", caption, rf"\begin{{tabular}}{{{alignment}}}")
        end = (r"\hline", r"\end{tabular}", r"\end{table}", "")
        parts.append("\n".join((*begin, r"\hline", first, r"\hline", *lines, *end)))
    return "\n".join(parts)


def by_setting(rows: Iterable[BestRow]) -> Iterator[tuple[BestRow, list[BestRow]]]:
    """Group the rows by device, driver, toolkit, flags, version and L2 state.

    Yield the first row of each group, together with the list of all rows of the group.
    """
    setting = attrgetter("device", "compute_capability", "driver", "toolkit", "flags", "version", "cache")
    for _, group in groupby(sorted(rows, key=setting), key=setting):
        members = list(group)
        yield members[0], members


def facts(row: BestRow) -> str:
    """Return sentences with the compute capability, the versions of driver and tools, and a GPU's L2 state."""
    capability = f"Compute capability {row.compute_capability}" if row.compute_capability else "The host's CPU"
    driver = f", driver {row.driver}" if row.driver else ""
    state = f" Times with the L2 {row.cache}." if row.compute_capability else ""
    return f"{capability}{driver}, {row.toolkit} with {row.flags or 'no flags'}, tsm2-tune {row.version}.{state}"


def columns_of(rows: Sequence[BestRow]) -> Columns:
    """Return COLUMNS, with columns for times in other L2 states inserted after the cuBLAS columns.

    Without a batch among the rows, the column "batch" is omitted.
    """
    has_batches = any(row.problem.is_batched for row in rows)
    names = [name for name in COLUMNS if name != "batch" or has_batches]
    place = names.index("cuBLAS routine") + 1
    others = table_cells.other_states(rows, us="{} (us)", digits=2)
    return {name: COLUMNS.get(name) or others[name] for name in (*names[:place], *others, *names[place:])}


def cells(rows: Iterable[BestRow], columns: Columns, escape: Escape) -> Iterator[list[str]]:
    for row in rows:
        yield [escape(text(row)) for text in columns.values()]


TABLES: dict[str, Callable[[Sequence[BestRow], str], str]] = {  # format -> the text of winners and a database's name
    "csv": csv_text,
    "json": json_text,
    "markdown": markdown_text,
    "latex": latex_text,
}
