"""Open the sources of an import: databases, text files of trials, other autotuners' formats."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from pathlib import Path

from tsm2_tune import __version__, pretuned
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.results.exchange import document_parser as exchange
from tsm2_tune.tuner.results.merge.importer import Incoming, Show, stored
from tsm2_tune.tuner.results.merge.text_parser import ParsedTrials, parse_content
from tsm2_tune.tuner.results.merge.writer import Change, Writer, batches
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.storage.addresses import TEXT_BEGIN, TEXT_SUFFIX, Address, is_text
from tsm2_tune.tuner.results.storage.database import Database

MOST_VALUES = 4_000_000  # values in a file
MOST_BYTES = 64_000_000  # bytes in a file; a file of 5,000 trials has 1.2 MB
DATABASE = b"SQLite format 3"  # the beginning of a database
MOST_SPACE = 256  # bytes before the first brace of another JSON object
SUFFIX = ".db"  # of a file of trials as a database in the cache


class Kind(Enum):
    """The kind of a file that can be imported. The first bytes of the file determine it."""

    DATABASE = auto()
    TEXT = auto()  # a file of trials
    EXCHANGE = auto()  # a JSON object in another autotuner's format


def kind_of(path: Path) -> Kind:
    """Return the kind of the file. An empty file counts as a database, unless its name is of a file of trials.

    Raise InputError if the file has none of these kinds, is an empty file of trials, or cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # checked first: a pipe would block, a device would never end
            raise InputError(f"cannot read {path}: it is not a regular file; name a database or a file of trials")
        with path.open("rb") as file:
            begin = file.read(MOST_SPACE)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise InputError(f"cannot read {path}: {reason}") from None
    if not begin and is_text(path):
        raise without_trials(path)
    if not begin or begin.startswith(DATABASE):
        return Kind.DATABASE
    text = begin[: len(begin) // 4 * 4].decode(json.detect_encoding(begin), errors="ignore")
    if text.startswith(TEXT_BEGIN):
        return Kind.TEXT
    if text.lstrip().startswith("{"):
        return Kind.EXCHANGE
    raise InputError(
        f"cannot read {path}: it is neither a database nor a file of trials, nor a T4 file or a cache of Kernel"
        " Tuner; name another file"
    )


def without_trials(path: Path, why: str = "it is empty; name another file") -> InputError:
    """Return an error: the file has no trials, for this reason."""
    return InputError(f"{path} has no trial to read: {why}")


def content_of(path: Path) -> bytes:
    """Return the file's content. Raise InputError if it exceeds MOST_BYTES or MOST_VALUES."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES or content.count(b",") > MOST_VALUES:  # a short value takes 100 bytes of memory
        raise InputError(
            f"{path} has more than {MOST_BYTES} bytes or {MOST_VALUES} values: name a smaller file of trials"
        )
    return content


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
    content = content_of(place)
    parsed = parse_content(place, content, show) if kind is Kind.TEXT else exchange.parse_content(place, content)
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
