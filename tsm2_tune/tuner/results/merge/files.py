"""Open the files that can be imported as databases: SQLite files, text files of trials, other autotuners' formats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tsm2_tune import __version__, pretuned
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import Workplace, workplace
from tsm2_tune.tuner.results.exchange import document_parser as exchange
from tsm2_tune.tuner.results.merge.problem_rows import Writer
from tsm2_tune.tuner.results.merge.text_parser import (
    Kind,
    ParsedTrials,
    content_of,
    kind_of,
    parse_content,
    parse_file,
    refuse_others,
    without_trials,
)
from tsm2_tune.tuner.results.storage import schema_versions, sqlite
from tsm2_tune.tuner.results.storage.addresses import TEXT_SUFFIX, Address
from tsm2_tune.tuner.results.storage.database import Database

SUFFIX = ".db"  # of a file of trials as a database in the cache
PARSERS = {Kind.TEXT: parse_file, Kind.EXCHANGE: exchange.parse_file}  # parsers of files that are not databases
REFUSING = {Kind.DATABASE: Database.refuse_others, Kind.TEXT: refuse_others, Kind.EXCHANGE: exchange.refuse_others}


def refuse(path: Path | Address) -> None:
    """Raise InputError or StoreError if the beginning of the file shows that it cannot be imported."""
    if isinstance(path, Address):
        with Database.open(path, create=False):
            return
    REFUSING[kind_of(path)](path)


@contextmanager
def opened(path: Path | Address) -> Iterator[tuple[Database, tuple[str, ...]]]:
    """Open a file or a server's database for import. Yield a database, and a sentence for each skipped configuration.

    A SQLite file is copied, and the copy is migrated to the current schema. A text file is converted to a temporary
    database. Raise InputError if the file is not a regular file, was altered, or cannot be copied. Raise StoreError
    if the database cannot be read.
    """
    if isinstance(path, Address):
        with Database.open(path, create=False) as found:
            yield found, ()
        return
    kind = kind_of(path)
    with _workplace(path) as work:
        copy = work.folder / "results.db"
        try:
            left_out = written(path, copy, PARSERS[kind](path)) if kind in PARSERS else _copied(path, copy)
            with Database.open(copy, create=kind in PARSERS) as found:
                found.path = path  # the name in messages
                yield found, left_out
        except StoreError as error:
            parsed = str(error)
            if parsed.startswith(f"{copy} cannot be opened"):
                raise _no_place(path, "no file can be created") from error
            parsed = parsed.replace(f"{copy} cannot grow, ", f"cannot copy {path} to read it: ")
            parsed = parsed.replace(str(copy), str(path)).replace(str(work.folder), str(cache.cache_folder()))
            raise StoreError(parsed) from error


@contextmanager
def _workplace(path: Path) -> Iterator[Workplace]:
    """Create a temporary folder for the copy of the file. Raise InputError if that fails."""
    with ExitStack() as stack:
        try:
            work = stack.enter_context(workplace(cache.working_parent()))
        except OSError as error:
            raise _no_place(path, str(error.strerror)) from error
        yield work


def _no_place(path: Path, why: str) -> InputError:
    return InputError(
        f"cannot copy {path} to read it ({why}): make {cache.cache_folder()} writable, with space left, or set"
        " XDG_CACHE_HOME to another folder"
    )


def _copied(path: Path, copy: Path) -> tuple[str, ...]:
    sqlite.copy(path, copy)
    return ()


def parsed_trials(path: Path | Address, show: Callable[[float], object]) -> ParsedTrials | None:
    """Return the trials in a text file; None for a database. `show` is called with the fraction that has been read.

    Raise InputError if the file has no trials, was altered, or cannot be read.
    """
    if isinstance(path, Address) or (kind := kind_of(path)) not in PARSERS:
        return None
    parsed = parse_file(path, show) if kind is Kind.TEXT else PARSERS[kind](path)
    _refuse_nothing(path, parsed)
    return parsed


def _refuse_nothing(path: Path, parsed: ParsedTrials) -> None:
    if not parsed.parts:
        raise without_trials(path, *list(parsed.left_out.values())[:1])


def written(path: Path, copy: Path, parsed: ParsedTrials) -> tuple[str, ...]:
    """Write the parsed trials into a new database file `copy`. Return a sentence for each skipped configuration."""
    _refuse_nothing(path, parsed)
    with Database.open(copy, create=True) as made, made.transaction(writes=True) as connection:
        writer = Writer(connection, parsed.sources.__getitem__)
        for (device_name, problem), part in parsed.parts.items():
            writer.write(device_name, problem, part, is_new=True)
    return tuple(parsed.left_out.values())


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
