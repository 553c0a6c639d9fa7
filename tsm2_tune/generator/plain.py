"""Python's own numbers and texts of what a caller gives: NumPy's scalars become ints and floats, texts plain texts.

A whole number is whatever `operator.index` takes but for truth values and arrays, of any number of elements. A float
is none, even where it is whole: 8.0 is a mistake more often than a wish.
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
    """Return the whole number as an int. InputError for anything else, and outside these bounds."""
    try:
        if isinstance(value, bool) or hasattr(value, "__len__"):  # as arrays and tensors have, also those of 0-d
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        bounds = ("" if least is None else f" of at least {least}") + ("" if most is None else f", at most {most}")
        raise InputError(f"{what} = {shown(value)}: expected a whole number{bounds}")
    return number


def real(what: str, value: Any) -> float:
    """Return the real number as a float. InputError for anything else."""
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        return float(value)
    except (TypeError, OverflowError):
        raise InputError(f"{what} = {shown(value)}: expected a number") from None


def plain_text(what: str, value: Any) -> str:
    """Return the text as a str. InputError for anything else."""
    if not isinstance(value, str):
        raise InputError(f"{what} = {shown(value)}: expected a text")
    return str.__str__(value)


def truth(what: str, value: Any) -> bool:
    """Return the truth value as a bool. InputError for anything else."""
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's own has either name, by its version
        raise InputError(f"{what} = {shown(value)}: expected True or False")
    return bool(value)


OF_TYPE: dict[str, tuple[type, Callable[[str, Any], Any]]] = {
    "int": (int, whole),
    "float": (float, real),
    "str": (str, plain_text),
    "bool": (bool, truth),
}


def plain(record: Made) -> Made:
    """Let a dataclass convert its fields when it is made: those whose type OF_TYPE has, and tuples of these.

    It stands below `@dataclass`, whose `__post_init__` it makes. The class's own one, if there is any, follows.
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
    """Return its fields to convert: name, what OF_TYPE has, and whether it is a tuple of such, and may be None."""
    found = []
    for field in fields(record):
        text = str(field.type)
        alone = text.removesuffix(" | None")
        name = alone.removeprefix("tuple[").removesuffix("]").partition(",")[0]
        if name in OF_TYPE:
            found.append((field.name, OF_TYPE[name], alone.startswith("tuple["), alone != text))
    return found
