"""Open the tuning results that the package contains as read-only databases.

Each database is built once and cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsm2_tune import __version__, pretuned
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.results.merge.files import written
from tsm2_tune.tuner.results.merge.text_parser import parse_file
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.storage.database import Database

SUFFIX = ".db"


@contextmanager
def opened(name: str) -> Iterator[Database]:
    """Open the read-only database of the packaged results with this name, for example pretuned:h100.

    Raise InputError if the package has no results of this name, or if the cache folder cannot be written.
    """
    with pretuned.named(name) as text:
        key = hashlib.sha256(f"{__version__} {schema_versions.version()} {SUFFIX}".encode() + text.read_bytes())
        found = cache.find(key.hexdigest(), SUFFIX)
        path = found[0] if found is not None else _made(text, key.hexdigest())
    with Database.copied(path) as database:
        database.become_read_only(Path(name))
        yield database


def _made(text: Path, key: str) -> Path:
    with workplace(cache.working_parent()) as work:
        database = work.folder / "bundled.db"
        written(text, database, parse_file(text))
        return cache.keep(database, key, SUFFIX, 0)
