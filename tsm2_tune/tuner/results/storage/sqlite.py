"""Connections to SQLite files, and copies of files. Each error becomes a StoreError with one sentence.

A SQLite file is untrusted. SQLite is configured not to execute anything that the file defines. The time and the
memory of a query are limited in proportion to the file's size.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Executable, RowMapping, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage.addresses import TEXT_BEGIN, TEXT_SUFFIX
from tsm2_tune.tuner.results.storage.file_guard import refuse_unopenable
from tsm2_tune.tuner.results.storage.mounts import UNCHANGED, Unchanged, free_bytes_of, network_of
from tsm2_tune.tuner.results.storage.retry import POOL_TIMEOUT_SECONDS

LEAST_FREE_BYTES = 1 << 20  # a disk with less free space counts as full
BUSY_TIMEOUT_SECONDS = 30.0  # how long to wait for another program's lock
MOST_VALUE_BYTES = 1 << 20  # limit for a value and for a row; the longest value, a kernel's text, has 60 KB
# Limit for the steps of SQLite's virtual machine in a transaction. The view, the longest query, takes about one step
# for each byte of a file of 100,000 trials, a fiftieth of the limit. Pages that refer to each other in a cycle would
# take steps without end.
STEPS, STEPS_PER_BYTE = 10**8, 50
STEPS_AT_A_TIME = 10**5
# Limit for the bytes that a query returns; a row counts ROW_BYTES more. They exceed the file's size only if tables
# are joined, or if rows share pages, which no file of this program does.
READ_BYTES, READ_PER_BYTE, ROW_BYTES = 1 << 20, 4, 100
UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL)
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MOST_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
DETAIL_CHARACTERS = 200  # shown of SQLite's own message

# SQLite's primary result code -> the error and its remedy.
REMEDIES = {
    sqlite3.SQLITE_NOTADB: "is not a SQLite database: name another file with --db",
    sqlite3.SQLITE_CORRUPT: "is a damaged database: restore a copy of it, or name another file with --db",
    sqlite3.SQLITE_BUSY: "is locked by another program: wait until it has ended, then run this again",
    sqlite3.SQLITE_READONLY: "is read-only: make it and its folder writable, or name another database with --db",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: create a writable folder for it, or name another file with --db",
    sqlite3.SQLITE_PERM: "cannot be opened: check its permissions, or name another file with --db",
    sqlite3.SQLITE_FULL: "cannot grow, the disk of {full} is full: free some space there, then run this again",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk reports an error: name another file with --db",
    sqlite3.SQLITE_TOOBIG: "holds a value of more than 1 MiB, which tsm2-tune never stores: restore a copy of it, or"
    " name another file with --db",
    sqlite3.SQLITE_INTERRUPT: "takes too long to read for its size: restore a copy of it, or name"
    " another file with --db",
}


def engine(path: Path, opened: Callable[[], sqlite3.Connection], pool: type[Pool] = QueuePool) -> Engine:
    """Return a SQLAlchemy engine that executes BEGIN or BEGIN IMMEDIATE at the start of each transaction.

    Python's sqlite3 module does not begin transactions on these connections.
    """
    waits = {"pool_timeout": POOL_TIMEOUT_SECONDS} if pool is QueuePool else {}
    engine = create_engine("sqlite://", creator=opened, poolclass=pool, **waits)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        size_bytes = sum(os.path.getsize(part) for part in (path, f"{path}-wal") if os.path.exists(part))
        connection.info.update(path=path, read_bytes=READ_BYTES + READ_PER_BYTE * size_bytes)
        _bound(connection.connection.driver_connection, STEPS + STEPS_PER_BYTE * size_bytes)
        # IMMEDIATE takes the write lock at the beginning: a transaction that reads first could not wait for it later.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def connected(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection of Python's `sqlite3` in the given SQLite mode, protected against malicious files."""
    return _opened(f"{absolute(path).as_uri()}?mode={mode}", uri=True)


def _opened(name: str, *, uri: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name, uri=uri, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    _harden(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def absolute(path: Path) -> Path:
    """Return the absolute path. Raise StoreError if the working folder does not exist."""
    try:
        return path.absolute()
    except OSError as error:  # only a relative path needs the working folder
        raise StoreError(
            f"{path} cannot be found ({error.strerror}: the working folder):"
            " change to an existing folder, or name the whole path with --db"
        ) from error


def _harden(connection: sqlite3.Connection) -> None:
    """Configure SQLite's limits and options for untrusted files."""
    for limit, most in LIMITS.items():
        connection.setlimit(limit, most)
    connection.execute("PRAGMA trusted_schema = OFF")  # a view in an untrusted file runs no functions
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")  # otherwise a file that shrinks while it is read would end the process
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)


def _bound(connection: Any, steps: int) -> None:
    """Limit the number of steps of SQLite's virtual machine in the following statements.

    The handler executes no Python code, in which a Ctrl-C could raise: SQLite would take that for a request to stop.
    """
    answers = chain(repeat(0, steps // STEPS_AT_A_TIME), repeat(1))
    connection.set_progress_handler(answers.__next__, STEPS_AT_A_TIME)


def engine_of_copy(path: Path) -> Engine:
    """Return an engine with a single connection to a temporary SQLite copy of the file."""

    def copied() -> sqlite3.Connection:
        return _back_up(path, None)

    return engine(path, copied, StaticPool)


def copy(path: Path, into: Path) -> None:
    """Copy the database file `path` to the new file `into`.

    Raise StoreError if `path` cannot be read or is no database, and if `into` cannot be created or its disk is full.
    """
    refuse_unopenable(path, create=False)
    _back_up(path, into).close()


def _back_up(path: Path, into: Path | None) -> sqlite3.Connection:
    """Copy the database file `path` into the new database `into`, or into a temporary one if `into` is None.

    `path` is only read, but SQLite rolls back what a killed program left half written, as when a database is opened.
    Raise StoreError if `path` cannot be read, or if the copy cannot be written.
    """
    at: Path | None = path
    target = None
    try:
        unchanged = Unchanged(path) if network_of(path) else None
        mode = "rw" if os.path.exists(f"{path}-journal") else "ro"
        with closing(connected(path, UNCHANGED if unchanged else mode)) as source:
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_master").fetchone()  # waits for a lock, but only for the time-out
            at = into
            target = _opened("", uri=False) if into is None else sqlite3.connect(into)
            source.backup(target)
        if unchanged is not None:
            unchanged.check()
        return target
    except sqlite3.Error as error:
        if target is not None:
            target.close()
        of_new = code_of(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)
        if at is None and of_new:
            raise StoreError(
                f"cannot copy {path} to read it ({error}): make {_temporary_folder()} writable, with space left, or"
                " set TMPDIR to another folder"
            ) from error
        raise refused(at if at and of_new else path, error) from error


def refused(path: object, error: object) -> StoreError:
    """Return the StoreError for an error of SQLite. Its message says what to do."""
    code = code_of(error)
    message = " ".join(str(error)[:DETAIL_CHARACTERS].split())
    refusal = f"was refused by SQLite ({message}): restore a copy, or name another file with --db"
    remedy = REMEDIES.get(code, refusal)
    if code == sqlite3.SQLITE_NOTADB and _is_text(path):
        remedy = f"is a file of trials: give it a name that ends in {TEXT_SUFFIX}, or import it"
    return StoreError(f"{path} {remedy.format(full=_full_folder(path)) if code == sqlite3.SQLITE_FULL else remedy}")


def code_of(error: object) -> int:
    """Return SQLite's primary result code of an exception."""
    refusal = error.orig if isinstance(error, DBAPIError) else error
    code: int = getattr(refusal, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _is_text(path: object) -> bool:
    """Return whether the file is a file of trials."""
    with suppress(OSError), open(str(path), "rb") as file:
        return file.read(len(TEXT_BEGIN)) == TEXT_BEGIN.encode()
    return False


def _full_folder(path: object) -> str:
    """Return the folder whose disk is full: the database's folder, or the temporary folder in which SQLite sorts."""
    own = os.path.dirname(os.path.abspath(str(path)))
    for folder in (own, _temporary_folder()):
        with suppress(OSError):
            free_bytes = free_bytes_of(folder)
            if free_bytes is not None and free_bytes < LEAST_FREE_BYTES:
                return folder
    return own


def _temporary_folder() -> str:
    """Return the folder in which SQLite sorts and keeps temporary databases, as it chooses it. It may be full."""
    named = filter(None, map(os.environ.get, ("SQLITE_TMPDIR", "TMPDIR")))
    places = (place for place in (*named, "/var/tmp", "/usr/tmp", "/tmp") if os.path.isdir(place))
    return next((place for place in places if os.access(place, os.W_OK | os.X_OK)), ".")


def fetched(
    connection: Connection, query: Executable, values: Mapping[str, Any] | None = None
) -> Sequence[RowMapping]:
    """Return the rows of the query. Raise StoreError if they have more bytes than a valid file of this size can
    contain.
    """
    left = connection.info.get("read_bytes", math.inf)  # a server has no limit here
    found = []
    for row in connection.execute(query, values).mappings():
        left -= ROW_BYTES + sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        if left < 0:
            raise StoreError(f"{connection.info['path']} {REMEDIES[sqlite3.SQLITE_CORRUPT]}")
        found.append(row)
    return found
