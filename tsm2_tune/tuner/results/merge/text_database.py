"""Convert a JSON Lines file of trials to a cached database, and open it read-only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsm2_tune import __version__, pretuned
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.results.merge.files import written
from tsm2_tune.tuner.results.merge.text_parser import Kind, content_of, kind_of, parse_content
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.storage.addresses import TEXT_SUFFIX
from tsm2_tune.tuner.results.storage.database import Database

SUFFIX = ".db"


@contextmanager
def opened(name: str) -> Iterator[Database]:
    """Open the database of the file of trials with this name, for example pretuned:h100 or a100.jsonl, read-only.

    Raise InputError if there is no such file, if it cannot be read, or if the cache folder cannot be written.
    """
    with pretuned.named(name) as text:
        if kind_of(text) is not Kind.TEXT:
            raise InputError(
                f"{name} is not a file of trials, though its name ends in {TEXT_SUFFIX}: rename it, or name"
                " another file"
            )
        content = content_of(text)  # read once: the file may change
        key = hashlib.sha256(f"{__version__} {schema_versions.version()} {SUFFIX}".encode() + content).hexdigest()
        found = cache.find(key, SUFFIX)
        path = found[0] if found is not None else _convert(text, content, key)
    with Database.copied(path) as database:
        database.become_read_only(Path(name))
        yield database


def _convert(text: Path, content: bytes, key: str) -> Path:
    """Convert the content of a file of trials to a database in the cache, and return the database's path."""
    with workplace(cache.working_parent()) as work:
        database = work.folder / "text.db"
        written(text, database, parse_content(text, content))
        return cache.keep(database, key, SUFFIX, 0)
