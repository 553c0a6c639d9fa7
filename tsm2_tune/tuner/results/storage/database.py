"""Open a database and execute transactions. Each error becomes a StoreError with one sentence.

A SQLite file is untrusted: its tables and view are compared with this program's definitions before any row is read.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Executable, RowMapping
from sqlalchemy.exc import DBAPIError

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import schema_versions, sqlite, sqlite_schema
from tsm2_tune.tuner.results.storage.addresses import Address, is_text, place_of, tune_first
from tsm2_tune.tuner.results.storage.file_guard import refuse_unopenable
from tsm2_tune.tuner.results.storage.mounts import network_of, refusal
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.runs.signals import held

if TYPE_CHECKING:
    from tsm2_tune.tuner.results.storage.postgresql import Server


class Database:
    """An open database of this program. Each access is one transaction."""

    def __init__(self, path: Path | Address, engine: Engine, *, server: Server | None = None) -> None:
        self.path = path  # the name in messages
        self._stored_at = path
        self.writes = 0  # transactions that may have changed it
        self._engine, self._server = engine, server
        self._is_copy = False  # whether it is a copy, in which writes would be lost
        self._opened: tuple[Path, os.stat_result] | None = None  # the file when it was opened for writing
        self._writing = threading.RLock()  # held by the thread that writes into the file

    @classmethod
    @contextmanager
    def open(cls, place: Path | Address, *, create: bool, copy: bool = False) -> Iterator[Database]:
        """Open the database at `place`. If `create` is true, create a missing database, and require write access.

        An older schema is migrated. If `create` is false and the file is not writable, a temporary copy is migrated.
        A temporary copy is also read if `copy` is true, or if the file is on a network file system.
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
        if network or copy:
            with cls.copied(place) as database:
                database._prepare(create=False)
                database._is_copy = True
                yield database
            return
        engine = sqlite.engine(place, partial(sqlite.connected, sqlite.absolute(place), "rwc" if create else "rw"))
        database = cls(place, engine)
        try:
            database._prepare(create=create)
            if not database._is_copy:
                database._opened = sqlite.absolute(place), os.stat(place)
            yield database
        finally:
            database._engine.dispose()

    @classmethod
    @contextmanager
    def copied(cls, path: Path) -> Iterator[Database]:
        """Open a temporary copy of the file without checking its tables. Raise StoreError if it cannot be copied."""
        refuse_unopenable(path, create=False)
        database = cls(path, sqlite.engine_of_copy(path))
        try:
            yield database
        finally:
            database._engine.dispose()

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
            if create or sqlite.code_of(error.__cause__) not in sqlite.UNWRITABLE:
                raise
            assert isinstance(self.path, Path)
            self._engine.dispose()
            self._engine = sqlite.engine_of_copy(self.path)
            self.migrate()
            self._is_copy = True

    def _found(self, connection: Connection, *, create: bool) -> int:
        """Return the file's schema version. If `create` is true, return 0 for an empty file."""
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
            file = Path(f"{self._stored_at}{beside}")
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
            self.writes += writes

    @contextmanager
    def _file_transaction(self, *, writes: bool) -> Iterator[Connection]:
        if writes and isinstance(self.path, Path) and self._is_copy:
            if is_text(self.path):
                place_of(self.path)  # raises
            network, remedy = network_of(self.path), sqlite.REMEDIES[sqlite3.SQLITE_READONLY]
            raise refusal(self.path, network) if network else StoreError(f"{self.path} {remedy}")
        if self._opened is not None:
            _refuse_moved(*self._opened)
        # SQLite's own wait for a lock is unfair: a thread could wait for all transactions of the others.
        turn = self._writing if writes else nullcontext()
        try:
            with turn, self._engine.connect().execution_options(writes=writes) as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise sqlite.refused(self.path, error.orig) from error
        except (UnicodeDecodeError, MemoryError) as error:  # SQLite's message quotes bytes that are not UTF-8
            raise StoreError(f"{self.path} {sqlite.REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error

    @repeated
    def rows(self, query: Executable, values: Mapping[str, Any] | None = None) -> Sequence[RowMapping]:
        """Return the rows of the query, which has its own transaction. Raise StoreError for the database's errors."""
        with self.transaction() as connection:
            return sqlite.fetched(connection, query, values)


def _refuse_moved(path: Path, opened: os.stat_result) -> None:
    """Raise StoreError if the path no longer denotes the opened file, into which SQLite would write."""
    try:
        is_there = os.path.samestat(os.stat(path), opened)
    except OSError:
        is_there = False
    if not is_there:
        raise StoreError(f"{path} was moved, replaced or removed while it was open: put it back, then run this again")
