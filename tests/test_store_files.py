"""Files that are refused as a database, the migration of older ones, and the texts of kernels in them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from tests.command import refused, run
from tests.databases import database_of, write_protect
from tests.fabricated import BASIS, PROBLEM, configuration, downgrade, plain_sql, source_text, trial, tuning_run
from tests.schema_file import NEWEST, SCHEMAS
from tests.standing_in import Disk
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.store import Store

RUN = tuning_run()
TODAY = ("tsm2", "ism2"), BASIS
C128, C256 = configuration(128), configuration(256)


def of_schema(version: int) -> Callable[[Path], object]:
    """Return a function that makes a database of this schema."""

    def make(path: Path) -> None:
        database_of(path, trial(500))
        if version < schema_versions.version():
            downgrade(path)
        plain_sql(path, f"PRAGMA user_version = {version}")

    return make


NEWER = schema_versions.version() + 1
NO_DATABASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no database"),
    "empty": (Path.touch, "holds no results yet: tune first"),
    "fifo": (os.mkfifo, "is not a regular file: name another with --db"),
    "text": (lambda path: path.write_text("m,n,k\n" * 1000), "is not a SQLite database"),
    "cut": (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(500)), "is not a SQLite database"),
    "of another program": (lambda path: plain_sql(path, "CREATE TABLE trial (id)"), "of another program"),
    "newer": (of_schema(NEWER), f"schema {NEWER}, newer than {NEWER - 1}"),
    "before the previous": (
        of_schema(schema_versions.OLDEST - 1),
        "has schema 23, older than 24, the oldest that this tsm2-tune migrates: run db migrate of tsm2-tune 0.1.0 on"
        " it, or name another file with --db",
    ),
}


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


@pytest.mark.parametrize("kind", NO_DATABASES)
def test_what_is_no_database_of_ours_is_refused(path: Path, kind: str) -> None:
    make, sentence = NO_DATABASES[kind]
    make(path)
    before = content(path)
    for command in ("best", "db migrate --keep", "db check", "db vacuum", "forget 1"):
        found = refused(*command.split(), path=path)
        assert f"{path}" in found
        assert sentence in found
    if kind not in ("missing", "empty"):  # which a run fills
        assert sentence in opening_refused(path)
    assert content(path) == before
    assert list(path.parent.iterdir()) == [path] * path.exists()


def opening_refused(path: Path) -> str:
    """Return why a run refuses the file."""
    with pytest.raises(StoreError) as caught, Store.open(path, create=True):
        pass
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_run_fills_an_empty_file_and_makes_no_folder(path: Path, tmp_path: Path) -> None:
    path.touch()
    with Store.open(path, create=True) as store:
        assert store.best() == ()
    assert "is a folder" in opening_refused(tmp_path)
    assert "cannot be opened" in opening_refused(path / "results.db")
    assert "cannot be opened" in opening_refused(tmp_path / "missing" / "results.db")


READING = (
    "best --json", "show", "show 2", "export --format csv --output -", "export --format trials --output -",
    f"export --format t4 --shapes {PROBLEM.text} --output -",
    "space --audit --device h200",
)  # fmt: skip


@pytest.mark.parametrize("tables", sorted({*SCHEMAS.glob("*.sql"), NEWEST}), ids=lambda one: one.stem)
def test_files_of_recorded_schemas_are_opened(path: Path, tables: Path) -> None:
    """A changed table, index or view needs a migration, else files of its version are refused as altered."""
    assert tables.exists(), "record this version's schema: python -m tests.schema_file"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(tables.read_text(encoding="utf-8"))
    with Store.open(path, create=False) as store:
        assert store.devices() == ()
    assert plain_sql(path, "PRAGMA user_version") == [(schema_versions.version(),)]


@pytest.mark.parametrize("version", [schema_versions.OLDEST, schema_versions.version()])
def test_read_only_file_is_read(version: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path, create=True) as store:
        for us, config in ((500, C128), (600, C256)):
            store.add_trial(RUN, trial(us, config))
    if version < schema_versions.version():
        downgrade(path)
    shutil.copy(path, path.with_name("writable.db"))
    content, names = path.read_bytes(), set(path.parent.iterdir())
    write_protect(path, monkeypatch)
    for command in READING:
        said, expected = (run(*command.split(), "--db", str(one)) for one in (path, path.with_name("writable.db")))
        assert (said.exit_code, expected.exit_code) == (0, 0), (command, said.output, expected.output)
        assert said.stdout.replace(str(path), "") == expected.stdout.replace(str(path.with_name("writable.db")), "")
    for command in ("forget 2", "db vacuum", *(("db migrate",) if version < schema_versions.version() else ())):
        said = run(*command.split(), "--db", str(path))
        assert (said.exit_code, said.stderr) == (
            2, f"Error: {path} is read-only: make it and its folder writable, or name another database with --db\n"
        )  # fmt: skip
    assert path.read_bytes() == content
    assert set(path.parent.iterdir()) == names


@pytest.mark.usefixtures("impatient")
def test_a_locked_file(path: Path) -> None:
    with Store.open(path, create=True), closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "is locked" in opening_refused(path)
        assert "is locked" in run("best", "--db", str(path)).stderr


@pytest.mark.parametrize("variable", ["SQLITE_TMPDIR", "TMPDIR"])
def test_a_full_disk_is_named_by_its_folder(
    variable: str, path: Path, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file's own disk has room, the full one is SQLite's folder for sorting."""

    def said() -> str:
        with Store.open(path, create=True) as store:
            with store.database.transaction() as connection:
                connection.exec_driver_sql("PRAGMA max_page_count = 1")
            with pytest.raises(StoreError) as caught, store.database.transaction(writes=True) as connection:
                connection.exec_driver_sql("CREATE TABLE more (x)")
        return str(caught.value)

    remedy = "is full: free some space there, then run this again"
    assert said() == f"{path} cannot grow, the disk of {path.parent} {remedy}"
    (sorting := tmp_path / "sorting").mkdir()
    monkeypatch.setenv(variable, str(sorting))
    disk(sorting, f_bavail=0)
    assert f"cannot grow, the disk of {sorting} is full" in said()


def test_unspellable_damage_and_a_lost_folder(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = pytest.raises(StoreError, match="is a damaged database")
    with damaged, Store.open(path, create=True) as store, store.database.transaction():
        b"\xff".decode()
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working folder" in opening_refused(Path("results.db"))


def migrating(patch: pytest.MonkeyPatch, *steps: str) -> None:
    """Let one more version of the schema have each of these steps."""
    added = [lambda connection, sql=sql: connection.exec_driver_sql(sql) for sql in steps]
    patch.setattr(schema_versions, "MIGRATIONS", (*schema_versions.MIGRATIONS, *added))


def test_an_older_schema_is_migrated_or_left_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database_of(path, trial(500))
    before = schema_versions.version()
    with monkeypatch.context() as patch:
        migrating(patch, "ALTER TABLE trial ADD COLUMN note TEXT", "UPDATE nothing SET x = 1")
        assert "refused by SQLite" in opening_refused(path)
    assert plain_sql(path, "PRAGMA user_version") == [(before,)]
    migrating(monkeypatch, "UPDATE trial SET detail = 'migrated'", "UPDATE trial SET detail = detail || ', twice'")
    with Store.open(path, create=False) as store:
        assert len(store.best()) == 1
    assert plain_sql(path, "SELECT detail FROM trial") == [("migrated, twice",)]
    assert plain_sql(path, "PRAGMA user_version") == [(before + 2,)]


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


# Texts of kernels, which are stored by paragraphs


@pytest.fixture
def two(store: Store, path: Path) -> Path:
    for config in (C128, C256):
        store.add_trial(tuning_run(), trial(config=config))
    return path


def shown(path: Path, number: int) -> str:
    return run("source", str(number), "--db", str(path)).output


@pytest.mark.parametrize("family", ["stream_a_fma", "resident_b_fma_ring", "inner_fma"])
def test_texts_take_at_most_a_fifth(family: str, store: Store, path: Path) -> None:
    space = (one for one in FAMILIES[family].configurations() if FAMILIES[family].has(one, PROBLEM))
    tried = [trial(config=one, source=render(PROBLEM, one)) for one in islice(space, 0, 4000, 200)]
    store.add_trials(tuning_run(), tried)
    texts = {one.source.digest: one.source.text for one in tried}
    lengths = "SELECT sum(length(key) + length(text)), (SELECT sum(length(paragraphs)) FROM source) FROM paragraph"
    stored = sum(plain_sql(path, lengths)[0])
    assert len(texts) > 10
    assert stored <= sum(map(len, texts.values())) / 5
    assert {digest: source_text(path, digest) for digest in texts} == texts


def test_forgotten_text_takes_only_its_own_paragraphs(two: Path) -> None:
    assert run("forget", "1", "--db", str(two)).exit_code == 0
    assert shown(two, 2) == render(PROBLEM, C256).text
    ((keys,),) = plain_sql(two, "SELECT paragraphs FROM source")
    assert {key for (key,) in plain_sql(two, "SELECT key FROM paragraph")} == set(keys.split())


def test_text_of_an_older_database_is_divided_unless_it_is_damaged(two: Path) -> None:
    before = shown(two, 1)
    downgrade(two)
    plain_sql(two, "UPDATE source SET text = x'ff' WHERE digest = ?", render(PROBLEM, C256).digest)
    assert shown(two, 1) == before == source_text(two, render(PROBLEM, C128).digest)
    refused("source", "2", path=two)
