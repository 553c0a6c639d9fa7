"""`import_trials`: copy trials from another database or a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path

from tsm2_tune import pretuned
from tsm2_tune.api.parse import DEFAULT_DATABASE, check_callable, file_name
from tsm2_tune.tuner.results.merge.files import opened
from tsm2_tune.tuner.results.merge.importer import Imported, merge
from tsm2_tune.tuner.results.storage.addresses import Address, is_address, place_of
from tsm2_tune.tuner.results.storage.database import Database

READING = 0.65  # share of an import's time that reading the source takes


def import_trials(
    source: str | PathLike[str],
    db: str | PathLike[str] = DEFAULT_DATABASE,
    *,
    on_progress: Callable[[float], object] | None = None,
) -> Imported:
    """Copy the trials of another database or of a file into a database. `tsm2-tune import` does this.

    - `source`: a database, which is not changed; a file that `export` wrote with the format "trials", "t4" or
      "kernel-tuner-cache"; or pretuned trials, such as "pretuned:h200".
    - `db`: the database that receives the trials. It is created if it is missing.
    - `on_progress`: called with the completed share, from 0 to 1.

    Existing trials are unchanged. A second import of the same source changes nothing, and the order of imports does
    not matter. After an interruption, the same call adds the missing trials.

    Raise InputError for a source that cannot be read, or with a line that this version would not write. Raise
    StoreError for a database that cannot be used. If an error is raised for the source, no trial is added.
    """
    check_callable("on_progress", on_progress)
    show = on_progress or (lambda share: None)
    into = place_of(file_name("db", db))
    if isinstance(into, Address):
        from tsm2_tune.tuner.results.storage.postgresql import url_of  # imported only for a server

        url_of(into)  # raises before the source is read, which may take a minute

    def database() -> AbstractContextManager[Database]:
        return Database.open(into, create=True)

    with named_source(source) as place, opened(place, lambda share: show(READING * share)) as incoming:
        return merge(database, incoming, lambda share: show(READING + (1 - READING) * share))


def refuse_others(source: str | PathLike[str]) -> None:
    """Read the source. Raise InputError or StoreError if `import_trials` would refuse it."""
    with named_source(source) as place, opened(place, lambda share: None):
        pass


def named_source(source: str | PathLike[str]) -> AbstractContextManager[Path | Address]:
    """Return a context manager of the file's path or the server's address that `source` of `import_trials` names."""
    name = file_name("source", source)
    return nullcontext(place_of(name)) if is_address(name) else pretuned.named(name)
