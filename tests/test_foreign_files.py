"""A database from elsewhere: what is refused of it, by name, and that nothing of it is compiled or believed."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.command import completed, refused, run
from tests.databases import dump, half_written, sources_of
from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    add_text,
    configuration,
    downgrade,
    final,
    plain_sql,
    trial,
    tuning_run,
)
from tests.tampering import EVIL, plant, planted
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import digest_of
from tsm2_tune.tuner.results.domains import MOST_KERNEL
from tsm2_tune.tuner.results.storage import schema_versions, sqlite
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.slow

C128 = configuration(128)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda place: os.symlink("elsewhere", place)])
def test_file_beside_it_is_regular(path: Path, one_trial_database: Path, make: Callable[[str], None]) -> None:
    for suffix in ("-journal", "-wal", "-shm"):
        make(beside := f"{path}{suffix}")
        remedy = "remove it, or name another database with --db"
        assert refused("best", path=path) == f"Error: {beside} is not a regular file: {remedy}\n"
        os.rename(beside, f"{path}.former{suffix}")


def test_a_journal_that_names_another_file_removes_none(one_trial_database: Path) -> None:
    """SQLite would remove it: it takes the file for what tells of a transaction that several databases had."""
    other = one_trial_database.with_name("other")
    other.write_bytes(b"")
    name = str(other).encode()
    numbers = struct.pack(">II", len(name), sum(name))
    with half_written(one_trial_database).open("ab") as journal:
        journal.write(struct.pack(">I", 2**30 // 4096 + 1) + name + numbers + bytes.fromhex("d9d505f920a163d7"))
    assert "names another file, which SQLite would remove" in refused("best", path=one_trial_database)
    assert other.exists()


@pytest.mark.parametrize("command", ["best --db", "db check --db", "db merge --db NEW", "import --db NEW"])
def test_a_journal_of_a_killed_run_is_rolled_back(command: str, one_trial_database: Path, tmp_path: Path) -> None:
    before = dump(one_trial_database)
    asked = (*command.replace("NEW", str(tmp_path / "new.db")).split(), str(one_trial_database))
    journal = half_written(one_trial_database)
    completed(*asked)
    assert not journal.exists()
    assert dump(one_trial_database) == before


def test_a_planted_text_or_comment_is_not_exported(one_trial_database: Path) -> None:
    own = render(PROBLEM, C128)
    plain = f"{own.text}// {EVIL}\n"
    assert digest_of(plain) == own.digest
    key = add_text(one_trial_database, plain)
    plain_sql(one_trial_database, "UPDATE source SET paragraphs = ? WHERE digest = ?", key, own.digest)
    with Store.open(one_trial_database, create=False) as store:
        (row,) = (row for row in store.best() if row.config == C128.text)
        assert sources_of(store, [row])[row.trial_id] == own
    plant(one_trial_database, render(PROBLEM, C128).digest, planted(PROBLEM))
    said = refused("export", "--format", "module", "--output", "-", path=one_trial_database)
    assert f"has a kernel {C128.text} for {PROBLEM.text} on {GPU} (trial 1), whose code changed in this" in said
    assert f"or which it lacks: tune {PROBLEM.text} again on that device" in said


@pytest.mark.parametrize(
    ("family", "config", "tunables"),
    [
        ("bygone", "bygone-t1", {"threads": 1}),
        ("tsm2", "tsm2:version=v3,threads=128", {"version": "v3", "threads": 128}),
        ("tsm2", "tsm2:version=v9,threads=128,columns=8,prefetch=4", {**C128.tunables, "version": "v9"}),
        ("tsm2", "tsm2:version=v3,threads=96,columns=8,prefetch=4", {**C128.tunables, "threads": 96}),
        ("tsm2", "tsm2:version=v3,threads=64,columns=8,prefetch=4", {**C128.tunables, "threads": 64}),
    ],
)
def test_a_winner_that_this_version_does_not_make_is_shown_as_stale(
    path: Path, one_trial_database: Path, family: str, config: str, tunables: dict[str, object]
) -> None:
    values = (family, config, json.dumps(tunables))
    plain_sql(path, "UPDATE trial SET family = ?, config = ?, tunables = ?", *values)
    for command in (["best", "--json"], ["export", "--output", "-", "--format", "json"]):
        found = json.loads(run(*command, "--db", str(path)).output)["best"]
        assert [(row["stale"], row["config"]) for row in found] == [(1, config)]
    for form in ("csv", "markdown", "latex"):
        assert run("export", "--format", form, "--output", "-", "--db", str(path)).exit_code == 0
    said = refused("export", "--format", "module", "--output", "-", path=path)
    assert "whose code changed in this tsm2-tune, or which it lacks" in said
    assert "this version generates other code" in run("show", "1", "--db", str(path)).output
    with Store.open(path, create=False) as store:
        shown = store.trial(1).trial.config
        assert (shown.family, shown.text, shown.tunables) == (family, config, tunables)
        assert [line.config for line in store.listing()] == [config]


def test_tuning_on_passes_over_a_configuration_of_no_space(path: Path, one_trial_database: Path) -> None:
    plain_sql(
        path, "UPDATE trial SET config = replace(config, '128', '96'), tunables = replace(tunables, '128', '96')"
    )
    with Store.open(path, create=False) as store:
        history = store.history(GPU, PROBLEM, ("tsm2",), BASIS)
        with pytest.raises(StoreError, match=r"^trial 1 .*tsm2 has no configuration .*threads=96"):
            history.tried()
        store.supersede(GPU, PROBLEM, BASIS)
    assert plain_sql(path, "SELECT superseded FROM trial") == [(1,)]


@pytest.mark.parametrize("value", ["x", 1.5, math.inf, -5, b"\0"])
def test_nothing_is_stored_after_a_round_or_a_stamp_that_is_none(one_trial_database: Path, value: object) -> None:
    plain_sql(one_trial_database, "UPDATE measurement SET round = ?", value)
    with Store.open(one_trial_database, create=True) as store:
        with pytest.raises(StoreError, match="final of the round"):
            store.add_final(tuning_run(), final((C128, 400.0)), ("tsm2",), BASIS)
        plain_sql(one_trial_database, "UPDATE trial SET stamp = 'x'")
        with pytest.raises(StoreError, match="the database has the stamp 'x': restore a copy"):
            store.add_trial(tuning_run(), trial(500, configuration(64)))


# Tables, views and bytes


def opening_refused(path: Path, *, create: bool = False) -> str:
    with pytest.raises(StoreError) as caught, Store.open(path, create=create):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON trial BEGIN DELETE FROM sample; END", "has 't'"),
        ("CREATE TABLE extra (x)", "has 'extra'"),
        ("CREATE INDEX i ON trial (family)", "has 'i'"),
        ("CREATE VIEW v AS SELECT 1", "has 'v'"),
        ("DROP VIEW best", "lacks 'best'"),
        ("DROP TABLE sample", "lacks 'sample'"),
        ("ALTER TABLE trial ADD COLUMN note TEXT", "has an altered 'trial'"),
        ("ALTER TABLE trial RENAME COLUMN detail TO details", "has an altered 'trial'"),
        ("ALTER TABLE run DROP COLUMN seed", "has an altered 'run'"),
    ],
)
def test_another_schema_is_refused(one_trial_database: Path, statement: str, said: str) -> None:
    plain_sql(one_trial_database, statement)
    sentence = f"{said}, unlike tsm2-tune's schema: restore a copy"
    assert sentence in opening_refused(one_trial_database)
    assert sentence in opening_refused(one_trial_database, create=True)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT max(i) FROM n"
REWRITTEN = (  # parts of statements that create something
    ("trial", "detail TEXT", "detail TEXT COLLATE NOCASE"),
    ("trial", "detail TEXT", "detail TEXT CHECK (length(randomblob(9)) > 3)"),
    ("trial", "registers INTEGER", "registers INTEGER GENERATED ALWAYS AS (1)"),
    ("sample", "us FLOAT", "us BLOB"),
    ("run", "seed INTEGER", "seed"),
    ("paragraph", "text TEXT", "text TEXT DEFAULT (load_extension('x'))"),
    ("best", "WHERE place = 1", "WHERE place = 2"),
    ("best", "SELECT placed", f"SELECT ({ENDLESS}), placed"),
    ("best", "100 * least_us", "100 * 0"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "before", "after"), REWRITTEN)
def test_a_rewritten_schema_is_refused(one_trial_database: Path, name: str, before: str, after: str) -> None:
    with closing(sqlite3.connect(one_trial_database)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        update = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ? AND instr(sql, ?)"
        assert connection.execute(update, (before, after, name, before)).rowcount == 1
    said = opening_refused(one_trial_database)
    assert f"altered '{name}'" in said or "damaged" in said


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        (["CREATE VIEW v AS SELECT 1"], "has 'v'"),
        (["CREATE TRIGGER t AFTER INSERT ON trial BEGIN DELETE FROM sample; END"], "has 't'"),
        (["ALTER TABLE trial ADD COLUMN more TEXT"], "has an altered 'trial'"),
        (["ALTER TABLE problem ADD COLUMN more TEXT"], "has an altered 'problem'"),
        (["ALTER TABLE claim ADD COLUMN more TEXT"], "has an altered 'claim'"),
        (["DROP TABLE claim", "CREATE VIEW claim AS SELECT 1"], "has an altered 'claim'"),
        (["DROP TABLE claim", "CREATE TABLE claim (owner TEXT CHECK (abs(owner) > 0))"], "has an altered 'claim'"),
    ],
)
def test_an_altered_older_schema_is_not_migrated(one_trial_database: Path, edits: list[str], said: str) -> None:
    downgrade(one_trial_database)
    for edit in edits:
        plain_sql(one_trial_database, edit)
    assert f"{said}, unlike tsm2-tune's schema" in opening_refused(one_trial_database)
    assert plain_sql(one_trial_database, "PRAGMA user_version") == [(schema_versions.OLDEST,)]


def test_claims_of_an_older_schema_are_dropped(one_trial_database: Path) -> None:
    downgrade(one_trial_database)
    plain_sql(one_trial_database, "INSERT INTO claim VALUES ('GPU', 'p', 'c', 'b', 'owner', 1.0, 2)")
    with Store.open(one_trial_database, create=False):
        pass
    assert plain_sql(one_trial_database, "SELECT name FROM sqlite_master WHERE name = 'claim'") == []
    assert plain_sql(one_trial_database, "SELECT * FROM lease") == []
    plain_sql(one_trial_database, "CREATE TABLE claim (owner TEXT)")  # no older schema's
    assert "has 'claim', unlike" in opening_refused(one_trial_database)


@pytest.mark.parametrize(
    ("tampering", "sentence"),
    [
        ("DELETE FROM paragraph", "of the kernel's text is missing"),
        ("UPDATE source SET paragraphs = paragraphs || ' ' || paragraphs", "does not match its digest"),
        (
            f"UPDATE paragraph SET text = printf('%.*c', {MOST_KERNEL + 1}, 'x')",
            f"more than {MOST_KERNEL} characters",
        ),
        ("UPDATE paragraph SET text = zeroblob(2000000)", "holds a value of more than 1 MiB"),
    ],
)
def test_tampered_text_is_refused_in_a_sentence(tampering: str, sentence: str, one_trial_database: Path) -> None:
    plain_sql(one_trial_database, tampering)
    for command in ("source 1", "best"):
        assert sentence in refused(*command.split(), path=one_trial_database)


def many_times(path: Path, table: str) -> None:
    """The table's rows 300**3 times: its root leads to one page as often as it can, and that so to the next."""
    (root,) = plain_sql(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'")[0]
    ((size,),) = plain_sql(path, "PRAGMA page_size")
    content = bytearray(path.read_bytes())
    pages, own = len(content) // size, slice((root - 1) * size, root * size)

    def leading_to(page: int, times: int = 300) -> bytes:
        cells = b"".join(page.to_bytes(4, "big") + bytes([1 + place % 127]) for place in range(times))
        head = bytes([5, 0, 0]) + times.to_bytes(2, "big") + (size - len(cells)).to_bytes(2, "big") + bytes(1)
        pointers = b"".join((size - len(cells) + 5 * place).to_bytes(2, "big") for place in range(times))
        found: bytes = (head + page.to_bytes(4, "big") + pointers).ljust(size - len(cells), b"\0") + cells
        return found

    content += content[own] + leading_to(pages + 1) + leading_to(pages + 2)
    content[own] = leading_to(pages + 3)
    content[28:32] = (pages + 3).to_bytes(4, "big")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("table", "command", "said"),
    [("measurement", "best", "takes too long to read for its size"), ("trial", "show", "is a damaged database")],
)
def test_pages_that_stand_in_many_places(
    one_trial_database: Path, table: str, command: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_times(one_trial_database, table)
    monkeypatch.setattr(sqlite, "STEPS", 10**6)
    assert said in refused(command, path=one_trial_database)
