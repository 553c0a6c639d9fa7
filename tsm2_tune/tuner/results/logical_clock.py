"""Time stamps that order the trials and the final comparisons of merged databases.

A stamp is the time in microseconds since 1970, but at least 1 more than the greatest stamp in the database. So stamps
increase in the order of insertion, even if the system clock is set back. An import keeps stamps unchanged. A final
comparison also has a random id. All databases that have a copy of the comparison have the same id for it.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from tsm2_tune.errors import StoreError, shown
from tsm2_tune.tuner.results.domains import STAMP
from tsm2_tune.tuner.results.storage import schema

_NEWEST = select(func.max(schema.trial.c.stamp))


class FinalStamp(NamedTuple):
    """The two columns of `measurement` that identify a final comparison: its id and its time stamp."""

    final: str
    final_stamp: int


def after(newest: Any) -> int:
    """Return a new time stamp, greater than the stored stamp `newest`. Raise StoreError if `newest` is no stamp."""
    if newest is not None and not (isinstance(newest, int) and STAMP.contains(newest)):
        raise StoreError(
            f"the database has the stamp {shown(newest)}: restore a copy of it, or name another with --db"
        )
    return max(time.time_ns() // 1000, 0 if newest is None else newest + 1)


def next_trial_stamp(connection: Connection) -> int:
    """Return the time stamp for a trial that is stored now."""
    return after(connection.execute(_NEWEST).scalar())


def new_final() -> str:
    """Return a new random id for a final comparison: 16 hexadecimal digits."""
    return secrets.token_hex(8)
