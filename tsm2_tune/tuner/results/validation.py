"""The valid values of each column. A database file is untrusted, so each value is checked before it is used or
printed.

BY_NAME contains the valid values of columns by name, for every table and query. For a column that is not in BY_NAME,
the column's type determines the valid values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Column, RowMapping

from tsm2_tune.errors import shown
from tsm2_tune.generator.problem import DTYPES, INT32_MAX
from tsm2_tune.tuner.measure.vendor.libraries import FILES
from tsm2_tune.tuner.results.trial import MOST_TEXT, Cache, Outcome

Row = RowMapping | Mapping[str, Any]
Domain = Callable[[Any], bool]

MOST_DETAIL, MOST_KERNEL = 2**14, 2**19  # characters of a sentence; characters of a kernel's text
MOST_PARAGRAPHS = 256  # of a kernel's text; the last one contains the rest
MOST_ID = 2**63 - 1  # SQLite's largest integer
LEAST_TIME_US, MOST_TIME_US = 1e-6, 1e15  # range of measured times; the largest is about 30 years
LEAST_RATE, MOST_RATE = 1e-6, 1e12  # range of rates, in 1e9 per second
MOST_STAMP = 2**62  # thousands of years in the future, so that each stamp has a successor
MOST_MEMBERS, MOST_JSON = 64, 4096  # members of a JSON object; its characters
MOST_SAMPLES = 4096  # samples of a measurement

_RULE = re.compile(r"[a-z][a-z0-9-]{0,63}")
_ENDED = re.compile(r"[a-z][a-z -]{0,63}")
_STRATEGY = re.compile(r"[a-z][a-z0-9:-]{0,63}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# A configuration's text in this version's spelling and in older spellings.
_CONFIG = re.compile(
    r"[a-z][a-z0-9_]{0,63}"
    r"(:([a-z][a-z0-9_]{0,63}=[a-z0-9]{1,80}(,[a-z][a-z0-9_]{0,63}=[a-z0-9]{1,80}){0,64})?|(-[a-z0-9]{1,20}){0,64})"
)
_WORD = re.compile(r"[a-z0-9_]{1,20}")
_ROUTINE = re.compile(r"cublas[A-Za-z0-9]{1,40}( #[1-9][0-9]{0,2})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[0-9a-f]{16}")
_KEYS = re.compile(rf"[0-9a-f]{{16}}( [0-9a-f]{{16}}){{0,{MOST_PARAGRAPHS - 1}}}")
_FINAL = re.compile(r"[0-9a-f]{16}")
_CODES = re.compile(r"[0-9a-f]{64} [0-9a-f]{64}")  # one digest for each index width
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)")  # ISO 8601


def matching(pattern: re.Pattern[str]) -> Domain:
    return lambda text: pattern.fullmatch(text) is not None


def between(least: float, most: float) -> Domain:
    """Return a function that tests whether a number is from `least` to `most`. It returns False for NaN."""
    return lambda value: least <= value <= most


def up_to(characters: int) -> Domain:
    """Return a function that tests whether a text has at most `characters` characters and can be encoded as UTF-8."""
    return lambda text: len(text) <= characters and _is_encodable(text)


def _is_encodable(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8: it has no unpaired surrogate, which JSON can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_line(text: str) -> bool:
    return len(text) <= MOST_TEXT and text.isprintable()


def _is_time(text: str) -> bool:
    if not _UTC.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


COUNT, ID = between(0, INT32_MAX), between(0, MOST_ID)
TIME_US, RATE = between(LEAST_TIME_US, MOST_TIME_US), between(LEAST_RATE, MOST_RATE)
BY_TYPE: dict[type, Domain] = {str: _is_line, int: COUNT, float: between(0.0, MOST_TIME_US)}
BY_NAME: dict[str, Domain] = {
    **dict.fromkeys(("id", "run_id", "problem_id", "trial_id", "measurement_id", "flops", "least_bytes"), ID),
    **dict.fromkeys(("family", "kernel"), matching(_NAME)),
    **dict.fromkeys(("digest", "source_digest", "tools"), matching(_SHA256)),
    **dict.fromkeys(("started_at", "ended_at", "tuned_at", "last_at"), _is_time),
    **dict.fromkeys(("detail", "verdict_detail", "full_verdict"), up_to(MOST_DETAIL)),
    **dict.fromkeys(("tunables", "parameters", "gflops"), up_to(MOST_JSON)),
    **dict.fromkeys(("median_us", "newest_us"), TIME_US),
    **dict.fromkeys(("read_gbytes_per_s", "copy_gbytes_per_s"), RATE),
    **dict.fromkeys(
        ("verdict_correct", "is_new", "stale", "verified_in_full", "persistent", "is_between", "superseded"),
        between(0, 1),
    ),
    "verified_code": matching(_CODES),
    "cache": set(Cache).__contains__,
    "guideline_broken": matching(_RULE),
    "text": up_to(MOST_KERNEL),
    "key": matching(_KEY),
    "paragraphs": matching(_KEYS),
    **dict.fromkeys(("config", "suspect"), matching(_CONFIG)),
    "strategy": matching(_STRATEGY),
    "search_ended": matching(_ENDED),
    "outcome": set(Outcome).__contains__,
    "dtype": DTYPES.__contains__,
    "op": matching(_WORD),
    "seed": ID,
    **dict.fromkeys(("stamp", "final_stamp"), between(0, MOST_STAMP)),
    "final": matching(_FINAL),
    "round": between(-INT32_MAX, INT32_MAX),
    "summary_of": between(1, MOST_SAMPLES),
    "library": set(FILES).__contains__,
    "routine": matching(_ROUTINE),
    "verdict_worst_ratio": between(0.0, math.inf),
    # Values that a device can launch. A trial has the values of its loaded kernel, and 0 if they are unknown.
    "threads": between(1, 1024),  # per block, on every CUDA device
    "rows_per_block": between(1, INT32_MAX),
    "smem_bytes": between(0, 232448),  # per block: 227 KiB, the most of any CUDA device
    "splits": between(1, 65535),
    "flat_splits": between(1, INT32_MAX),
    "sms": between(1, 65536),
}


def checked(row: Row, columns: Iterable[Column[Any]]) -> dict[str, Any]:
    """Return the row's values of these columns, by name. Raise TypeError or ValueError if a value is not valid for
    its column.

    The check is needed because SQLite can store a value of any type in any column.
    """
    values = {}
    for name, kind, kinds, is_stored in map(_of_column, columns):
        value = row[name]
        if type(value) not in kinds and not isinstance(value, kinds):
            raise TypeError(f"{name} = {shown(value)} is not of type {kind.__name__}")
        if value is not None and not is_stored(value):
            raise ValueError(f"{name} = {shown(value)} is not a value of this column")
        values[name] = float(value) if kind is float and type(value) is int else value
    return values


@cache
def _of_column(column: Column[Any]) -> tuple[str, type, tuple[type, ...], Domain]:
    """Return the column's name, its type, all types that its values may have, and the function that tests a value."""
    kind = column.type.python_type
    kinds = (kind, *([int] if kind is float else ()), *([type(None)] if column.nullable else ()))
    return column.name, kind, kinds, BY_NAME.get(column.name, BY_TYPE[kind])


def tunables(text: str) -> dict[str, int | str]:
    """Return the tunable parameters in a JSON object, by name. Raise ValueError if the text is anything else."""
    values = _flat(text)
    for name, value in values.items():
        fits = COUNT(value) if type(value) is int else isinstance(value, str) and matching(_WORD)(value)
        if not _WORD.fullmatch(name) or not fits:
            raise ValueError(f"{shown(name)}: {shown(value)} is not a tunable")
    return values


def rates(text: str) -> dict[str, float]:
    """Return the rates in a JSON object, by element type. Raise ValueError if the text is anything else."""
    values = _flat(text)
    for name, value in values.items():
        if not _WORD.fullmatch(name) or type(value) not in (int, float) or not RATE(value):
            raise ValueError(f"{shown(name)}: {shown(value)} is not a rate")
    return {name: float(value) for name, value in values.items()}


def _flat(text: str) -> dict[str, Any]:
    """Return the JSON object in the text. Raise ValueError if it is not an object or has too many members."""
    values = json.loads(text)
    if not isinstance(values, dict) or len(values) > MOST_MEMBERS:
        raise ValueError(f"{shown(text)} is not a valid JSON object")
    return values
