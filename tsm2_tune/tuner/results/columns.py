"""Convert dataclass objects to the values of columns, and back.

A field is a column of the same name, unless RENAMED has another one. The fields of a class in NESTED are columns of
the record that contains an object of the class. If there is None instead of the object, these columns are NULL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import Table

from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.domains import domain_of, rates
from tsm2_tune.tuner.results.trial import DeviceIdentity, LoadedResources, TimeLimits, VendorMeasurement, Verdict

NESTED = (Ceilings, DeviceIdentity, LoadedResources, Problem, TimeLimits, Verdict)
RENAMED: dict[type, dict[str, str]] = {  # class -> columns of fields
    DeviceIdentity: {"name": "device_name", "uuid": "device_uuid"},
    Problem: {"dtype_name": "dtype"},
    TimeLimits: {"compile_seconds": "compile_limit_seconds", "run_seconds": "run_limit_seconds"},
    VendorMeasurement: {"version": "library_version"},
    Verdict: {"correct": "verdict_correct", "worst_ratio": "verdict_worst_ratio", "detail": "verdict_detail"},
}
T = TypeVar("T")


class Field(NamedTuple):
    """A field of a dataclass."""

    name: str
    column: str
    kind: Any  # its type, without None
    load: Callable[[Any], Any] | None  # converts a column's value to the field's; None: no conversion


def values_of(record: Any, table: Table) -> dict[str, Any]:
    """Return the values of the record's fields that are columns of the table. Long sentences are cut off."""
    found: dict[str, Any] = {}
    for name, columns, is_nested, most_characters in _stored_fields(cast(Hashable, type(record)), table):
        value = getattr(record, name)
        if not is_nested:
            found[columns[0]] = _stored(value, most_characters)
        elif value is None:
            found |= dict.fromkeys(columns)
        else:
            found |= values_of(value, table)
    return found


@cache
def _stored_fields(kind: Hashable, table: Table) -> tuple[tuple[str, tuple[str, ...], bool, int | None], ...]:
    """Return (name, columns, whether it is in NESTED, most characters) of each field with columns in the table."""
    assert isinstance(kind, type)
    found = []
    for field in fields_of(kind):
        is_nested = field.kind in NESTED
        columns = tuple(
            one.column for one in (fields_of(field.kind) if is_nested else (field,)) if one.column in table.c
        )
        most = None if is_nested or not columns else domain_of(table.c[field.column]).most_characters
        if columns:
            found.append((field.name, columns, is_nested, most))
    return tuple(found)


def record_of(kind: type[T], values: Mapping[str, Any], **given: Any) -> T:
    """Return an object of the class with these checked values of columns. `given` has the fields that are no columns.

    Raise ValueError if the columns of an object within it are NULL in part, or contradict each other.
    """
    for name, column, own, load in fields_of(cast(Hashable, kind)):
        if name in given:
            continue
        if own in NESTED:
            given[name] = nested_of(own, values)
        elif column in values:
            value = values[column]
            given[name] = value if value is None or load is None else load(value)
    return kind(**given)


def nested_of(kind: type[T], values: Mapping[str, Any]) -> T | None:
    """Return an object of a class in NESTED; None if its columns are NULL. Raise ValueError as in `record_of`."""
    columns = [one.column for one in fields_of(cast(Hashable, kind))]
    missing = [column for column in columns if values[column] is None]
    if missing:
        if len(missing) < len(columns) and kind is not TimeLimits:  # older versions stored one limit
            raise ValueError(f"{missing[0]} is missing")
        return None
    made = record_of(kind, values)
    if isinstance(made, Verdict) and made.correct and made.worst_ratio > 1:
        raise ValueError(f"a right result with an error of {made.worst_ratio} times its bound")
    return made


@cache
def fields_of(kind: Hashable) -> tuple[Field, ...]:
    """Return the fields of a dataclass, with the column of each."""
    assert isinstance(kind, type)
    hints, renamed = get_type_hints(kind), RENAMED.get(kind, {})
    kinds = {one.name: _without_none(hints[one.name]) for one in fields(kind)}
    return tuple(Field(name, renamed.get(name, name), own, _load(own)) for name, own in kinds.items())


def _without_none(hint: Any) -> Any:
    others = [one for one in get_args(hint) if one is not NoneType]
    return others[0] if NoneType in get_args(hint) and len(others) == 1 else hint


def _load(kind: Any) -> Callable[[Any], Any] | None:
    if get_origin(kind) is tuple:
        return _pairs
    return kind if isinstance(kind, type) and issubclass(kind, bool | Enum) else None


def _pairs(text: str) -> tuple[tuple[str, float], ...]:
    """Return the element types and rates in a JSON object."""
    return tuple(rates(text).items())


def _stored(value: Any, most_characters: int | None) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, tuple):  # pairs
        return json.dumps(dict(value))
    return value[:most_characters] if isinstance(value, str) else value
