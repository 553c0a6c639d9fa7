"""Print lines and tables on a terminal. Tables fit the terminal's width."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from tsm2_tune.console.printable import printable
from tsm2_tune.console.winner_columns import (
    DROPPED,
    columns_of,
    device_text,
    long_columns_of,
    summary_text,
    uniform_text,
)

if TYPE_CHECKING:  # slow to import, so functions import it
    from rich.console import Console
    from rich.table import Table

    from tsm2_tune.tuner.results.best_view import BestRow

T = TypeVar("T")
NUMBER = re.compile(r"([-+]?[0-9][0-9.,]*(e[-+]?[0-9]+)?(%| \S+)?)?|-")  # a cell of a right-aligned column
GAP = "  "  # between columns, and between the cells of a record
LEAST_TEXT_WIDTH = 20  # least width of a column whose text is wrapped


def console(*, stderr: bool = False) -> Console:
    """Return Rich's console. Remove invalid COLUMNS and LINES, so that Rich reads the terminal's size."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("0*[1-9][0-9]{0,4}", os.environ.get(name, "80")):
            del os.environ[name]
    from rich.console import Console

    return Console(stderr=stderr)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[float], None]]:
    """Show the text `what` on standard error in the body of the with statement, if standard error is a terminal.

    Yield a function that shows how much of the work is done, and the remaining time. The function's argument is the
    share of the work that is done, from 0 to 1.
    """
    if not sys.stderr.isatty():  # not even with FORCE_COLOR
        yield lambda share: None
        return
    from rich.text import Text

    begin = monotonic()
    with console(stderr=True).status(Text(printable(what)), spinner="line") as status:

        def show(share: float) -> None:
            seconds = monotonic() - begin
            if seconds > 1 and share > 0:
                status.update(Text(printable(f"{what}: {share:.0%}, about {seconds / share - seconds:.0f} s left")))

        yield show


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print the text without control characters. Rich's markup has no effect, and long lines are not wrapped."""
    console.print(printable(text), style=style or None, markup=False, highlight=False, emoji=False, soft_wrap=True)


def print_hanging(console: Console, text: str, indent: int) -> None:
    """Print the text without markup. On a terminal, wrap it between words and indent all lines but the first."""
    if console.is_terminal:
        text = textwrap.fill(
            text, console.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    print_line(console, text)


def winners_table(
    rows: Sequence[BestRow], console: Console, *, limit: int | None = None, is_long: bool = False
) -> None:
    """Print a table of winners for each device and L2 state, in the order of `rows`, and a comparison with cuBLAS.

    A winner slower than cuBLAS is yellow. `limit` is the number of rows to print; the comparison includes all rows.
    `is_long` adds the configurations.
    """
    first = set(rows[:limit])
    for heading, group in groupby(sorted(rows, key=device_text), key=device_text):
        every = list(group)
        winners = [row for row in every if row in first]
        if not winners:
            continue
        uniform = "" if is_long else uniform_text(winners)
        print_line(console, f"{heading}: {uniform}" if uniform else heading)
        if is_long:
            print_table(console, long_columns_of(winners), winners, style=_style)
        else:
            print_table(console, columns_of(winners), winners, dropped=DROPPED, style=_style)
        cut = f"{len(winners)} of {len(every)} winners shown" if len(winners) < len(every) else ""
        if closing := "; ".join(filter(None, (summary_text(every), cut))):
            print_line(console, closing)


def columns(*heads: str) -> dict[str, Callable[[Sequence[str]], str]]:
    """Return the columns of a table whose rows are the cells."""
    return {head: itemgetter(place) for place, head in enumerate(heads)}


def _style(row: BestRow) -> str:
    return "yellow" if row.x_cublas is not None and row.x_cublas < 1 else ""


def print_table(
    console: Console,
    columns: Mapping[str, Callable[[T], str]],
    rows: Iterable[T],
    *,
    dropped: Sequence[str] = (),
    style: Callable[[T], str] = lambda row: "",
) -> None:
    """Print a table. `columns` are functions that return a row's cell, by heading. No cell is ever cut.

    If the table does not fit the terminal: omit the ruled lines, then the `dropped` columns one after another. If it
    still does not fit, wrap the widest text column between words, or print each row as a record of several lines. If
    the output is no terminal, print the whole table without ruled lines. Columns of numbers are right-aligned.
    """
    from rich.cells import cell_len

    rows = list(rows)
    styles = list(map(style, rows))
    cells = {head: [printable(text(row)).replace("\n", " ") for row in rows] for head, text in columns.items()}
    right = {head for head, column in cells.items() if all(map(NUMBER.fullmatch, column))}
    widths = {head: max(map(cell_len, [head, *column])) for head, column in cells.items()}
    for head in dropped:
        if console.is_terminal and not _fits(widths, console.width) and head in widths:
            del cells[head], widths[head]
    room = console.width - 3 * len(widths) - 1  # without the ruled lines and the spaces next to them
    if console.is_terminal and (sum(widths.values()) <= room or not _fits(widths, console.width)):
        widest = max(widths, key=lambda head: (head not in right, widths[head]))
        words = [cell_len(word) for cell in cells[widest] for word in cell.split()]
        width = min(widths[widest], room - sum(widths.values()) + widths[widest])
        if width == widths[widest] or (widest not in right and width >= max([LEAST_TEXT_WIDTH, *words])):
            console.print(_lined(cells, widths | {widest: width}, right, styles))
        else:
            for row, style_of_row in zip(zip(*cells.values(), strict=True), styles, strict=True):
                print_line(console, _record(list(cells), row, console.width), style_of_row)
        return
    for row, style_of_row in zip((tuple(cells), *zip(*cells.values(), strict=True)), ("", *styles), strict=True):
        print_line(console, _aligned(row, widths, right), style_of_row)


def _fits(widths: Mapping[str, int], width: int) -> bool:
    """Return whether columns of these widths, without ruled lines, fit a terminal of `width` characters."""
    return sum(widths.values()) + len(GAP) * (len(widths) - 1) <= width


def _lined(
    cells: Mapping[str, Sequence[str]], widths: Mapping[str, int], right: Collection[str], styles: Sequence[str]
) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for head, width in widths.items():
        table.add_column(head, justify="right" if head in right else "left", width=width)
    for row, style_of_row in zip(zip(*cells.values(), strict=True), styles, strict=True):
        table.add_row(*map(Text, row), style=style_of_row or None)
    return table


def _aligned(row: Sequence[str], widths: Mapping[str, int], right: Collection[str]) -> str:
    from rich.cells import cell_len

    padded = []
    for cell, (head, width) in zip(row, widths.items(), strict=True):
        padding = " " * (width - cell_len(cell))
        padded.append(padding + cell if head in right else cell + padding)
    return GAP.join(padded).rstrip()


def _record(heads: Sequence[str], row: Sequence[str], width: int) -> str:
    """Return the text of a row as "head: cell" items on several lines. An item is never split between lines."""
    from rich.cells import cell_len

    lines = [""]
    for head, cell in zip(heads, row, strict=True):
        said = f"{head}: {cell}" if head else cell
        if not cell:
            continue
        if lines[-1].strip() and cell_len(f"{lines[-1]}{GAP}{said}") > width:
            lines.append(GAP + said)
        else:
            lines[-1] += GAP + said if lines[-1] else said
    return "\n".join(lines)
