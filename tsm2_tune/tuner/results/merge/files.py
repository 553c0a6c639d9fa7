"""Open the sources of an import: databases, text files of trials, other autotuners' formats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tsm2_tune import __version__, pretuned
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.results.exchange import document_parser as exchange
from tsm2_tune.tuner.results.merge.importer import Incoming, Show, stored
from tsm2_tune.tuner.results.merge.problem_rows import Change, Writer, batches
from tsm2_tune.tuner.results.merge.text_parser import (
    Kind,
    ParsedTrials,
    content_of,
    kind_of,
    parse_content,
    parse_file,
    without_trials,
)
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.storage.addresses import TEXT_SUFFIX, Address
from tsm2_tune.tuner.results.storage.database import Database

SUFFIX = ".db"  # of a file of trials as a database in the cache


@contextmanager
def opened(place: Path | Address, show: Show) -> Iterator[Incoming]:
    """Open a source of an import, and read its trials. `show` is called with the fraction that has been read.

    A SQLite file is copied, and the copy is migrated to the current schema. Raise InputError if a file is not a
    regular file, has no trials, or was altered. Raise StoreError if a database cannot be read or copied, or has a
    damaged row.
    """
    if isinstance(place, Address) or (kind := kind_of(place)) is Kind.DATABASE:
        with Database.open(place, create=False, copy=True) as other:
            yield stored(other, show)
        return
    parsed = parse_file(place, show) if kind is Kind.TEXT else exchange.parse_file(place)
    _refuse_nothing(place, parsed)
    parts, left_out = list(parsed.parts.items()), tuple(parsed.left_out.values())
    yield Incoming(parts, parsed.source, left_out=left_out)


def _refuse_nothing(path: Path, parsed: ParsedTrials) -> None:
    if not parsed.parts:
        raise without_trials(path, *list(parsed.left_out.values())[:1])


@contextmanager
def opened_text(name: str) -> Iterator[Database]:
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
        path = found.path if found is not None else _convert(text, content, key)
    with Database.copied(path) as database:
        database.become_read_only(Path(name))
        yield database


def _convert(text: Path, content: bytes, key: str) -> Path:
    """Convert the content of a file of trials to a database in the cache, and return the database's path."""
    parsed = parse_content(text, content)
    _refuse_nothing(text, parsed)
    with ExitStack() as stack:
        try:
            work = stack.enter_context(workplace(cache.working_parent()))
        except OSError as error:
            raise InputError(
                f"cannot copy {text} to read it ({error.strerror}): make {cache.cache_folder()} writable, with space"
                " left, or set XDG_CACHE_HOME to another folder"
            ) from error
        database = work.folder / "text.db"
        with Database.open(database, create=True) as made, made.transaction(writes=True) as connection:
            writer = Writer(connection, parsed.source)
            for some in batches(list(parsed.parts.items())):
                writer.write([Change(*place, part, is_new=True) for place, part in some])
        return cache.keep(database, key, SUFFIX, 0)
