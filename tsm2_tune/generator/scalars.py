"""Conversion of a caller's values, such as NumPy scalars, to int, float, str and bool.

An integer is any value that `operator.index` accepts, except bools and arrays. A float such as 8.0 is rejected where
an integer is expected, since it is usually a mistake.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from numbers import Real
from typing import Any, TypeVar

from tsm2_tune.errors import InputError, shown

Made = TypeVar("Made", bound=type[Any])


def whole(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return the value as an int. Raise InputError, which names `what`, if it is no integer in `least` ... `most`."""
    try:
        if isinstance(value, bool) or hasattr(value, "__len__"):  # arrays and tensors, even 0-d ones, have a length
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        bounds = ("" if least is None else f" of at least {least}") + ("" if most is None else f", at most {most}")
        raise InputError(f"{what} = {shown(value)}: expected a whole number{bounds}")
    return number


def real(what: str, value: Any, expected: str = "a number") -> float:
    """Return the value as a float. Raise InputError, which states `expected`, if it is no real number."""
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        return float(value)
    except (TypeError, OverflowError):
        raise InputError(f"{what} = {shown(value)}: expected {expected}") from None


def plain_text(what: str, value: Any) -> str:
    """Return a str, or an instance of a subclass, as a plain str. Raise InputError for another value."""
    if not isinstance(value, str):
        raise InputError(f"{what} = {shown(value)}: expected a text")
    return str.__str__(value)


def truth(what: str, value: Any) -> bool:
    """Return a bool or a NumPy bool as a bool. Raise InputError for another value."""
    if type(value).__name__ not in ("bool", "bool_"):  # the name of NumPy's bool depends on the version
        raise InputError(f"{what} = {shown(value)}: expected True or False")
    return bool(value)


OF_TYPE: dict[str, tuple[type, Callable[[str, Any], Any]]] = {
    "int": (int, whole),
    "float": (float, real),
    "str": (str, plain_text),
    "bool": (bool, truth),
}


def plain(record: Made) -> Made:
    """Decorate a dataclass so that new instances convert their scalar fields and tuples of scalars.

    Use it below `@dataclass`: it defines the `__post_init__` that the dataclass calls. The class's own
    `__post_init__`, if any, runs afterwards.
    """
    own = record.__dict__.get("__post_init__")

    def __post_init__(self: Any) -> None:
        for name, (kind, convert), is_tuple, is_optional in _scalars(type(self)):  # type: ignore[arg-type]  # hashable
            value = getattr(self, name)
            if type(value) is kind or (value is None and is_optional):
                continue
            made = tuple([convert(name, one) for one in value]) if is_tuple else convert(name, value)
            object.__setattr__(self, name, made)
        if own is not None:
            own(self)

    record.__post_init__ = __post_init__
    return record


@cache
def _scalars(record: type[Any]) -> list[tuple[str, tuple[type, Callable[[str, Any], Any]], bool, bool]]:
    """Return, for each field to convert, a tuple of four.

    The tuple contains the field's name, (type, converter), whether the field is a tuple, and whether it may be None.
    """
    found = []
    for field in fields(record):
        text = str(field.type)
        alone = text.removesuffix(" | None")
        name = alone.removeprefix("tuple[").removesuffix("]").partition(",")[0]
        if name in OF_TYPE:
            found.append((field.name, OF_TYPE[name], alone.startswith("tuple["), alone != text))
    return found
