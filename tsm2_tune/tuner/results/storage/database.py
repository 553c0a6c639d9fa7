"""Open a database and execute transactions. Each error becomes a StoreError with one sentence.

A SQLite file is untrusted. SQLite is configured not to execute anything that the file defines. The file's tables and
view are compared with this program's definitions before any row is read. The time and the memory of a query are
limited in proportion to the file's size.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Executable, RowMapping, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import schema_versions, sqlite_schema
from tsm2_tune.tuner.results.storage.addresses import Address, command_on, is_bundled, place_of, tune_first
from tsm2_tune.tuner.results.storage.file_guard import refuse_unopenable
from tsm2_tune.tuner.results.storage.mounts import UNCHANGED, Unchanged, free_bytes_of, network_of, refusal
from tsm2_tune.tuner.results.storage.retry import POOL_TIMEOUT_SECONDS, repeated
from tsm2_tune.tuner.runs.signals import held

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.storage.postgresql import Server

LEAST_FREE_BYTES = 1 << 20  # a disk with less free space counts as full
BUSY_TIMEOUT_SECONDS = 30.0  # how long to wait for another program's lock
MOST_VALUE_BYTES = 1 << 20  # limit for a value and for a row; the longest value, a kernel's text, has 60 KB
# Limit for the steps of SQLite's virtual machine in a transaction. The view, the longest query, takes one step for
# each byte of a file of 100,000 trials. Pages that refer to each other in a cycle would take steps without end.
STEPS, STEPS_PER_BYTE = 10**8, 50
STEPS_AT_A_TIME = 10**5
# Limit for the bytes that a query returns. They exceed the file's size only if tables are joined, or if rows share
# pages, which no file of this program does.
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


class Database:
    """An open database of this program. Each access is one transaction."""

    def __init__(
        self, path: Path | Address, engine: Engine, *, server: Server | None = None, file: Unchanged | None = None
    ) -> None:
        self.path = path  # the name in messages
        self._engine, self._server, self._file = engine, server, file
        self._is_copy = False  # whether it is a copy, in which writes would be lost
        self._opened: tuple[Path, os.stat_result] | None = None  # the file when it was opened for writing
        self._writing = threading.RLock()  # held by the thread that writes into the file

    @classmethod
    @contextmanager
    def open(cls, place: Path | Address, *, create: bool) -> Iterator[Database]:
        """Open the database at `place`. If `create` is true, create a missing database, and require write access.

        An older schema is migrated. If `create` is false and the file is not writable, a temporary copy is migrated.
        Raise StoreError if the database is missing, locked, not writable, of another program or of a newer version.
        """
        if isinstance(place, Address):
            from tsm2_tune.tuner.results.storage.postgresql import (
                Server,  # imported here, since files do not need it
            )

            with Server.open(place, create=create) as server:
                yield cls(place, server.engine, server=server)
            return
        refuse_unopenable(place, create=create)
        network = network_of(place)
        if network and create:
            raise refusal(place, network)
        mode = UNCHANGED if network else "rwc" if create else "rw"
        engine = _engine(place, partial(connected, _absolute(place), mode))
        database = cls(place, engine, file=Unchanged(place) if network else None)
        try:
            database._prepare(create=create)
            if not network and not database._is_copy:
                database._opened = _absolute(place), os.stat(place)
            yield database
        finally:
            database._engine.dispose()

    @classmethod
    @contextmanager
    def copied(cls, path: Path) -> Iterator[Database]:
        """Open a temporary copy of the file, without checking its tables. The copy is deleted at the end of the
        `with` block.

        Raise StoreError if the file cannot be read or copied.
        """
        refuse_unopenable(path, create=False)
        database = cls(path, _engine_of_copy(path))
        try:
            yield database
        finally:
            database._engine.dispose()

    @classmethod
    def refuse_others(cls, path: Path) -> None:
        """Raise StoreError if the file is not a database of this program, or if a newer version wrote it. Only its
        schema is read.
        """
        refuse_unopenable(path, create=False)
        mode, file = (UNCHANGED, Unchanged(path)) if network_of(path) else ("ro", None)
        database = cls(path, _engine(path, partial(connected, path, mode)), file=file)
        try:
            with database.transaction() as connection:
                database._found(connection, create=False)
        except StoreError as error:
            raise _half_written(path, error.__cause__) or error from error.__cause__
        finally:
            database._engine.dispose()

    @property
    def is_shared(self) -> bool:
        """Whether the database is on a server, so that several machines may write at the same time."""
        return self._server is not None

    def now(self, connection: Connection) -> float:
        """Return the seconds since 1970 by the clock that all writers share: this machine's or the server's clock."""
        return time.time() if self._server is None else self._server.now(connection)

    def _prepare(self, *, create: bool) -> None:
        """Create or migrate the file if necessary, and check that its tables are this program's."""
        with self.transaction() as connection:
            found = self._found(connection, create=create)
            if found:
                sqlite_schema.refuse_dangling(connection, str(self.path))
        if not create and found == schema_versions.version():
            return
        try:
            self.migrate()
        except StoreError as error:
            if create or (self._file is None and code_of(error.__cause__) not in UNWRITABLE):
                raise
            assert isinstance(self.path, Path)
            self._engine.dispose()
            self._engine, self._file = _engine_of_copy(self.path), None
            self.migrate()
            self._is_copy = True

    def _found(self, connection: Connection, *, create: bool) -> int:
        """Return the file's schema version. If `create` is true, return 0 for an empty file.

        Raise StoreError if the file is not a database of this program.
        """
        found = schema_versions.found_version(connection, str(self.path))
        if found:
            sqlite_schema.refuse_others(connection, str(self.path), found)
        elif not create:
            raise StoreError(f"{self.path} holds no results yet: {tune_first(str(self.path))}")
        return found

    def become_read_only(self, name: Path) -> None:
        """Make later write transactions fail, and use `name` in messages."""
        self.path, self._is_copy = name, True

    def migrate(self) -> None:
        """Migrate the database to the current schema. Raise StoreError if it cannot be written."""
        with self.transaction(writes=True) as connection:
            found = schema_versions.found_version(connection, str(self.path))  # again, with the lock
            if found < schema_versions.version():
                schema_versions.upgrade(connection, found)
                sqlite_schema.refuse_others(connection, str(self.path), schema_versions.version())
            else:  # a write that changes nothing: a read-only file raises here, and not after the work
                connection.exec_driver_sql(f"PRAGMA user_version = {found}")

    def digest(self) -> str:
        """Return a SHA-256 digest of the contents. It changes whenever results are stored."""
        if self._server is not None:
            return self._server.digest()
        found = hashlib.sha256()
        for beside in ("", "-wal"):  # -wal has writes that SQLite has not moved to the file yet
            file = Path(f"{self.path}{beside}")
            if file.is_file():
                found.update(file.read_bytes())
        return found.hexdigest()

    @contextmanager
    def transaction(
        self, *, writes: bool = False, about: tuple[str, ...] = (), durable: bool = True
    ) -> Iterator[Connection]:
        """Execute the `with` block as one transaction. Raise StoreError for an error of SQLite or of the server.

        If `writes` is true, other writing transactions wait until this one ends. On a server, if `about` is given,
        only transactions with the same `about` wait. If `durable` is false, a server may lose the changes in a crash.

        A signal that ends the run raises its exception after the transaction. Within SQLAlchemy the exception would
        leave a locked connection open.
        """
        with held():
            if self._server is not None:
                with self._server.transaction(writes=writes, about=about, durable=durable) as connection:
                    yield connection
            else:
                with self._file_transaction(writes=writes) as connection:
                    yield connection

    @contextmanager
    def _file_transaction(self, *, writes: bool) -> Iterator[Connection]:
        if writes and isinstance(self.path, Path) and (self._is_copy or self._file is not None):
            if is_bundled(self.path):
                place_of(self.path)  # raises
            network, remedy = network_of(self.path), REMEDIES[sqlite3.SQLITE_READONLY]
            raise refusal(self.path, network) if network else StoreError(f"{self.path} {remedy}")
        if self._opened is not None:
            _refuse_moved(*self._opened)
        # SQLite's own wait for a lock is unfair: a thread could wait for all transactions of the others.
        turn = self._writing if writes else nullcontext()
        try:
            with turn, self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                yield connection
                if self._file is not None:
                    self._file.check()
        except DBAPIError as error:
            raise refused(self.path, error.orig) from error
        except (UnicodeDecodeError, MemoryError) as error:  # SQLite's message quotes bytes that are not UTF-8
            raise StoreError(f"{self.path} {REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error

    @repeated
    def rows(self, query: Executable, values: Mapping[str, Any] | None = None) -> Sequence[RowMapping]:
        """Return the rows of the query, which is executed in its own transaction. Raise StoreError for an error of
        the database.
        """
        with self.transaction() as connection:
            return fetched(connection, query, values)


def copy(path: Path, into: Path) -> None:
    """Copy the database file `path` to the new file `into`. `path` is only read.

    Raise StoreError if `path` cannot be read, is no database, or needs recovery after a crashed writer. Raise
    StoreError also if `into` cannot be created or its disk is full.
    """
    refuse_unopenable(path, create=False)
    _back_up(path, into, partial(sqlite3.connect, into)).close()


def _back_up(path: Path, into: Path, opened: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """Open the target database, and copy the database file `path` into it. Raise StoreError if either fails."""
    at, target = path, None
    try:
        unchanged = Unchanged(path) if network_of(path) else None
        with closing(connected(path, UNCHANGED if unchanged else "ro")) as source:
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_master").fetchone()  # waits for a lock, but only for the time-out
            at = into
            target = opened()
            source.backup(target)
        if unchanged is not None:
            unchanged.check()
        return target
    except sqlite3.Error as error:
        if target is not None:
            target.close()
        of_new = code_of(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)
        raise _half_written(path, error) or refused(at if of_new else path, error) from error


def _half_written(path: Path, error: object) -> StoreError | None:
    """Return the StoreError for a file that needs recovery after a crashed writer; None if the error has another
    cause.
    """
    unmended = code_of(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
    if not unmended or not os.path.exists(f"{path}-journal"):
        return None
    return StoreError(
        f"{path} was left half written by a killed program:"
        f" {command_on('best', path)} repairs it, then run this again"
    )


def refused(path: object, error: object) -> StoreError:
    """Return the StoreError for an error of SQLite. Its message says what to do."""
    code = code_of(error)
    message = " ".join(str(error)[:DETAIL_CHARACTERS].split())
    refusal = f"was refused by SQLite ({message}): restore a copy, or name another file with --db"
    remedy = REMEDIES.get(code, refusal)
    return StoreError(f"{path} {remedy.format(full=_full_folder(path)) if code == sqlite3.SQLITE_FULL else remedy}")


def code_of(error: object) -> int:
    """Return SQLite's primary result code of an exception."""
    refusal = error.orig if isinstance(error, DBAPIError) else error
    code: int = getattr(refusal, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _refuse_moved(path: Path, opened: os.stat_result) -> None:
    """Raise StoreError if the path no longer denotes the opened file. Otherwise SQLite would write into the moved
    file.
    """
    try:
        is_there = os.path.samestat(os.stat(path), opened)
    except OSError:
        is_there = False
    if not is_there:
        raise StoreError(f"{path} was moved, replaced or removed while it was open: put it back, then run this again")


def _full_folder(path: object) -> str:
    """Return the folder whose disk is full: the database's folder, or the temporary folder in which SQLite sorts."""
    own = os.path.dirname(os.path.abspath(str(path)))
    for folder in (own, os.environ.get("SQLITE_TMPDIR") or tempfile.gettempdir()):
        with suppress(OSError):
            free_bytes = free_bytes_of(folder)
            if free_bytes is not None and free_bytes < LEAST_FREE_BYTES:
                return folder
    return own


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


def _engine_of_copy(path: Path) -> Engine:
    """Return an engine with a single connection to a temporary SQLite copy of the file."""

    def copied() -> sqlite3.Connection:
        return _back_up(path, Path(tempfile.gettempdir()), partial(_opened, "", uri=False))

    return _engine(path, copied, StaticPool)


def _engine(path: Path, opened: Callable[[], sqlite3.Connection], pool: type[Pool] = QueuePool) -> Engine:
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
    return _opened(f"{_absolute(path).as_uri()}?mode={mode}", uri=True)


def _opened(name: str, *, uri: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name,
        uri=uri,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    _harden(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _absolute(path: Path) -> Path:
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

    The progress handler executes no Python code. Otherwise a Ctrl-C could raise an exception in the handler, and
    SQLite would treat the exception as the handler's request to stop the statement.
    """
    answers = chain(repeat(0, steps // STEPS_AT_A_TIME), repeat(1))
    connection.set_progress_handler(answers.__next__, STEPS_AT_A_TIME)
