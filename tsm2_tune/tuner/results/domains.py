"""Domains: the valid values of a column. schema.py names the domain of each column.

A database file is untrusted, so each value is checked before it is used or printed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Column, RowMapping

from tsm2_tune.errors import shown
from tsm2_tune.generator.dtypes import DTYPES
from tsm2_tune.generator.problem import INT32_MAX
from tsm2_tune.tuner.measure.vendor.libraries import FILES
from tsm2_tune.tuner.results.trial import MOST_TEXT, Cache, Outcome

Row = RowMapping | Mapping[str, Any]
MOST_MEMBERS = 64  # members of a JSON object
MOST_DETAIL, MOST_KERNEL, MOST_JSON = 2**14, 2**19, 4096  # characters of a sentence, a kernel's text, a JSON object
MOST_PARAGRAPHS = 256  # of a kernel's text; the last one contains the rest
MOST_SAMPLES = 4096  # samples of a measurement
MOST_STAMP = 2**62  # thousands of years in the future, so that each stamp has a successor
MOST_TIME_US = 1e15  # about 30 years

_NAME = r"[a-z][a-z0-9_]{0,63}"
_VALUE = rf"{_NAME}=[a-z0-9]{{1,80}}"
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)")  # ISO 8601


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """The valid values of a column: their type, and a test for values of this type."""

    kind: type
    contains: Callable[[Any], bool]
    most_characters: int | None = None  # texts are cut off there when they are stored


def words(pattern: str) -> Domain:
    """Return the domain of the texts that match the whole pattern."""
    compiled = re.compile(pattern)
    return Domain(str, lambda text: compiled.fullmatch(text) is not None)


def one_of(values: Iterable[str]) -> Domain:
    return Domain(str, frozenset(values).__contains__)


def integers(least: int, most: int) -> Domain:
    return Domain(int, lambda value: least <= value <= most)


def reals(least: float, most: float) -> Domain:
    """Return the domain of the numbers from `least` to `most`, without NaN."""
    return Domain(float, lambda value: least <= value <= most)


def texts(most: int, *, is_cut: bool = False) -> Domain:
    """Return the domain of the texts of at most `most` characters that can be encoded as UTF-8."""
    return Domain(str, lambda text: len(text) <= most and _is_encodable(text), most if is_cut else None)


def _is_encodable(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8: it has no unpaired surrogate, which JSON can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_date(text: str) -> bool:
    if not _UTC.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


ID = integers(0, 2**63 - 1)  # SQLite's largest integer
COUNT, POSITIVE, FLAG = integers(0, INT32_MAX), integers(1, INT32_MAX), integers(0, 1)
BATCHED = integers(0, 2)
STAMP, ROUND, SAMPLES = integers(0, MOST_STAMP), integers(-INT32_MAX, INT32_MAX), integers(1, MOST_SAMPLES)
QUANTITY, TIME_US = reals(0.0, MOST_TIME_US), reals(1e-6, MOST_TIME_US)
RATE, RATIO = reals(1e-6, 1e12), reals(0.0, math.inf)  # in 1e9 per second; an error over its bound
LINE = Domain(str, lambda text: len(text) <= MOST_TEXT and text.isprintable())
SENTENCE, KERNEL_TEXT, JSON = texts(MOST_DETAIL, is_cut=True), texts(MOST_KERNEL), texts(MOST_JSON)
DATE = Domain(str, _is_date)
CACHE, OUTCOME, DTYPE, LIBRARY = one_of(Cache), one_of(Outcome), one_of(DTYPES), one_of(FILES)
NAME, WORD = words(_NAME), words(r"[a-z0-9_]{1,20}")
RULE, STRATEGY, REASON = words(r"[a-z][a-z0-9-]{0,63}"), words(r"[a-z][a-z0-9:-]{0,63}"), words(r"[a-z][a-z -]{0,63}")
# A configuration's text in this version's spelling and in older spellings.
CONFIG = words(rf"{_NAME}(:({_VALUE}(,{_VALUE}){{0,64}})?|(-[a-z0-9]{{1,20}}){{0,64}})")
ROUTINE = words(r"cublas[A-Za-z0-9]{1,40}( #[1-9][0-9]{0,2})?")
SHA256, KEY = words(r"[0-9a-f]{64}"), words(r"[0-9a-f]{16}")
KEYS = words(rf"[0-9a-f]{{16}}( [0-9a-f]{{16}}){{0,{MOST_PARAGRAPHS - 1}}}")
CODES = words(r"[0-9a-f]{64} [0-9a-f]{64}")  # one digest for each index width
# Values that a device can launch, and its number of multiprocessors. Columns are NULL if a value is unknown.
THREADS = integers(1, 1024)  # per block, on every CUDA device
SMEM_BYTES = integers(0, 232448)  # per block: 227 KiB, the most of any CUDA device
SPLITS, SMS = integers(1, 65535), integers(1, 65536)


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
