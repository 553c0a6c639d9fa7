"""Stamps order what databases know: trials, and finals.

A stamp is the time in microseconds since 1970, but at least one more than the greatest stamp that the database has.
So the order of stamps is the order of insertion, whatever the clock says. A stamp survives imports unchanged. A final
has an identity besides, by which two databases know it as one.
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
    """The columns of a measurement that say of which final it is."""

    final: str
    final_stamp: int


def after(newest: int | None) -> int:
    """Return the stamp of something that is stored now, where the greatest stamp before is `newest`."""
    return max(time.time_ns() // 1000, 0 if newest is None else newest + 1)


def next_trial_stamp(connection: Connection) -> int:
    """Return the stamp of a trial that is stored now."""
    return after(connection.execute(_NEWEST).scalar())


def new_final() -> str:
    """Return the identity of a final that is measured now."""
    return secrets.token_hex(8)


def of_date(text: str) -> int:
    """Return the stamp of a date in ISO 8601, for trials and finals from before there were stamps."""
    return max(0, int(datetime.fromisoformat(text).timestamp() * 1e6))
