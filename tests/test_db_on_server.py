"""tsm2-tune db on a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import run, said
from tests.databases import best, database_of, facts
from tests.fabricated import downgrade, trial, tuning_run
from tests.servers import TestServer, asked
from tests.tampering import good_database
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.merge.problem_rows import Writer
from tsm2_tune.tuner.results.merge.union import Part
from tsm2_tune.tuner.results.storage import schema_versions
from tsm2_tune.tuner.results.storage.addresses import place_of, shown_name

pytestmark = pytest.mark.usefixtures("session_cache")


def test_files_are_merged_into_a_server_and_back(address: str, tmp_path: Path) -> None:
    one, other, back = (str(tmp_path / f"{name}.db") for name in ("one", "other", "back"))
    good_database(Path(one))
    database_of(other, trial(600), run=tuning_run("NVIDIA H100"))
    lines = said("db", "merge", one, other, "--db", address).splitlines()
    assert [line.partition(": ")[2][:8] for line in lines] == ["added 12", "added 1 "]
    assert "nothing new" in said("db", "merge", one, "--db", address)
    said("db", "merge", address, "--db", back)
    assert facts(Path(back)) == facts(place_of(address))  # type: ignore[arg-type]
    assert best(Path(back)) == best(address)  # type: ignore[arg-type]
    assert said("db", "check", "--db", address) == said("db", "check", "--db", back)


@pytest.mark.usefixtures("impatient")
def test_an_import_goes_on_where_the_server_was_restarted(
    server: TestServer, address: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_database(path)
    write, places = Writer.write, list[Problem]()

    def restarted(writer: Writer, device: str, problem: Problem, part: Part, *, is_new: bool) -> None:
        places.append(problem)
        if len(places) == 2:
            server.restart()
        write(writer, device, problem, part, is_new=is_new)

    monkeypatch.setattr(Writer, "write", restarted)
    assert "added 12 trials" in said("db", "merge", str(path), "--db", address)
    assert places[1] == places[2], "what was lost is written again"
    said("db", "merge", str(path), "--db", str(tmp_path / "other.db"))
    assert facts(tmp_path / "other.db") == facts(place_of(address))  # type: ignore[arg-type]


def test_what_nothing_needs_is_removed(address: str, path: Path) -> None:
    good_database(path)
    said("db", "merge", str(path), "--db", address)
    asked(address, "INSERT INTO problem (op, dtype, m, n, k, flops, least_bytes) VALUES ('nn', 'f32', 9, 9, 9, 1, 1)")
    room = "PostgreSQL reuses the space of removed rows by itself"
    name = shown_name(address)
    assert said("db", "vacuum", "--db", address) == f"{name}: {room}; rows removed: 1 of problem\n"
    assert said("db", "vacuum", "--db", address) == f"{name}: {room}; rows removed: none\n"
    assert facts(place_of(address)) == facts(path)  # type: ignore[arg-type]


def test_a_schema_of_now_needs_no_migration_and_a_server_no_copy(address: str, path: Path) -> None:
    good_database(path)
    said("db", "merge", str(path), "--db", address)
    now = f"schema {schema_versions.version()}, which is current: nothing to do"
    assert said("db", "migrate", "--db", address) == f"{shown_name(address)}: {now}\n"
    found = run("db", "migrate", "--keep", "--db", address)
    assert (found.exit_code, "--keep copies a file" in found.stderr) == (2, True)


def test_the_previous_schema_of_a_server_is_migrated(address: str, path: Path) -> None:
    good_database(path)
    said("db", "merge", str(path), "--db", address)
    asked(address, "DROP VIEW best")
    asked(address, "CREATE VIEW best AS SELECT 1")
    for index in ("newest_of_family", "newest_stamp"):
        asked(address, f"DROP INDEX {index}")
    asked(address, "ALTER TABLE trial DROP COLUMN search_ended")
    asked(address, "ALTER TABLE source DROP COLUMN batched")
    asked(address, "ALTER TABLE problem DROP COLUMN batch")  # and the key that it is in
    asked(address, "ALTER TABLE problem ADD UNIQUE (op, dtype, m, n, k)")
    text = (
        "SELECT string_agg(text, E'\\n\\n' ORDER BY place) FROM paragraph"
        " JOIN string_to_table(paragraphs, ' ') WITH ORDINALITY AS one (name, place) ON key = name"
    )
    asked(address, f"UPDATE source SET paragraphs = ({text})")
    asked(address, "ALTER TABLE source RENAME COLUMN paragraphs TO text")
    asked(address, "DROP TABLE paragraph")
    asked(address, "DROP TABLE lease")
    asked(address, "CREATE TABLE claim (owner text)")
    asked(address, "UPDATE tsm2_tune SET schema_version = 23")
    found = run("db", "migrate", "--db", address)
    assert (found.exit_code, "has schema 23, older than 24, the oldest that" in found.stderr) == (2, True)
    asked(address, "UPDATE tsm2_tune SET schema_version = 24")
    before = f"{shown_name(address)}: schema 24 before, {schema_versions.version()} now"
    assert said("db", "migrate", "--db", address).startswith(before)
    indices = "SELECT indexdef FROM pg_indexes WHERE indexname = 'newest_of_family'"
    collation = "SELECT collation_name FROM information_schema.columns WHERE column_name = 'search_ended'"
    assert "(superseded = 0)" in asked(address, indices)[0][0]
    assert asked(address, f"{collation} AND table_name = 'trial'") == [("C",)]
    assert said("db", "check", "--db", address) == said("db", "check", "--db", str(path))
    downgrade(path)  # which is migrated, too
    assert facts(place_of(address)) == facts(path)  # type: ignore[arg-type]
