"""Opening results.db: what SQLite refuses, and whatever else a file can be, each in one sentence."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner import schema

BUSY_TIMEOUT_SECONDS = 30.0  # how long to wait for another program's lock

# SQLite's primary result code -> what is wrong and what to do.
REMEDIES = {
    sqlite3.SQLITE_NOTADB: "is no SQLite database: name another file with --db",
    sqlite3.SQLITE_CORRUPT: "is a damaged database: restore a copy of it, or name another file with --db",
    sqlite3.SQLITE_BUSY: "is locked by another program: wait until that has ended, then run this again",
    sqlite3.SQLITE_READONLY: "cannot be written: make it and its folder writable, or name another with --db",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: make its folder exist and be writable, or name another with --db",
    sqlite3.SQLITE_PERM: "cannot be opened: check its permissions, or name another file with --db",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full: free some space, then run this again",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk reports an error: name another file with --db",
}


class Database:
    """A file of ours, open: every use of it is one transaction."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, create: bool) -> Iterator[Database]:
        """The database at `path`. With `create` it is made where it is missing, and must be writable.

        StoreError where it cannot be used: missing, no database, another program's, a newer version's, locked,
        or not writable. A file of an older schema is migrated.
        """
        if os.path.isdir(path):  # unlike Path's, these do not raise below a folder that cannot be read
            raise StoreError(f"{path} is a folder: name a file with --db")
        if not create and not os.path.exists(path):
            raise StoreError(f"no database {path}: tune first, or name another file with --db")
        try:
            engine = _engine(path, create=create)
        except OSError as error:  # only a relative path is looked up here
            raise StoreError(
                f"{path} cannot be found ({error.strerror}: the working folder):"
                " go to a folder that is there, or name the whole path with --db"
            ) from error
        database = cls(path, engine)
        try:
            database._prepare(create=create)
            yield database
        finally:
            database._engine.dispose()

    def _prepare(self, *, create: bool) -> None:
        """Create or migrate the file where needed, and see that it is ours."""
        with self.transaction() as connection:
            found = schema.found_version(connection, str(self.path))
        if found == 0 and not create:
            raise StoreError(f"{self.path} holds no results yet: tune first, or name another file with --db")
        if not create and found == schema.version():
            return
        with self.transaction(writes=True) as connection:
            found = schema.found_version(connection, str(self.path))  # again: now nobody else can change it
            if found < schema.version():
                schema.upgrade(connection, found)
            else:  # a write that changes nothing, so that a file that refuses it does so before the work
                connection.exec_driver_sql(f"PRAGMA user_version = {found}")

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """One transaction; what SQLite refuses becomes a StoreError."""
        try:
            with self._engine.execution_options(writes=writes).begin() as connection:
                yield connection
        except DBAPIError as error:
            code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            refusal = f"was refused by SQLite ({error.orig}): restore a copy, or name another file with --db"
            raise StoreError(f"{self.path} {REMEDIES.get(code, refusal)}") from error
        except UnicodeDecodeError as error:  # SQLite's message quotes bytes of the file that are no text
            raise StoreError(f"{self.path} {REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error


def _engine(path: Path, *, create: bool) -> Engine:
    """Connections in which SQLite alone, and not Python's driver, begins and ends transactions."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")  # a view in a file from elsewhere runs no functions
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock at once: a transaction that reads first could not wait for it later.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
