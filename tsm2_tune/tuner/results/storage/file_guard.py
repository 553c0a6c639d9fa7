"""Refuse a file that is unsafe to open, before SQLite opens it and the files beside it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage.addresses import tune_first

COMPANIONS = ("-journal", "-wal", "-shm")  # files that SQLite opens beside a database
NAME_FOLLOWS = bytes.fromhex("d9d505f920a163d7")  # the end of a journal that names another one


def refuse_unopenable(path: Path, *, create: bool) -> None:
    """Raise StoreError if no database can be opened there."""
    _refuse_name(path)
    if os.path.isdir(path):  # unlike Path's, these do not raise below a folder that cannot be read
        raise StoreError(f"{path} is a folder: name a file with --db")
    if not create and not os.path.exists(path):
        raise StoreError(f"no database {path}: {tune_first(path)}")
    if os.path.exists(path) and not os.path.isfile(path):  # SQLite would wait for who writes into a FIFO
        raise StoreError(f"{path} is no regular file: name another with --db")
    _refuse_companions(path)


def _refuse_name(path: Path) -> None:
    """Raise StoreError if no file can be called so, or beside it as SQLite does, or where nobody may look for it."""
    try:
        os.lstat(f"{path}{max(COMPANIONS, key=len)}")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no file can be called so"
        raise StoreError(f"{path} cannot be opened ({why}): name another file with --db") from error


def _refuse_companions(path: Path) -> None:
    """Raise StoreError if SQLite would follow what lies beside the file: a FIFO, a link, or a journal's other name.

    A journal that ends with the name of a file, as one of a transaction in several databases does, has SQLite remove
    that file. This program makes no such one.
    """
    for suffix in COMPANIONS:
        beside = f"{path}{suffix}"
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(os.lstat(beside).st_mode):
                raise StoreError(f"{beside} is no regular file: remove it, or name another database with --db")
    with suppress(OSError), open(f"{path}-journal", "rb") as journal:
        journal.seek(-len(NAME_FOLLOWS), os.SEEK_END)
        if journal.read() == NAME_FOLLOWS:
            raise StoreError(
                f"{path}-journal names another file, which SQLite would remove: restore a copy of the database"
                " without it, or name another with --db"
            )
