"""Convert dataclass objects to the values of columns, and back.

A field is a column of the same name. The fields of some classes (COLUMNS) are columns of the record that contains an
object of the class. If there is None instead of the object, all these columns are NULL.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from sqlalchemy import Table

from tsm2_tune.tuner.results.trial import LoadedResources, TimeLimits, Verdict
from tsm2_tune.tuner.results.validation import MOST_DETAIL

# Class -> column of each field.
COLUMNS: dict[type, dict[str, str]] = {
    LoadedResources: {name: name for name in ("registers", "local_bytes", "smem_bytes", "blocks_per_sm")},
    TimeLimits: {"compile_seconds": "compile_limit_seconds", "run_seconds": "run_limit_seconds"},
    Verdict: {"correct": "verdict_correct", "worst_ratio": "verdict_worst_ratio", "detail": "verdict_detail"},
}
T = TypeVar("T")


def values_of(record: Any, table: Table) -> dict[str, Any]:
    """Return the values of the record's fields that are columns of the table. Long sentences are cut off."""
    found: dict[str, Any] = {}
    for name, kind in _kinds(cast(Hashable, type(record))).items():
        value = getattr(record, name)
        if kind in COLUMNS:
            found |= {column: None if value is None else getattr(value, own) for own, column in COLUMNS[kind].items()}
        elif name in table.columns:
            found[name] = value
    return {name: _stored(name, value) for name, value in found.items()}


def record_of(kind: type[T], values: Mapping[str, Any], **given: Any) -> T:
    """Return an object of the class with these checked values of columns. `given` has the fields that are no columns.

    Raise ValueError if the columns of an object within it are NULL in part, or contradict each other.
    """
    for name, own in _kinds(cast(Hashable, kind)).items():
        if name not in given and (own in COLUMNS or name in values):
            given[name] = nested_of(own, values) if own in COLUMNS else _loaded(own, values[name])
    return kind(**given)


def nested_of(kind: type[T], values: Mapping[str, Any]) -> T | None:
    """Return an object of a class in COLUMNS; None if its columns are NULL. Raise ValueError as in `record_of`."""
    found = {name: values[column] for name, column in COLUMNS[kind].items()}
    missing = [COLUMNS[kind][name] for name, value in found.items() if value is None]
    if missing:
        if len(missing) < len(found) and kind is not TimeLimits:  # older versions stored one limit
            raise ValueError(f"{missing[0]} is missing")
        return None
    made = kind(**{name: _loaded(own, found[name]) for name, own in _kinds(cast(Hashable, kind)).items()})
    if isinstance(made, Verdict) and made.correct and made.worst_ratio > 1:
        raise ValueError(f"a right result with an error of {made.worst_ratio} times its bound")
    return made


@cache
def _kinds(kind: Hashable) -> dict[str, Any]:
    """Return the class of each field of the dataclass, without None."""
    assert isinstance(kind, type)
    hints = get_type_hints(kind)
    return {one.name: _without_none(hints[one.name]) for one in fields(kind)}


def _without_none(hint: Any) -> Any:
    others = [one for one in get_args(hint) if one is not NoneType]
    return others[0] if NoneType in get_args(hint) and len(others) == 1 else hint


def _stored(name: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool):
        return int(value)
    return value[:MOST_DETAIL] if name in ("detail", "verdict_detail") and value is not None else value


def _loaded(kind: Any, value: Any) -> Any:
    is_converted = value is not None and isinstance(kind, type) and issubclass(kind, bool | Enum)
    return kind(value) if is_converted else value
