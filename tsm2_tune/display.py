"""What the terminal shows: lines as they are, and tables as wide as it is."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tsm2_tune.winners import columns_of, device_text

if TYPE_CHECKING:  # commands without a database do not wait for what reads one
    from tsm2_tune.tuner.brief import TrialLine
    from tsm2_tune.tuner.stored import BestRow, TrialRecord
    from tsm2_tune.tuner.trial import Verdict

# What a terminal would obey instead of showing it: controls but for newline; and what it does not show: line ends of
# Unicode, marks and changes of direction, characters without a width, tags.
_CONTROLS = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)
_HALVES = re.compile("[\\ud800-\\udfff]")  # of characters: bytes of a path that are no UTF-8 come as such
GAP = "  "  # between columns, and between what a record says
LEAST_TEXT_WIDTH = 20  # of a column that folds


def printable(text: str) -> str:
    """The text without what a terminal would obey: a database may be from anywhere. Tabs are spaces."""
    return _CONTROLS.sub("", _HALVES.sub(lambda half: ascii(half[0])[1:-1], text.replace("\t", "    ")))


def console(*, stderr: bool = False) -> Console:
    """Of standard output or standard error. A size in the environment that is no number counts for nothing."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[0-9]{1,5}", os.environ.get(name, "0")):
            del os.environ[name]
    return Console(stderr=stderr)


def waiting(what: str) -> AbstractContextManager[object]:
    """What takes its time: on standard error where that is a terminal, whatever FORCE_COLOR says, and then gone."""
    if not sys.stderr.isatty():
        return nullcontext()
    return console(stderr=True).status(Text(printable(what)), spinner="line")


def print_line(console: Console, text: str) -> None:
    """Print the text as it is: brackets and colons in it are no markup, and long lines stay whole."""
    console.print(printable(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


def one_line(text: str, characters: int = 160) -> str:
    """The text's first line; where it is long, its first words."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    if len(line) <= characters:
        return line
    return f"{line[:characters].rpartition(' ')[0] or line[: characters - 1]}…"


def winners_table(rows: Iterable[BestRow], console: Console) -> None:
    """Print the winners by device and state of the L2: as tables on a terminal and as aligned columns elsewhere.

    Beside each median how far its 95 % confidence interval reaches, and what the vendor took where any was measured.
    """
    for heading, group in groupby(sorted(rows, key=device_text), key=device_text):
        winners = list(group)
        columns = columns_of(winners)
        cells = [[text(row) for text in columns.values()] for row in winners]
        print_line(console, heading)
        print_table(console, list(columns), cells, right=range(2, len(columns) - 1))


def print_table(
    console: Console, heads: Sequence[str], cells: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print it so that nothing is cut; `right` names right-aligned columns.

    On a terminal: with lines where it fits, else without, else with its widest column of text folded between words,
    else as records. Elsewhere: without lines, as wide as it is.
    """
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    room = console.width - 3 * len(widths) - 1  # within lines beside the columns, and a space on either side of them
    if console.is_terminal and sum(widths) <= room:
        console.print(_lined(heads, cells, widths, right))
    elif not console.is_terminal or sum(widths) + len(GAP) * (len(widths) - 1) <= console.width:
        for row in (heads, *cells):
            print_line(console, _aligned(row, widths, right))
    elif (folded := _folded(room, cells, widths, right)) is not None:
        console.print(_lined(heads, cells, folded, right))
    else:
        for row in cells:
            print_line(console, _record(heads, row, console.width))


def _lined(
    heads: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[int]
) -> Table:
    table = Table()
    for number, (head, width) in enumerate(zip(heads, widths, strict=True)):
        table.add_column(head, justify="right" if number in right else "left", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _folded(
    room: int, cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[int]
) -> list[int] | None:
    """Widths of columns that fit the room, the widest one of text narrower than its cells, but than no word of them.

    None where the room is too small for that.
    """
    widest = max(range(len(widths)), key=lambda number: (number not in right, widths[number]))
    width = room - (sum(widths) - widths[widest])
    words = [cell_len(word) for row in cells for word in row[widest].split()]
    if widest in right or width < max([LEAST_TEXT_WIDTH, *words]):
        return None
    return [width if number == widest else own for number, own in enumerate(widths)]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    padded = []
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - cell_len(cell))
        padded.append(padding + cell if number in right else cell + padding)
    return GAP.join(padded).rstrip()


def _record(heads: Sequence[str], row: Sequence[str], width: int) -> str:
    """What a row says, each cell after its head, on as many lines as it takes; a cell is never divided."""
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


def trials_table(rows: Iterable[TrialLine], console: Console, *, as_json: bool) -> None:
    """Print one line a trial."""
    if as_json:
        console.print_json(json.dumps([asdict(row) for row in rows]), ensure_ascii=True)
        return
    cells = [
        (
            str(row.id),
            row.device,
            row.problem,
            row.config,
            row.outcome,
            row.cache,
            "" if row.median_us is None else f"{row.median_us:.1f}",
            one_line(row.detail, 60),
        )
        for row in rows
    ]
    print_table(
        console, ("trial", "device", "problem", "configuration", "outcome", "L2", "us", "detail"), cells, right=(0, 6)
    )


def trial_facts(record: TrialRecord) -> dict[str, Any]:
    """Everything about a trial, as JSON has it."""
    trial, run = record.trial, record.run
    return {
        "trial": record.id,
        "problem": trial.problem.text,
        "family": trial.config.family,
        "configuration": trial.config.text,
        "tunables": trial.config.tunables,
        "outcome": trial.outcome,
        "detail": trial.detail,
        "current": record.current,
        "unchanged": record.unchanged,
        "ended_at": record.ended_at,
        "resources": asdict(trial.resources) if trial.resources else None,
        "spill_bytes": trial.spill_bytes,
        "guideline_broken": trial.guideline_broken,
        "verdict": _verdict_facts(trial.verdict),
        "cache": trial.cache,
        "is_between": trial.is_between,
        "strategy": trial.strategy,
        "floor_us": trial.floor_us,
        "compile_seconds": trial.compile_seconds,
        "total_seconds": trial.total_seconds,
        "limits": asdict(trial.limits) if trial.limits else None,
        "measurements": [{"round": number, **asdict(measured)} for number, measured in record.rounds],
        "run": asdict(run),
        "launch": trial.source.launch.as_rendered,
        "source_digest": trial.source.digest,
        "source": trial.source.text,
    }


def _verdict_facts(verdict: Verdict | None) -> dict[str, Any] | None:
    """As JSON has it, which knows no infinity: null where an element was wrong beyond measure."""
    if verdict is None:
        return None
    return {**asdict(verdict), "worst_ratio": verdict.worst_ratio if math.isfinite(verdict.worst_ratio) else None}


def trial_in_full(record: TrialRecord, console: Console, *, as_json: bool) -> None:
    """Print everything about a trial; its CUDA text comes last."""
    facts = trial_facts(record)
    if as_json:
        console.print_json(json.dumps(facts), ensure_ascii=True)
        return
    text = facts.pop("source")
    for name, value in facts.items():
        print_line(console, f"{name}: {_plain(value)}")
    print_line(console, f"\n{text}")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_plain(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
