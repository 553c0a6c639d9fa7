"""Check values against the domains of their columns. A database file is untrusted, so each value is checked before it
is used or printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, RowMapping

from tsm2_tune.errors import shown
from tsm2_tune.tuner.results.domains import COUNT, RATE, WORD, Domain

Row = RowMapping | Mapping[str, Any]
MOST_MEMBERS = 64  # members of a JSON object


def domain_of(column: Column[Any]) -> Domain:
    """Return the column's domain, with which schema.py declares it."""
    found: Domain = column.info["domain"]
    return found


def checked(row: Row, columns: Iterable[Column[Any]]) -> dict[str, Any]:
    """Return the row's values of these columns, by name, since SQLite stores any value in any column.

    Raise TypeError or ValueError if a value is not valid for its column.
    """
    values = {}
    for name, domain, kinds in map(_of_column, columns):
        value, kind = row[name], domain.kind
        if type(value) not in kinds and not isinstance(value, kinds):
            raise TypeError(f"{name} = {shown(value)} is not of type {kind.__name__}")
        if value is not None and not domain.contains(value):
            raise ValueError(f"{name} = {shown(value)} is not a value of this column")
        values[name] = float(value) if kind is float and type(value) is int else value
    return values


@cache
def _of_column(column: Column[Any]) -> tuple[str, Domain, tuple[type, ...]]:
    """Return the column's name, its domain, and all types that its values may have."""
    domain = domain_of(column)
    kind = domain.kind
    return column.name, domain, (kind, *([int] if kind is float else ()), *([type(None)] if column.nullable else ()))


def tunables(text: str) -> dict[str, int | str]:
    """Return the tunable parameters in a JSON object, by name. Raise ValueError if the text is anything else."""
    values = _flat(text)
    for name, value in values.items():
        fits = COUNT.contains(value) if type(value) is int else isinstance(value, str) and WORD.contains(value)
        if not WORD.contains(name) or not fits:
            raise ValueError(f"{shown(name)}: {shown(value)} is not a tunable")
    return values


def rates(text: str) -> dict[str, float]:
    """Return the rates in a JSON object, by element type. Raise ValueError if the text is anything else."""
    values = _flat(text)
    for name, value in values.items():
        if not WORD.contains(name) or type(value) not in (int, float) or not RATE.contains(value):
            raise ValueError(f"{shown(name)}: {shown(value)} is not a rate")
    return {name: float(value) for name, value in values.items()}


def _flat(text: str) -> dict[str, Any]:
    """Return the JSON object in the text. Raise ValueError if it is not an object or has too many members."""
    values = json.loads(text)
    if not isinstance(values, dict) or len(values) > MOST_MEMBERS:
        raise ValueError(f"{shown(text)} is not a valid JSON object")
    return values
