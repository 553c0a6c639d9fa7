"""Tables of the HTML page, and numbers in their cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Number:
    """A table cell with a number: its value, by which rows can be sorted, and its text."""

    value: float | None
    text: str


Cell = str | Number


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the HTML page. The first cell of a row is the row's heading."""

    caption: str
    heads: tuple[str, ...]  # headings of the columns
    rows: tuple[tuple[Cell, ...], ...]
    is_sortable: bool = False
    note: str = ""  # about omitted rows

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether all of its cells are numbers, which are right-aligned."""
        return tuple(
            bool(self.rows) and all(isinstance(row[place], Number) for row in self.rows)
            for place in range(len(self.heads))
        )

    @classmethod
    def of(
        cls,
        caption: str,
        rows: Sequence[T],
        columns: Mapping[str, Callable[[T], Cell]],
        *,
        note: str = "",
        is_sortable: bool = False,
        constant: Collection[str] = (),
    ) -> Table:
        """Return a table of the rows. `columns` are functions that return a row's cell, by heading.

        A column in `constant` is omitted if all rows have the same value in this column.
        """
        cells = {head: [cell(row) for row in rows] for head, cell in columns.items()}
        shown = {head: column for head, column in cells.items() if head not in constant or len(set(column)) > 1}
        return cls(caption, tuple(shown), tuple(zip(*shown.values(), strict=True)), is_sortable, note)


def fixed(value: float | None, digits: int) -> Number:
    """Return a table cell with `digits` digits after the decimal point, or with a dash for None."""
    return Number(value, "-" if value is None else f"{value:,.{digits}f}")


def rounded(value: float | None) -> Number:
    """Return a table cell with about three significant digits, or with a dash for None."""
    if value is None:
        return Number(None, "-")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 4
    return fixed(value, digits)


def count(value: int | None) -> Number:
    return fixed(value, 0)


def columnar(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return the rows as columns in the compact form of the page's data: name -> column.

    A column of texts is {"texts": distinct texts, "at": an index for each row}. A column of numbers is a list; floats
    have 6 significant digits.
    """
    table = list(rows)
    return {name: _column([row[name] for row in table]) for name in names}


def _column(values: list[Any]) -> Any:
    if not any(isinstance(value, str) for value in values):
        return [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
    places: dict[str, int] = {}
    at = [places.setdefault(value, len(places)) for value in values]
    return {"texts": list(places), "at": at}
