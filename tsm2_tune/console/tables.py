"""Print lines and tables on a terminal. Tables fit the terminal's width."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING

from tsm2_tune.console.printable import printable
from tsm2_tune.console.winner_columns import columns_of, device_text, long_columns_of, summary_text, uniform_text

if TYPE_CHECKING:  # slow to import, so functions import it
    from rich.console import Console
    from rich.table import Table

    from tsm2_tune.tuner.results.best_view import BestRow

GAP = "  "  # between columns, and between the cells of a record
LEAST_TEXT_WIDTH = 20  # least width of a column whose text is wrapped


def console(*, stderr: bool = False) -> Console:
    """Return Rich's console for standard output or standard error.

    Remove COLUMNS and LINES from the environment if their values are invalid, so that Rich reads the terminal's size.
    """
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
        columns = long_columns_of(winners) if is_long else columns_of(winners)
        uniform = "" if is_long else uniform_text(winners)
        print_line(console, f"{heading}: {uniform}" if uniform else heading)
        print_table(
            console,
            [one.head for one in columns],
            [[one.text(row) for one in columns] for row in winners],
            right=[place for place, one in enumerate(columns) if one.is_number],
            dropped=sorted((at for at, one in enumerate(columns) if one.dropped), key=lambda at: columns[at].dropped),
            styles=["yellow" if row.x_cublas is not None and row.x_cublas < 1 else "" for row in winners],
        )
        cut = f"{len(winners)} of {len(every)} winners shown" if len(winners) < len(every) else ""
        if closing := "; ".join(filter(None, (summary_text(every), cut))):
            print_line(console, closing)


def print_table(
    console: Console,
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    dropped: Sequence[int] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print a table. No cell is ever cut. `right` are the right-aligned columns, `styles` the styles of the rows.

    If the table does not fit the terminal: omit the ruled lines, then the `dropped` columns one after another. If it
    still does not fit, wrap the widest text column between words, or print each row as a record of several lines. If
    the output is no terminal, print the whole table without ruled lines.
    """
    from rich.cells import cell_len

    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in cells]
    styles = styles or [""] * len(cells)
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    room = console.width - 3 * len(widths) - 1  # without the ruled lines and the spaces next to them
    while dropped and console.is_terminal and not _fits(widths, console.width):
        gone, *rest = dropped
        heads, *cells = ([cell for at, cell in enumerate(row) if at != gone] for row in (heads, *cells))
        right, dropped = (_without(gone, places) for places in (right, rest))
        widths = [width for at, width in enumerate(widths) if at != gone]
    if console.is_terminal and sum(widths) <= room:
        console.print(_lined(heads, cells, widths, right, styles))
    elif not console.is_terminal or _fits(widths, console.width):
        for row, style in zip((heads, *cells), ("", *styles), strict=True):
            print_line(console, _aligned(row, widths, right), style)
    elif (folded := _folded(room, cells, widths, right)) is not None:
        console.print(_lined(heads, cells, folded, right, styles))
    else:
        for row, style in zip(cells, styles, strict=True):
            print_line(console, _record(heads, row, console.width), style)


def _fits(widths: Sequence[int], width: int) -> bool:
    """Return whether columns of these widths, without ruled lines, fit a terminal of `width` characters."""
    return sum(widths) + len(GAP) * (len(widths) - 1) <= width


def _without(gone: int, places: Sequence[int]) -> list[int]:
    """Return the column indices `places`, adjusted after the column with the index `gone` was removed."""
    return [at - (at > gone) for at in places if at != gone]


def _lined(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Sequence[int],
    styles: Sequence[str],
) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
        table.add_column(head, justify="right" if number in right else "left", width=width)
    for row, style in zip(cells, styles, strict=True):
        table.add_row(*map(Text, row), style=style or None)
    return table


def _folded(
    room: int, cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[int]
) -> list[int] | None:
    """Return column widths with the sum `room`, so that only the widest text column has to be wrapped.

    Return None if that column would be too narrow for one of its words.
    """
    from rich.cells import cell_len

    widest = max(range(len(widths)), key=lambda number: (number not in right, widths[number]))
    width = room - (sum(widths) - widths[widest])
    words = [cell_len(word) for row in cells for word in row[widest].split()]
    if widest in right or width < max([LEAST_TEXT_WIDTH, *words]):
        return None
    return [width if number == widest else own for number, own in enumerate(widths)]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    from rich.cells import cell_len

    padded = []
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - cell_len(cell))
        padded.append(padding + cell if number in right else cell + padding)
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
