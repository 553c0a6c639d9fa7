"""Stamps order the trials and the finals of databases.

A stamp is the time in microseconds since 1970, but at least 1 more than the greatest stamp in the database. So stamps
have the order of insertion, even if the system clock jumps. An import keeps stamps unchanged. A final also has an
identity, by which two databases recognise it as the same final.
"""

from __future__ import annotations

import secrets
import time
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from tsm2_tune.tuner.results.storage import schema

_NEWEST = select(func.max(schema.trial.c.stamp))


class FinalStamp(NamedTuple):
    """The columns of a measurement that identify its final."""

    final: str
    final_stamp: int


def after(newest: int | None) -> int:
    """Return the stamp of a row that is stored now, if the greatest earlier stamp is `newest`."""
    return max(time.time_ns() // 1000, 0 if newest is None else newest + 1)


def next_trial_stamp(connection: Connection) -> int:
    """Return the stamp of a trial that is stored now."""
    return after(connection.execute(_NEWEST).scalar())


def new_final() -> str:
    """Return the identity of a final that is measured now."""
    return secrets.token_hex(8)


def of_date(text: str) -> int:
    """Return the stamp of a date in ISO 8601, for trials and finals that were stored without a stamp."""
    return max(0, int(datetime.fromisoformat(text).timestamp() * 1e6))
