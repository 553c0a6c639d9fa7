"""Delete rows that no trial refers to, and shrink the database file."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete

from tsm2_tune.tuner.results import forget
from tsm2_tune.tuner.results.storage import schema, sqlite
from tsm2_tune.tuner.results.storage.addresses import Address
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.runs.leases import is_unused

MOST_SECONDS = 20.0  # the longest lock; other runs wait for it up to BUSY_TIMEOUT_SECONDS


ROOM_OF_SERVERS = "PostgreSQL reuses the space of removed rows by itself"


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The result of `vacuum`."""

    removed: Mapping[str, int]  # number of rows by table, without zeros
    before_bytes: int = 0  # size of the file; 0 for a server
    after_bytes: int = 0
    is_compact: bool = True  # False if rewriting the file took too long

    def __str__(self) -> str:
        rows = ", ".join(f"{count} of {table}" for table, count in self.removed.items())
        room = f"{self.before_bytes} bytes before, {self.after_bytes} after" if self.before_bytes else ROOM_OF_SERVERS
        return f"{room}; rows removed: {rows or 'none'}"


def vacuum(place: Path | Address, *, alone: bool) -> Vacuumed:
    """Delete the rows that no trial refers to, and the expired leases of runs. Then shrink the file.

    Shrinking stops after MOST_SECONDS, unless `alone` is true: other runs cannot write meanwhile. Raise StoreError if
    the database cannot be written.
    """
    if isinstance(place, Address):
        return Vacuumed(_removed(place))
    before = os.path.getsize(place) if place.is_file() else 0
    removed = _removed(place)
    is_compact = _compact(place, alone=alone)
    return Vacuumed(removed, before, os.path.getsize(place), is_compact)


def _removed(place: Path | Address) -> Mapping[str, int]:
    """Delete the unused rows. Return the number of deleted rows for each table that had unused rows."""
    with Database.open(place, create=False) as database, database.transaction(writes=True) as connection:
        removed = forget.remove_unused(connection)
        expired = connection.execute(delete(schema.lease).where(is_unused(database.now(connection)))).rowcount
    return removed | ({schema.lease.name: expired} if expired else {})


def _compact(path: Path, *, alone: bool) -> bool:
    """Rewrite the file by SQLite's VACUUM. Return False if VACUUM was stopped, which leaves the file unchanged."""
    with closing(sqlite.connected(path, "rw")) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)  # VACUUM attaches the new file
        timer = threading.Timer(MOST_SECONDS, connection.interrupt)
        if not alone:
            timer.start()
        try:
            connection.execute("VACUUM")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                return False
            raise sqlite.refused(path, error) from error
        finally:
            timer.cancel()
            if timer.is_alive():
                timer.join()
    return True
