"""Databases of fabricated trials, and all that a database holds."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Dialect, Engine
from sqlalchemy.util import LRUCache

import tsm2_tune
from tests.fabricated import BASIS, configuration, final, plain_sql, trial, tuning_run, vendor_measurement
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.merge.reader import Reader, places
from tsm2_tune.tuner.results.merge.union import Part
from tsm2_tune.tuner.results.storage import sqlite
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Trial, TuningRun, VendorMeasurement

C128, C256, C512 = configuration(128), configuration(256), configuration(512)
OTHER = Problem(20480, 8, 20480, "f32")
EARLY, LATE = tuning_run(), tuning_run(uuid="GPU-2", started_at="2026-03-04T05:06:07+00:00")
TODAY = ("tsm2",), BASIS
Facts = dict[tuple[str, Problem], Part]


def facts(path: Path) -> Facts:
    """All that a database has, without its own numbers of trials, runs and measurements."""
    with Database.open(path, create=False) as database, database.transaction() as connection:
        reader = Reader(connection)
        return {place: reader.part(*place) for place in places(connection)}


def write_protect(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no connection write the file, as if it were read-only: root writes files of any mode."""
    connect = sqlite3.connect

    def read_only(name: str, *arguments: Any, **named: Any) -> sqlite3.Connection:
        name = re.sub(rf"({re.escape(path.name)}\?mode=)rwc?", r"\1ro", name)
        connection: sqlite3.Connection = connect(name, *arguments, **named)
        return connection

    monkeypatch.setattr(sqlite3, "connect", read_only)


def sources_of(store: Store, rows: Iterable[BestRow]) -> dict[int, KernelSource]:
    """The kernel sources of these winners, by trial."""
    return {number: record.trial.source for number, record in store.winning(rows).items()}


def best(path: Path) -> list[Any]:
    return [replace(row, trial_id=0, run_id=0) for row in tsm2_tune.best(path)]


def ended(path: Path, when: str) -> None:
    """Let all trials of the database have ended then, and been stored then."""
    stamp = int(datetime.fromisoformat(when).timestamp() * 1e6)
    plain_sql(path, f"UPDATE trial SET ended_at = '{when}', stamp = {stamp}")


def half_written(path: Path) -> Path:
    """Leave the file as a program does that is killed in a transaction. Return the journal that SQLite rolls back."""
    journal = Path(f"{path}-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE trial SET detail = hex(zeroblob(40000))")
        changed, left = path.read_bytes(), journal.read_bytes()
        connection.execute("ROLLBACK")
    path.write_bytes(changed)
    journal.write_bytes(left)
    return journal


@pytest.fixture
def two_databases(tmp_path: Path) -> tuple[Path, Path]:
    """Two databases of two GPUs of one name: of one problem they share a configuration."""
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    trials = trial(500, C128), trial(520, C256), trial(90, C128, problem=OTHER, full_verdict=None)
    database_of(ours, *trials, final=final((C128, 505), (C256, 515), vendor=(vendor_measurement(800),)))
    timed = final((C128, 506), (C512, 410), vendor=(vendor_measurement(700),))
    database_of(theirs, trial(501, C128), trial(400, C512), run=LATE, final=timed)
    ended(ours, "2026-01-02T03:05:00+00:00")
    ended(theirs, "2026-03-04T05:07:00+00:00")
    return ours, theirs


def dump(path: Path) -> list[str]:
    """All that is in the file, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def beside_vendor(store: Store, *vendor: VendorMeasurement, ours: float = 500) -> BestRow:
    """Return the winner of a final of two kernels and these measurements of the vendor."""
    for config, us in ((C128, ours), (C256, ours + 100)):
        store.add_trial(EARLY, trial(us, config))
    store.add_final(EARLY, final((C128, ours), (C256, ours + 100), vendor=vendor), ("tsm2", "ism2"), BASIS)
    (row,) = store.best()
    return row


def database_of(path: str | Path, *trials: Trial, run: TuningRun = EARLY, final: Final | None = None) -> str:
    """Store the trials and the final of one run, and return the database's name."""
    with Store.open(path, create=True) as store:
        for one in trials:
            store.add_trial(run, one)
        if final is not None:
            store.add_final(run, final, *TODAY)
    return str(path)


@pytest.fixture
def database(path: Path) -> str:
    """A database with one trial, which is the winner."""
    return database_of(path, trial(500.0))


@pytest.fixture
def one_trial_database(database: str, fake_nvcc: None) -> Path:
    """The database, beside an nvcc that makes the code that its trial was verified with."""
    return Path(database)


def compile_once(setattr: Callable[[object, str, object], None]) -> None:
    """Have all files of databases share what statements are compiled to: each would compile its own."""
    created, shared, compiled = sqlalchemy.create_engine, dict[type[Dialect], Dialect](), LRUCache[Any, Any](500)

    def create_engine(*arguments: Any, **options: Any) -> Engine:
        engine = created(*arguments, **options)
        engine.dialect = shared.setdefault(type(engine.dialect), engine.dialect)
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    setattr(sqlite, "create_engine", create_engine)
