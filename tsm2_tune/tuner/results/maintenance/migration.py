"""Migrate a database to the current schema, and optionally keep a copy of the old file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.tuner.results.storage import schema_versions, sqlite
from tsm2_tune.tuner.results.storage.addresses import Address, tune_first
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.postgresql import schema_at

HEADER_BYTES = 100  # length of a SQLite file's header, which has a counter of changes


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of a schema migration."""

    before: int  # the schema before the migration
    now: int
    steps: tuple[str, ...]  # one sentence for each step
    kept: Path | None  # the copy of the old file; None without a copy

    def __str__(self) -> str:
        if self.before == self.now:
            return f"schema {self.now}, which is current: nothing to do"
        return f"schema {self.before} before, {self.now} now" + (
            f"; {self.kept} is a copy of the old database" if self.kept else ""
        )


def migrate(place: Path | Address, *, keep: bool) -> Migrated:
    """Migrate a database to the current schema, in one transaction. If `keep` is true, copy the file first.

    Raise InputError if `keep` is true for a server. Raise StoreError if the database cannot be read or written, or if
    another file has the copy's name.
    """
    if keep and isinstance(place, Address):
        raise InputError("--keep copies a file: leave it out, and copy a server's database with pg_dump")
    with _one_at_a_time(place) if keep and isinstance(place, Path) else nullcontext():
        return _migrated(place, keep=keep)


def _migrated(place: Path | Address, *, keep: bool) -> Migrated:
    before, now = _schema_of(place), schema_versions.version()
    if before == 0:
        raise StoreError(f"{place} holds no results yet: {tune_first(str(place))}")
    if before == now:
        return Migrated(before, now, (), None)
    kept = _backup(place, before) if keep and isinstance(place, Path) else None
    with Database.open(place, create=True):  # `create` requires a writable database
        pass
    sentences = (
        " ".join((one.__doc__ or "").split()) for one in schema_versions.MIGRATIONS[before - schema_versions.OLDEST :]
    )
    steps = tuple(f"{number} to {number + 1}: {text}" for number, text in enumerate(sentences, before))
    return Migrated(before, now, steps, kept)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock on the file in the `with` block, so that two migrations do not write the same copy at the same
    time.

    If the file cannot be opened, no lock is held, and the migration reports the error.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        yield
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _schema_of(place: Path | Address) -> int:
    if isinstance(place, Address):
        return schema_at(place)
    with Database.copied(place) as copied, copied.transaction() as connection:
        return schema_versions.found_version(connection, str(place))


def _backup(path: Path, before: int) -> Path:
    """Copy the database, and return the path of the copy. An incomplete copy never has this path.

    Raise StoreError if another file has this path.
    """
    into = path.with_name(f"{path.name}.schema-{before}")
    part = into.with_name(f"{into.name}.part")
    part.unlink(missing_ok=True)
    try:
        sqlite.copy(path, part)
        if _schema_of(part) != before:
            raise StoreError(f"another program has just migrated {path}: no copy of the old database was kept")
        os.link(part, into)
    except FileExistsError:
        if into.read_bytes()[HEADER_BYTES:] != part.read_bytes()[HEADER_BYTES:]:
            raise StoreError(f"{into} already exists, and is not a copy of {path}: move it elsewhere") from None
    finally:
        part.unlink(missing_ok=True)
    return into
