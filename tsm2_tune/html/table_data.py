"""Tables of a page and the numbers in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Number:
    """A cell with a number, which rows are sorted by."""

    value: float | None
    text: str


Cell = str | Number


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads; the first cell of a row is its head."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_sortable: bool = False
    note: str = ""  # what is left out

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column has numbers, which are aligned on the right."""
        return tuple(
            bool(self.rows) and all(isinstance(row[place], Number) for row in self.rows)
            for place in range(len(self.heads))
        )

    def without_one(self, head: str) -> Table:
        """Return the table without the column of this head if all rows have the same value there."""
        place = self.heads.index(head)
        if len({row[place] for row in self.rows}) > 1:
            return self
        rows = tuple(row[:place] + row[place + 1 :] for row in self.rows)
        return replace(self, heads=self.heads[:place] + self.heads[place + 1 :], rows=rows)


def fixed(value: float | None, digits: int) -> Number:
    """Return a cell with `digits` digits after the decimal point, or a dash for None."""
    return Number(value, "-" if value is None else f"{value:,.{digits}f}")


def rounded(value: float | None) -> Number:
    """Return a cell with three significant digits, or a dash for None."""
    if value is None:
        return Number(None, "-")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 4
    return fixed(value, digits)


def count(value: int | None) -> Number:
    return fixed(value, 0)


def columnar(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return the rows by columns, with each text once, as the page's data has them.

    A column of texts is {"texts": [...], "at": [...]}. Any other is a list, with fractions of 6 significant digits.
    """
    table = list(rows)
    return {name: _column([row[name] for row in table]) for name in names}


def _column(values: list[Any]) -> Any:
    if not any(isinstance(value, str) for value in values):
        return [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
    places: dict[str, int] = {}
    at = [places.setdefault(value, len(places)) for value in values]
    return {"texts": list(places), "at": at}
