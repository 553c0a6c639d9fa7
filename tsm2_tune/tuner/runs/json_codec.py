"""Encode the messages between a run and the workers of a Dask cluster as JSON.

Received messages are untrusted. Only the classes named in this module are decoded, and each value must have its
field's type.
"""

from __future__ import annotations

import collections.abc
import json
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from tsm2_tune import errors
from tsm2_tune.errors import TuneError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.tuner.results.records import config_of

MOST_CHARACTERS = 1 << 26  # of one message
NOT_SENT = ("wrap",)  # fields of Toolchain that belong to one process
ERRORS = {name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, TuneError)}


class Malformed(Exception):
    """Error: a received message is not valid."""


def encode(record: object) -> str:
    """Return the dataclass object as JSON."""
    return json.dumps(_plain(record))


def decode(text: object, kinds: tuple[type[Any], ...]) -> Any:
    """Decode JSON that `encode` returned, as one of the classes `kinds`. Raise Malformed for any other text."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        raise Malformed("no text")
    try:
        found = json.loads(text)
        return _decoded(_chosen(kinds, _object(found)), found)
    except Exception as error:  # values of any kind, in any order
        raise Malformed(str(error)) from error


def _plain(value: Any) -> Any:
    """Return the value as JSON's types. An object becomes a dict, in which "is" contains the name of its class."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case KernelConfig():
            return {"is": "KernelConfig", "family": value.family, "config": value.text, "tunables": value.json}
        case TuneError():
            kind = next(one.__name__ for one in type(value).__mro__ if one.__name__ in ERRORS)
            return {"is": "TuneError", "class": kind, "text": str(value)}
        case collections.abc.Mapping():
            return {key: _plain(one) for key, one in value.items()}
        case tuple() | list() | set() | frozenset():
            return [_plain(one) for one in value]
    assert is_dataclass(value), type(value)
    return {"is": type(value).__name__} | {
        name: _plain(getattr(value, name)) for name in _sent(cast(Hashable, type(value)))
    }


def _decoded(hint: Any, found: Any) -> Any:
    """Decode a value of type `hint` that `_plain` encoded. Raise an exception of any kind if the value is invalid."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decoded(_chosen(inner, found), found)
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_decoded(each, one) for each, one in zip(inner, _list(found), strict=True))
    if origin in (tuple, list, frozenset):
        return origin(_decoded(inner[0], one) for one in _list(found))
    if origin is collections.abc.Mapping:
        return {key: _decoded(inner[1], one) for key, one in _object(found).items()}
    if hint is float and type(found) is int:
        return float(found)
    if hint in (NoneType, bool, int, float, str):
        if type(found) is not hint:
            raise TypeError(f"{errors.shown(found)} is not of type {hint.__name__}")
        return found
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(found)
    record = _object(found)
    if hint is KernelConfig:
        return config_of(*(_decoded(str, record[name]) for name in ("family", "config", "tunables")))
    if hint is TuneError:
        return ERRORS[_decoded(str, record["class"])](_decoded(str, record["text"]))
    return hint(**{name: _decoded(one, record[name]) for name, one in _sent(hint).items()})


def _chosen(of: tuple[Any, ...], found: Any) -> Any:
    """Return the type in `of` of the encoded value. Raise IndexError if the value has none of these types."""
    others = [one for one in of if one is not NoneType]
    if found is not None and len(others) == 1:
        return others[0]
    if isinstance(found, dict):
        return [one for one in of if getattr(one, "__name__", "") == found["is"]][0]  # noqa: RUF015
    if isinstance(found, list):
        return [one for one in of if get_origin(one) is list][0]  # noqa: RUF015
    return type(found) if type(found) in of else [one for one in of if one in (float, NoneType)][0]  # noqa: RUF015


@cache
def _sent(kind: Hashable) -> dict[str, Any]:
    """Return the type of each field of the dataclass, by name, without the fields in NOT_SENT."""
    assert isinstance(kind, type)
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.name not in NOT_SENT}


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError("no list")
    return found


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("no record")
    return found
