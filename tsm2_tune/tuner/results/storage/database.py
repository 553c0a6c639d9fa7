"""Opening a database. Of a file: what SQLite refuses, and whatever else it can be, each in one sentence.

A file may be from anywhere. SQLite is told to trust nothing that stands in it, its tables and its view are compared
with this program's before anything is read, and what is read is bounded by the size of the file, in time and memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
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
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.runs.signals import held

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.storage.postgresql import Server

LEAST_FREE_BYTES = 1 << 20  # of a disk that is not full
BUSY_TIMEOUT_SECONDS = 30.0  # how long to wait for another program's lock
MOST_VALUE_BYTES = 1 << 20  # of a text, and of a row; a kernel's text, the longest, has 60 KB
# Steps of SQLite's machine in a transaction. The view, the longest query, takes one for each byte of a file of
# 100,000 trials; pages that lead in circles would take steps without end.
STEPS, STEPS_PER_BYTE = 10**8, 50
STEPS_AT_A_TIME = 10**5
# What a query may give: more than the file has only where tables are joined, or where rows share pages, as none of
# ours do.
READ_BYTES, READ_PER_BYTE, ROW_BYTES = 1 << 20, 4, 100
UNWRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL)
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MOST_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
DETAIL_CHARACTERS = 200  # of SQLite's own message

# SQLite's primary result code -> what is wrong and what to do.
REMEDIES = {
    sqlite3.SQLITE_NOTADB: "is no SQLite database: name another file with --db",
    sqlite3.SQLITE_CORRUPT: "is a damaged database: restore a copy of it, or name another file with --db",
    sqlite3.SQLITE_BUSY: "is locked by another program: wait until that has ended, then run this again",
    sqlite3.SQLITE_READONLY: "cannot be written: make it and its folder writable, or name another with --db",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: make its folder exist and be writable, or name another with --db",
    sqlite3.SQLITE_PERM: "cannot be opened: check its permissions, or name another file with --db",
    sqlite3.SQLITE_FULL: "cannot grow, the disk of {full} is full: free some space there, then run this again",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk reports an error: name another file with --db",
    sqlite3.SQLITE_TOOBIG: "holds a value of more than 1 MiB, as tsm2-tune stores none: restore a copy of it, or"
    " name another file with --db",
    sqlite3.SQLITE_INTERRUPT: "takes longer to read than a file of its size can: restore a copy of it, or name"
    " another file with --db",
}


class Database:
    """A database of ours, open: every use of it is one transaction."""

    def __init__(
        self, path: Path | Address, engine: Engine, *, server: Server | None = None, file: Unchanged | None = None
    ) -> None:
        self.path = path  # the name in messages
        self._engine, self._server, self._file = engine, server, file
        self._is_copy = False  # writes would be lost
        self._opened: tuple[Path, os.stat_result] | None = None  # the file, as it was when it was opened for writing

    @classmethod
    @contextmanager
    def open(cls, place: Path | Address, *, create: bool) -> Iterator[Database]:
        """The database at `place`. With `create` it is made where it is missing, and must be writable.

        Raise StoreError if it cannot be used: missing, no database, another program's, a newer version's, locked, or
        not writable. One of an older schema is migrated; of a file that cannot be written a copy is, without
        `create`, which can only be read.
        """
        if isinstance(place, Address):
            from tsm2_tune.tuner.results.storage.postgresql import (
                Server,  # a file does not wait for what speaks to one
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
        """A copy of the file as it is now, unchecked, which nobody else sees and which is gone at the end.

        Raise StoreError as `copy`.
        """
        refuse_unopenable(path, create=False)
        database = cls(path, _engine_of_copy(path))
        try:
            yield database
        finally:
            database._engine.dispose()

    @classmethod
    def refuse_others(cls, path: Path) -> None:
        """Raise StoreError if the file is no database of ours, or a newer version's. Of the file little is read."""
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
        """Whether several machines may write at once."""
        return self._server is not None

    def now(self, connection: Connection) -> float:
        """Return the seconds since 1970 by the clock that all writers share: the machine's or the server's."""
        return time.time() if self._server is None else self._server.now(connection)

    def _prepare(self, *, create: bool) -> None:
        """Create or migrate the file where needed, and see that it is ours."""
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
        """Return the schema of the file, which is ours; with `create` 0 if it has nothing yet.

        StoreError of others.
        """
        found = schema_versions.found_version(connection, str(self.path))
        if found:
            sqlite_schema.refuse_others(connection, str(self.path), found)
        elif not create:
            raise StoreError(f"{self.path} holds no results yet: {tune_first(str(self.path))}")
        return found

    def become_read_only(self, name: Path) -> None:
        """Refuse what would be written, and call the database so."""
        self.path, self._is_copy = name, True

    def migrate(self) -> None:
        """Bring the database to this program's schema. Raise StoreError if it cannot be written."""
        with self.transaction(writes=True) as connection:
            found = schema_versions.found_version(connection, str(self.path))  # again: now nobody else can change it
            if found < schema_versions.version():
                schema_versions.upgrade(connection, found)
                sqlite_schema.refuse_others(connection, str(self.path), schema_versions.version())
            else:  # a write that changes nothing, so that a file that refuses it does so before the work
                connection.exec_driver_sql(f"PRAGMA user_version = {found}")

    def digest(self) -> str:
        """Another one whenever anything else is stored."""
        if self._server is not None:
            return self._server.digest()
        found = hashlib.sha256()
        for beside in ("", "-wal"):  # writes that SQLite has not moved to the file yet
            file = Path(f"{self.path}{beside}")
            if file.is_file():
                found.update(file.read_bytes())
        return found.hexdigest()

    @contextmanager
    def transaction(
        self, *, writes: bool = False, about: tuple[str, ...] = (), durable: bool = True
    ) -> Iterator[Connection]:
        """One transaction; what is refused becomes a StoreError.

        One that writes excludes others; on a server those alone that are `about` the same, where it says so. What
        need not be `durable` may be gone when a server fails.

        A signal that ends a run waits for the end of the transaction: raised in the middle of SQLAlchemy, it would
        leave a connection open, by which this very process would be locked out.
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
        try:
            with self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                yield connection
                if self._file is not None:
                    self._file.check()
        except DBAPIError as error:
            raise refused(self.path, error.orig) from error
        except (UnicodeDecodeError, MemoryError) as error:  # SQLite's message quotes bytes that are no text
            raise StoreError(f"{self.path} {REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error

    @repeated
    def rows(self, query: Executable, values: Mapping[str, Any] | None = None) -> Sequence[RowMapping]:
        """Return the rows of the query, read in a transaction of its own. Raise StoreError as `transaction`."""
        with self.transaction() as connection:
            return fetched(connection, query, values)


def copy(path: Path, into: Path) -> None:
    """Copy the database at `path` as it is now to a new file; it is only read.

    Raise StoreError if it cannot be read, is no database, or where a program was ended while it wrote; of the new
    file where that cannot be made, or its disk is full.
    """
    refuse_unopenable(path, create=False)
    _back_up(path, into, partial(sqlite3.connect, into)).close()


def _back_up(path: Path, into: Path, opened: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """Open the target and copy the database at `path` into it. Raise StoreError as `copy`."""
    at, target = path, None
    try:
        unchanged = Unchanged(path) if network_of(path) else None
        with closing(connected(path, UNCHANGED if unchanged else "ro")) as source:
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_master").fetchone()  # waits for a lock, and not for ever
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
    """Return an error that the file needs recovery first, if SQLite refuses to read it for that reason."""
    unmended = code_of(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
    if not unmended or not os.path.exists(f"{path}-journal"):
        return None
    return StoreError(
        f"{path} was left half written by a program that was ended:"
        f" {command_on('best', path)} mends it, then run this again"
    )


def refused(path: object, error: object) -> StoreError:
    """Return the error, with its remedy, for one of SQLite's."""
    code = code_of(error)
    message = " ".join(str(error)[:DETAIL_CHARACTERS].split())
    refusal = f"was refused by SQLite ({message}): restore a copy, or name another file with --db"
    remedy = REMEDIES.get(code, refusal)
    return StoreError(f"{path} {remedy.format(full=_full_folder(path)) if code == sqlite3.SQLITE_FULL else remedy}")


def code_of(error: object) -> int:
    """SQLite's primary result code."""
    refusal = error.orig if isinstance(error, DBAPIError) else error
    code: int = getattr(refusal, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _refuse_moved(path: Path, opened: os.stat_result) -> None:
    """Raise StoreError where the file that was opened is not there: SQLite would go on to write into it."""
    try:
        is_there = os.path.samestat(os.stat(path), opened)
    except OSError:
        is_there = False
    if not is_there:
        raise StoreError(f"{path} was moved, replaced or removed while it was open: put it back, then run this again")


def _full_folder(path: object) -> str:
    """Return the folder that has no room left: the file's own, or the one in which SQLite sorts what is large."""
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
    """Return the rows of the query. Raise StoreError if they have more bytes than the file can hold."""
    left = connection.info.get("read_bytes", math.inf)  # a server bounds what it gives
    found = []
    for row in connection.execute(query, values).mappings():
        left -= ROW_BYTES + sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        if left < 0:
            raise StoreError(f"{connection.info['path']} {REMEDIES[sqlite3.SQLITE_CORRUPT]}")
        found.append(row)
    return found


def _engine_of_copy(path: Path) -> Engine:
    """One connection, to a copy of the file in a temporary one without a name."""

    def copied() -> sqlite3.Connection:
        return _back_up(path, Path(tempfile.gettempdir()), partial(_opened, "", uri=False))

    return _engine(path, copied, StaticPool)


def _engine(path: Path, opened: Callable[[], sqlite3.Connection], pool: type[Pool] = QueuePool) -> Engine:
    """Connections in which SQLite alone, and not Python's driver, begins and ends transactions."""
    engine = create_engine("sqlite://", creator=opened, poolclass=pool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        size_bytes = sum(os.path.getsize(part) for part in (path, f"{path}-wal") if os.path.exists(part))
        connection.info.update(path=path, read_bytes=READ_BYTES + READ_PER_BYTE * size_bytes)
        _bound(connection.connection.driver_connection, STEPS + STEPS_PER_BYTE * size_bytes)
        # IMMEDIATE takes the write lock at once: a transaction that reads first could not wait for it later.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def connected(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection of SQLite's own, in one of its modes, that expects nothing good of the file."""
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
    """Return the whole path. Raise StoreError if the working folder is gone."""
    try:
        return path.absolute()
    except OSError as error:  # only a relative path is looked up here
        raise StoreError(
            f"{path} cannot be found ({error.strerror}: the working folder):"
            " go to a folder that is there, or name the whole path with --db"
        ) from error


def _harden(connection: sqlite3.Connection) -> None:
    """Have SQLite expect nothing good of the file."""
    for limit, most in LIMITS.items():
        connection.setlimit(limit, most)
    connection.execute("PRAGMA trusted_schema = OFF")  # a view in a file from elsewhere runs no functions
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")  # a file that shrinks while it is read ends no process
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)


def _bound(connection: Any, steps: int) -> None:
    """Let SQLite's machine take so many steps from now on, and no more.

    The handler has no Python of its own, in which a Ctrl-C would be taken for its answer.
    """
    answers = chain(repeat(0, steps // STEPS_AT_A_TIME), repeat(1))
    connection.set_progress_handler(answers.__next__, STEPS_AT_A_TIME)
