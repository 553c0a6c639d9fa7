"""Tests of the files that are refused as a database, and of the migration of older ones."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import run
from tests.fabricated import (
    BASIS,
    PROBLEM,
    configuration,
    downgrade,
    plain_sql,
    trial,
    tuning_run,
)
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import database, schema_versions
from tsm2_tune.tuner.results.store import Store

RUN = tuning_run()
TODAY = ("tsm2", "ism2"), BASIS
C128, C256 = configuration(128), configuration(256)


def refused(path: Path, *, create: bool) -> str:
    with pytest.raises(StoreError) as caught, Store.open(path, create=create):
        pass
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_missing_file(path: Path) -> None:
    assert "tune first" in refused(path, create=False)
    assert not path.exists()


def test_an_empty_file(path: Path) -> None:
    path.touch()
    assert "holds no results" in refused(path, create=False)
    with Store.open(path, create=True) as store:
        assert store.best() == ()


@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database(path: Path, create: bool) -> None:
    path.write_text("m,n,k\n" * 1000)
    assert "is not a SQLite database" in refused(path, create=create)
    assert path.read_text() == "m,n,k\n" * 1000


@pytest.mark.parametrize("create", [True, False])
def test_the_database_of_another_program(path: Path, create: bool) -> None:
    plain_sql(path, "CREATE TABLE trial (id)")
    assert "another program" in refused(path, create=create)
    assert plain_sql(path, "SELECT name FROM sqlite_master") == [("trial",)]


@pytest.mark.parametrize("create", [True, False])
def test_a_newer_schema(path: Path, create: bool) -> None:
    with Store.open(path, create=True):
        plain_sql(path, f"PRAGMA user_version = {schema_versions.version() + 1}")
    assert f"schema {schema_versions.version() + 1}, newer than {schema_versions.version()}" in refused(
        path, create=create
    )


@pytest.mark.parametrize("command", ["best", "db migrate --keep", "db check", "db vacuum", "forget 1"])
def test_schema_before_the_previous_is_refused(path: Path, command: str) -> None:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500))
    downgrade(path)
    plain_sql(path, f"PRAGMA user_version = {schema_versions.OLDEST - 1}")
    content = path.read_bytes()
    found = run(*command.split(), "--db", str(path))
    sentence = (
        f"Error: {path} has schema 23, older than 24, the oldest that this tsm2-tune migrates: run db migrate of"
        " tsm2-tune 0.1.0 on it, or name another file with --db\n"
    )
    assert (found.exit_code, found.stdout, found.stderr) == (2, "", sentence)
    assert path.read_bytes() == content


def test_a_folder_and_a_path_under_a_file(tmp_path: Path, path: Path) -> None:
    assert "is a folder" in refused(tmp_path, create=True)
    path.touch()
    assert "cannot be opened" in refused(path / "results.db", create=True)
    assert "cannot be opened" in refused(tmp_path / "missing" / "results.db", create=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_can_be_read_but_not_written(tmp_path: Path, path: Path) -> None:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500))
    downgrade(path)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert "cannot be" in refused(path, create=True)
        with Store.open(path, create=False) as store:
            assert len(store.best()) == 1
    finally:
        tmp_path.chmod(0o755)


READING = (
    "best --json", "show", "show 2", "export --format csv --output -", "export --format trials --output -",
    f"export --format t4 --shapes {PROBLEM.text} --output -",
    "space --audit --device h200",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("version", [schema_versions.OLDEST, schema_versions.version()])
def test_what_cannot_be_written_can_be_read_also_of_an_older_schema(
    version: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path, create=True) as store:
        for us, config in ((500, C128), (600, C256)):
            store.add_trial(RUN, trial(us, config))
    if version < schema_versions.version():
        downgrade(path)
    shutil.copy(path, path.with_name("writable.db"))
    content, names = path.read_bytes(), set(path.parent.iterdir())
    connect = sqlite3.connect

    def read_only(name: str, **named: Any) -> sqlite3.Connection:
        name = name.replace(f"{path.name}?mode=rw", f"{path.name}?mode=ro")
        connection: sqlite3.Connection = connect(name, **named)
        return connection

    monkeypatch.setattr(sqlite3, "connect", read_only)
    for command in READING:
        said, expected = (run(*command.split(), "--db", str(one)) for one in (path, path.with_name("writable.db")))
        assert (said.exit_code, expected.exit_code) == (0, 0), (command, said.output, expected.output)
        assert said.stdout.replace(str(path), "") == expected.stdout.replace(str(path.with_name("writable.db")), "")
    said = run("forget", "2", "--db", str(path))
    assert (said.exit_code, said.stderr) == (
        2, f"Error: {path} is read-only: make it and its folder writable, or name another database with --db\n"
    )  # fmt: skip
    assert path.read_bytes() == content
    assert set(path.parent.iterdir()) == names


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look anywhere")
def test_a_folder_in_which_nobody_may_look(tmp_path: Path) -> None:
    folder = tmp_path / "denied"
    folder.mkdir(mode=0)
    assert "cannot be opened (Permission denied)" in refused(folder / "results.db", create=True)


def test_a_locked_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.05)
    with Store.open(path, create=True), closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "is locked" in refused(path, create=True)
        assert "is locked" in refused(path, create=False)


def test_a_full_disk_is_named_by_its_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file's own disk has room, the full one is SQLite's folder for sorting."""

    def said() -> str:
        with Store.open(path, create=True) as store:
            with store.database.transaction() as connection:
                connection.exec_driver_sql("PRAGMA max_page_count = 1")
            with pytest.raises(StoreError) as caught, store.database.transaction(writes=True) as connection:
                connection.exec_driver_sql("CREATE TABLE more (x)")
        return str(caught.value)

    roomy, full = (
        SimpleNamespace(f_blocks=9, f_bavail=2**20, f_frsize=4096),
        SimpleNamespace(f_blocks=9, f_bavail=0, f_frsize=4096),
    )
    assert (
        said() == f"{path} cannot grow, the disk of {path.parent} is full: free some space there, then run this again"
    )
    monkeypatch.setenv("SQLITE_TMPDIR", "/sorting")
    monkeypatch.setattr(os, "statvfs", lambda folder: full if folder == "/sorting" else roomy)
    assert "cannot grow, the disk of /sorting is full" in said()


def test_damage_that_sqlite_cannot_spell(path: Path) -> None:
    with (
        pytest.raises(StoreError, match="is a damaged database"),
        Store.open(path, create=True) as store,
        store.database.transaction(),
    ):
        b"\xff".decode()


def test_a_working_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working folder" in refused(Path("results.db"), create=True)


def test_an_older_schema_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500))
    steps = ("UPDATE trial SET detail = 'migrated'", "UPDATE trial SET detail = detail || ', twice'")
    added = [lambda connection, sql=sql: connection.exec_driver_sql(sql) for sql in steps]
    before = schema_versions.version()
    monkeypatch.setattr(schema_versions, "MIGRATIONS", (*schema_versions.MIGRATIONS, *added))
    with Store.open(path, create=False) as store:
        assert len(store.best()) == 1
    assert plain_sql(path, "SELECT detail FROM trial") == [("migrated, twice",)]
    assert plain_sql(path, "PRAGMA user_version") == [(before + len(steps),)]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path, create=True) as store:
        store.add_trial(RUN, trial(500))
    steps = ("ALTER TABLE trial ADD COLUMN note TEXT", "UPDATE nothing SET x = 1")
    added = [lambda connection, sql=sql: connection.exec_driver_sql(sql) for sql in steps]
    before = schema_versions.version()
    monkeypatch.setattr(schema_versions, "MIGRATIONS", (*schema_versions.MIGRATIONS, *added))
    assert "refused by SQLite" in refused(path, create=True)
    assert plain_sql(path, "PRAGMA user_version") == [(before,)]
    monkeypatch.undo()
    with Store.open(path, create=True) as store:
        assert len(store.best()) == 1


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_file_that_is_gone_takes_no_more_trials(how: str, tmp_path: Path) -> None:
    """SQLite would write them where nobody looks."""
    path, elsewhere = tmp_path / "results.db", tmp_path / "elsewhere.db"
    with Store.open(path, create=True) as store:
        store.add_trial(tuning_run(), trial(500.0))
        if how == "removed":
            path.unlink()
        else:
            path.rename(elsewhere)
        if how == "replaced":
            path.touch()
        with pytest.raises(StoreError, match="was moved, replaced or removed while it was open: put it back"):
            store.add_trial(tuning_run(), trial(400.0))
        if how == "moved":
            elsewhere.rename(path)
            store.add_trial(tuning_run(), trial(400.0, configuration(64)))
            assert [row.median_us for row in store.best()] == [400.0]
