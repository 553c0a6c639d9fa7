"""Check the cache of compiled kernels and the folder of the database. The checks remove the files that they write."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tsm2_tune.errors import TuneError
from tsm2_tune.tuner.compile import cache as binaries
from tsm2_tune.tuner.compile.failure_cause import LEAST_FREE_BYTES
from tsm2_tune.tuner.doctor.finding import Finding, Question, note, ok, problem
from tsm2_tune.tuner.results.storage.addresses import EXAMPLE, Address, place_of
from tsm2_tune.tuner.results.storage.mounts import free_bytes_of, network_of
from tsm2_tune.tuner.results.trial import in_a_line

PROBE_BYTES = 2**16
LITTLE_BYTES = 2**30  # less free space than this gets a note
LOCK_SECONDS = 10.0
ELSEWHERE = "name a file elsewhere with --db"
# A program that tries to lock a database which another process has locked. Its exit status is SQLite's error code: 5,
# busy, if locks work.
SECOND = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    sys.exit(error.sqlite_errorcode)
"""


@contextmanager
def cache_left_as_it_was() -> Iterator[None]:
    """Remove the folders of the cache that the body of the with statement created."""
    try:
        place = Path(os.path.realpath(binaries.named_folder()), binaries.WORKING)
        missing = [one for one in (place, *place.parents) if not os.path.lexists(one)]
    except TuneError:  # the probe of the cache reports this error
        missing = []
    try:
        yield
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()


def cache(question: Question) -> list[Finding]:
    """Return a finding about the cache: its folder and size, whether it is writable, and the free space."""
    name = "cache"
    try:
        folder = Path(os.path.realpath(binaries.named_folder()))
        binaries.cache_folder()  # creates the folder, or raises TuneError if other users can change it
        _write(folder)
        kept, limit_bytes = list(binaries.entries()), binaries.cache_limit_bytes()
        free_bytes = free_bytes_of(folder)
    except TuneError as error:
        return [problem(name, in_a_line(str(error)), means="no kernel is compiled")]
    except OSError as error:
        remedy = "free some space, or set XDG_CACHE_HOME to a folder that can be written"
        found = f"{folder} cannot be written ({error.strerror})"
        return [problem(name, found, means="no kernel is compiled", remedy=remedy)]
    size_bytes = sum(entry.size_bytes for entry in kept)
    found = f"{folder}, {len(kept)} kernels, {_mib(size_bytes)} of at most {_mib(limit_bytes)}"
    return [_of_space(name, found, free_bytes)]


def database(question: Question) -> list[Finding]:
    """Return a finding: whether the database can be read and written, whether file locks work, and the free space."""
    name, means = "database", "no trial is stored"
    try:
        place = place_of(question.database)
        if isinstance(place, Address):
            from tsm2_tune.tuner.doctor.privileges import (
                on_server,  # slow to import, and not needed for a file
            )

            return [on_server(place)]
        path = Path(os.path.realpath(place))
    except (TuneError, ValueError) as error:
        return [problem(name, in_a_line(str(error)), means=means)]
    folder = path.parent
    trouble = _unreadable(path)
    if trouble:
        return [problem(name, trouble, means=means, remedy="restore a copy, or name another file with --db")]
    if path.exists() and not os.access(path, os.W_OK):
        remedy = f"make it writable, or {ELSEWHERE}"
        return [problem(name, f"{path} cannot be written", means=means, remedy=remedy)]
    try:
        _write(folder)
        free_bytes, locks_hold = free_bytes_of(folder), _locks_hold(folder)
    except (OSError, sqlite3.Error) as error:
        found, remedy = _unwritable(folder, error)
        return [problem(name, found, means=means, remedy=remedy)]
    found = f"{path}, {'there' if path.exists() else 'not made yet'}"
    if not locks_hold:
        found += ", where SQLite's locks do not hold"
        remedy = "name a file on a local disk with --db"
        return [problem(name, found, means="two concurrent runs can corrupt it", remedy=remedy)]
    if kind := network_of(path):
        means = "SQLite's locks may not hold between machines, so nothing is stored there"
        remedy = f"name a file on a local disk with --db, or a PostgreSQL database, {EXAMPLE}"
        return [problem(name, f"{found}, on a network file system ({kind})", means=means, remedy=remedy)]
    return [_of_space(name, found, free_bytes)]


def _of_space(name: str, found: str, free_bytes: int | None) -> Finding:
    """Return the finding of a usable folder, which begins with `found`. Little free space is a note or a problem."""
    if free_bytes is None:
        return ok(name, found)
    found += f", {_mib(free_bytes)} free"
    remedy = "free some space"
    if free_bytes < LEAST_FREE_BYTES:
        return problem(name, found, means="too little for a kernel", remedy=remedy)
    if free_bytes < LITTLE_BYTES:
        return note(name, found, means="a long run may fill it", remedy=remedy)
    return ok(name, found)


def _write(folder: Path) -> None:
    """Write a temporary file in the folder. Raise OSError if this fails."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _unwritable(folder: Path, error: OSError | sqlite3.Error) -> tuple[str, str]:
    """Return a text that says why writing to the folder failed, and a text with the remedy."""
    if isinstance(error, FileNotFoundError) and folder.is_dir():  # in a virtual file system such as /proc
        return f"no file can be created in {folder}", ELSEWHERE
    if isinstance(error, FileNotFoundError):
        return f"no folder {folder}", f"make it, or {ELSEWHERE}"
    if isinstance(error, NotADirectoryError):
        return f"{folder} is not a folder", ELSEWHERE
    why = error.strerror if isinstance(error, OSError) else str(error)
    return f"{folder} cannot be written ({why})", f"make the folder writable, or {ELSEWHERE}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def _unreadable(path: Path) -> str:
    """Return a text that says why the file is no readable SQLite database; "" if it is, or if it does not exist."""
    if not os.path.lexists(path):
        return ""
    if not path.is_file():
        return f"{path} is not a regular file"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as opened:
            opened.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        return f"{path} cannot be read ({in_a_line(str(error))})"
    return ""


def _locks_hold(folder: Path) -> bool:
    """Return whether a second process cannot lock a database in the folder that this process has locked."""
    with tempfile.TemporaryDirectory(prefix=".tsm2-tune-probe-", dir=folder, ignore_cleanup_errors=True) as probe:
        file = os.path.join(probe, "locks.db")
        with closing(sqlite3.connect(file, isolation_level=None)) as first:
            first.execute("CREATE TABLE locks (one)")
            first.execute("BEGIN IMMEDIATE")
            second = subprocess.run([sys.executable, "-I", "-c", SECOND, file], timeout=LOCK_SECONDS)
            first.execute("ROLLBACK")
    return second.returncode == sqlite3.SQLITE_BUSY
