"""Checks of a database file and its companion files (-journal, -wal, -shm) before SQLite opens them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage.addresses import tune_first

COMPANIONS = ("-journal", "-wal", "-shm")  # files that SQLite opens beside a database
NAME_FOLLOWS = bytes.fromhex("d9d505f920a163d7")  # the end of a journal that names another journal


def refuse_unopenable(path: Path, *, create: bool) -> None:
    """Raise StoreError if the path is a folder or another special file, or if it does not exist and `create` is
    false.
    """
    _refuse_name(path)
    if os.path.isdir(path):  # unlike Path.is_dir, it does not raise below an unreadable folder
        raise StoreError(f"{path} is a folder: name a file with --db")
    if not create and not os.path.exists(path):
        raise StoreError(f"no database {path}: {tune_first(path)}")
    if os.path.exists(path) and not os.path.isfile(path):  # SQLite would wait for a FIFO's writer
        raise StoreError(f"{path} is not a regular file: name another with --db")
    _refuse_companions(path)


def _refuse_name(path: Path) -> None:
    """Raise StoreError if the path or a companion file's path is invalid, or if the folder is not accessible."""
    try:
        os.lstat(f"{path}{max(COMPANIONS, key=len)}")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise StoreError(f"{path} cannot be opened ({why}): name another file with --db") from error


def _refuse_companions(path: Path) -> None:
    """Raise StoreError if a companion file is not a regular file, or if the journal names another file.

    A transaction over several databases makes such a journal, which this program never does. SQLite would delete the
    named file.
    """
    for suffix in COMPANIONS:
        beside = f"{path}{suffix}"
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(os.lstat(beside).st_mode):
                raise StoreError(f"{beside} is not a regular file: remove it, or name another database with --db")
    with suppress(OSError), open(f"{path}-journal", "rb") as journal:
        journal.seek(-len(NAME_FOLLOWS), os.SEEK_END)
        if journal.read() == NAME_FOLLOWS:
            raise StoreError(
                f"{path}-journal names another file, which SQLite would remove: restore a copy of the database"
                " without it, or name another database with --db"
            )
