"""Convert dataclass objects to the values of columns, and back.

A field is a column of the same name, unless RENAMED has another one. The fields of a class in NESTED are columns of
the record that contains an object of the class. If there is None instead of the object, these columns are NULL.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import Column, Table

from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import DeviceIdentity, LoadedResources, TimeLimits, VendorMeasurement, Verdict
from tsm2_tune.tuner.results.validation import domain_of, rates

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


def values_of(record: Any, table: Table) -> dict[str, Any]:
    """Return the values of the record's fields that are columns of the table. Long sentences are cut off."""
    found: dict[str, Any] = {}
    for name, column, kind in fields_of(type(record)):
        value = getattr(record, name)
        if kind in NESTED:
            own = fields_of(kind) if value is None else ()
            found |= {one.column: None for one in own if one.column in table.c}
            found |= {} if value is None else values_of(value, table)
        elif column in table.c:
            found[column] = _stored(table.c[column], value)
    return found


def record_of(kind: type[T], values: Mapping[str, Any], **given: Any) -> T:
    """Return an object of the class with these checked values of columns. `given` has the fields that are no columns.

    Raise ValueError if the columns of an object within it are NULL in part, or contradict each other.
    """
    for name, column, own in fields_of(kind):
        if name not in given and (own in NESTED or column in values):
            given[name] = nested_of(own, values) if own in NESTED else _loaded(own, values[column])
    return kind(**given)


def nested_of(kind: type[T], values: Mapping[str, Any]) -> T | None:
    """Return an object of a class in NESTED; None if its columns are NULL. Raise ValueError as in `record_of`."""
    columns = [one.column for one in fields_of(kind)]
    missing = [column for column in columns if values[column] is None]
    if missing:
        if len(missing) < len(columns) and kind is not TimeLimits:  # older versions stored one limit
            raise ValueError(f"{missing[0]} is missing")
        return None
    made = record_of(kind, values)
    if isinstance(made, Verdict) and made.correct and made.worst_ratio > 1:
        raise ValueError(f"a right result with an error of {made.worst_ratio} times its bound")
    return made


def fields_of(kind: type) -> tuple[Field, ...]:
    """Return the fields of a dataclass, with the column of each."""
    return _fields_of(cast(Hashable, kind))


@cache
def _fields_of(kind: Hashable) -> tuple[Field, ...]:
    assert isinstance(kind, type)
    hints, renamed = get_type_hints(kind), RENAMED.get(kind, {})
    return tuple(
        Field(one.name, renamed.get(one.name, one.name), _without_none(hints[one.name])) for one in fields(kind)
    )


def _without_none(hint: Any) -> Any:
    others = [one for one in get_args(hint) if one is not NoneType]
    return others[0] if NoneType in get_args(hint) and len(others) == 1 else hint


def _stored(column: Column[Any], value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, tuple):  # pairs
        return json.dumps(dict(value))
    return value[: domain_of(column).most_characters] if isinstance(value, str) else value


def _loaded(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:  # pairs: element types and rates
        return tuple(rates(value).items())
    is_converted = value is not None and isinstance(kind, type) and issubclass(kind, bool | Enum)
    return kind(value) if is_converted else value
