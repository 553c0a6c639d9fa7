"""tsm2-tune db merge, vacuum and migrate: what each does, and what it says of it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import completed, refused, run, said
from tests.databases import C128, C256, C512, LATE, best, database_of, dump, facts
from tests.fabricated import PROBLEM, downgrade, plain_sql, trial
from tests.tampering import good_database, with_waste
from tsm2_tune.tuner.results.maintenance import migration
from tsm2_tune.tuner.results.storage import schema_versions, sqlite
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, Verdict

pytestmark = pytest.mark.usefixtures("session_cache")
NEVER: dict[str, Any] = {"measurement": None, "full_verdict": None}


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Databases of two GPUs with trials of all kinds; of one configuration two of them contradict each other."""
    paths = [tmp_path / f"{name}.db" for name in "abc"]
    good_database(paths[0])
    wrong = {"outcome": Outcome.WRONG_RESULT, "verdict": Verdict(False, 9.0, "C[0, 0]"), **NEVER}
    late = {"outcome": Outcome.TIMED_OUT, "verdict": None, "resources": None, **NEVER}
    for path, changes in ((paths[1], wrong), (paths[2], late)):
        database_of(path, trial(450, C512), replace(trial(500, C256), **changes), run=LATE)
    for day, path in enumerate(paths, 1):  # a second is the least that tells which one ended last
        plain_sql(path, f"UPDATE trial SET ended_at = '2026-05-0{day}T00:00:' || (10 + id) || '+00:00'")
    return paths


@pytest.mark.slow
def test_several_are_merged_into_one_in_any_order(three: list[Path], tmp_path: Path) -> None:
    merged = list[Any]()
    for order in ((0, 1, 2), (2, 1, 0)):
        into = tmp_path / f"{len(merged)}.db"
        found = completed("db", "merge", *(str(three[at]) for at in order), "--db", str(into))
        assert [line.split(": ")[0] for line in found.stdout.splitlines()] == [str(three[at]) for at in order]
        where = f"conflict: {C256.text} for {PROBLEM.text} on NVIDIA H200: "
        assert [line for line in found.stderr.splitlines() if "timed-out" in line and "wrong" in line] == [
            f"{where}{' here and '.join(two)} there: wrong-result is kept"
            for two in [("wrong-result", "timed-out")[:: 1 if order[0] == 0 else -1]]
        ]
        before = dump(into)
        for source in three:
            assert "nothing new" in run("db", "merge", str(source), "--db", str(into)).stdout
        assert dump(into) == before
        merged.append((facts(into), best(into)))
    assert merged[0] == merged[1]
    ((outcomes,),) = [plain_sql(tmp_path / "0.db", "SELECT group_concat(outcome) FROM (SELECT DISTINCT outcome FROM"
                                                   " trial ORDER BY outcome)")]  # fmt: skip
    assert outcomes == ("compile-failed,ok,timed-out,wrong-result",)
    assert run("db", "check", "--db", str(tmp_path / "0.db")).exit_code == 0


REFUSED: dict[str, Callable[[Path], object]] = {  # what is said, and how it comes to that
    "No such file or directory": Path.unlink,
    "it is neither a database nor a file of trials": lambda path: path.write_text("no database"),
    "has schema 9999, newer than": lambda path: plain_sql(path, "PRAGMA user_version = 9999"),
    "has 'besides', unlike tsm2-tune's": lambda path: plain_sql(path, "CREATE TABLE besides (x)"),
    "outcome = 'splendid' is not a value of this column": lambda path: plain_sql(
        path, "UPDATE trial SET outcome = 'splendid'"
    ),
    "is not as this tsm2-tune writes it": lambda path: path.write_text(as_text(path)[:-100], encoding="utf-8"),
}


def as_text(path: Path) -> str:
    text = path.with_suffix(".text")
    tsm2_tune.export(path, format="trials", output=text)
    content = text.read_text(encoding="utf-8")
    text.unlink()
    return content


def test_where_one_is_refused_for_what_it_is_nothing_is_added(three: list[Path], tmp_path: Path) -> None:
    into, bad, text = tmp_path / "all.db", tmp_path / "bad", tmp_path / "trials.txt"
    tsm2_tune.export(three[0], format="trials", output=text)
    downgrade(three[1])
    for sentence, make in REFUSED.items():
        good_database(bad)
        make(bad)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        found = refused("db", "merge", *map(str, (three[0], text, three[1], bad)), path=into)
        assert sentence in found
        assert str(bad) in found
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        for path in tmp_path.glob("bad*"):
            path.unlink()
    added = run("db", "merge", *map(str, (three[0], text, three[1])), "--db", str(into))
    assert [line.partition(": ")[2][:8] for line in added.stdout.splitlines()] == ["added 12", "nothing ", "added 2 "]


def test_what_nothing_needs_is_removed_and_its_room_given_back(path: Path) -> None:
    with_waste(path)
    good, before = facts(path), path.stat().st_size
    text = said("db", "vacuum", "--db", str(path))
    after = path.stat().st_size
    rows = "1 of source, 1 of problem, 1 of run, 2 of paragraph, 1 of lease"
    assert text == f"{path}: {before} bytes before, {after} after; rows removed: {rows}\n"
    assert after < before - 400_000
    assert facts(path) == good
    assert run("db", "check", "--db", str(path)).stdout.count("\n") == 2
    with Store.open(path, create=False) as store, store.leases("NVIDIA H200") as leases:
        assert leases.take(PROBLEM)  # of a run that lives
        again = said("db", "vacuum", "--db", str(path))
        assert plain_sql(path, "SELECT owner FROM lease") == [(leases.owner,)]
    assert again == f"{path}: {after} bytes before, {after} after; rows removed: none\n"
    assert plain_sql(path, "PRAGMA user_version") == [(schema_versions.version(),)]


@pytest.mark.slow
def test_a_run_that_stores_meanwhile_loses_nothing(path: Path) -> None:
    good_database(path)
    ended, stored = threading.Event(), list[int]()

    def store_on() -> None:
        with Store.open(path, create=False) as store:
            for number in range(1, 1000):
                stored.append(store.add_trial(LATE, trial(500 + number, C128, problem=replace(PROBLEM, k=number))))
                if ended.is_set():
                    return

    with ThreadPoolExecutor(1) as pool:
        storing, rounds = pool.submit(store_on), 0
        while rounds < 4 or (len(stored) < 2 and not storing.done()):
            said("db", "vacuum", "--db", str(path))
            rounds += 1
        ended.set()
        storing.result()
    assert len(stored) > 1
    numbers = {row[0] for row in plain_sql(path, "SELECT id FROM trial")}
    assert numbers == {*range(1, 13), *stored}
    assert run("db", "check", "--db", str(path)).exit_code == 0


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
def test_a_file_that_takes_too_long_keeps_its_gaps(path: Path) -> None:
    with_waste(path)
    plain_sql(path, "INSERT INTO sample WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE"
                    " i < 500000) SELECT 1, i, 1.0 FROM n")  # fmt: skip
    size = path.stat().st_size
    found = run("db", "vacuum", "--db", str(path))
    assert (found.exit_code, path.stat().st_size) == (0, size)
    assert (
        "the file was not compacted, since other runs would wait too long: use --alone when no other run uses it"
        in found.stderr
    )
    assert plain_sql(path, "PRAGMA integrity_check") == [("ok",)]
    found = run("db", "vacuum", "--alone", "--db", str(path))
    assert (found.exit_code, found.stderr) == (0, "")
    assert path.stat().st_size < size


# Migrating


def test_an_older_schema_is_brought_to_this_one_with_a_copy_kept(path: Path) -> None:
    good_database(path)
    good, winners = facts(path), best(path)
    downgrade(path)
    before = dump(path)
    lines = said("db", "migrate", "--keep", "--db", str(path)).splitlines()
    kept = path.with_name("results.db.schema-24")
    assert lines == [
        f"{path}: schema 24 before, {schema_versions.version()} now; {kept} is a copy of the old database",
        *(f"{old} to {old + 1}: {step.__doc__}" for old, step in enumerate(schema_versions.MIGRATIONS, 24)),
    ]
    assert lines[1] == "24 to 25: A trial says why its search ended. Older trials do not."
    assert dump(kept) == before
    assert set(path.parent.iterdir()) == {path, kept}
    assert (facts(path), best(path)) == (good, winners)
    again = f"{path}: schema {schema_versions.version()}, which is current: nothing to do\n"
    assert said("db", "migrate", "--keep", "--db", str(path)) == again


def test_a_copy_that_is_there_is_kept_and_no_other_file_is_overwritten(path: Path) -> None:
    good_database(path)
    downgrade(path)
    kept = path.with_name("results.db.schema-24")
    shutil.copy(path, kept)  # as of a migration that was killed
    kept.with_name(f"{kept.name}.part").write_text("half")
    content = kept.read_bytes()
    assert "is a copy of the old database" in said("db", "migrate", "--keep", "--db", str(path))
    assert kept.read_bytes() == content
    plain_sql(path, "DELETE FROM lease")
    downgrade(path)
    plain_sql(path, "UPDATE trial SET detail = 'another'")
    assert "already exists, and is not a copy of" in refused("db", "migrate", "--keep", path=path)
    assert (kept.read_bytes(), plain_sql(path, "PRAGMA user_version")) == (content, [(24,)])
    assert set(path.parent.iterdir()) == {path, kept}


def around_copies(monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[[], None]], None]) -> None:
    """Act in place of each copy of a database, which `act` is handed to make."""
    copy = sqlite.copy
    monkeypatch.setattr(sqlite, "copy", lambda place, into: act(lambda: copy(place, into)))


@pytest.mark.slow
def test_two_that_keep_a_copy_at_once_keep_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good_database(path)
    downgrade(path)
    before, others = dump(path), list[Future[migration.Migrated]]()
    with ThreadPoolExecutor() as pool:

        def slowly(copy: Callable[[], None]) -> None:
            copy()
            if not others:
                others.append(pool.submit(migration.migrate, path, keep=True))
                wait(others, timeout=0.5)

        around_copies(monkeypatch, slowly)
        found = migration.migrate(path, keep=True)
        assert (found.before, others[0].result().before) == (24, schema_versions.version())
    kept = path.with_name("results.db.schema-24")
    assert found.kept == kept
    assert dump(kept) == before
    assert set(path.parent.iterdir()) == {path, kept}


def test_no_copy_is_kept_of_what_another_program_has_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good_database(path)
    downgrade(path)

    def late(copy: Callable[[], None]) -> None:
        with Database.open(path, create=False):
            copy()

    around_copies(monkeypatch, late)
    assert "no copy of the old database was kept" in refused("db", "migrate", "--keep", path=path)
    assert set(path.parent.iterdir()) == {path}


@pytest.mark.slow
def test_what_is_quarantined_in_any_is_so_in_all(tmp_path: Path) -> None:
    paths, merged = [tmp_path / f"{name}.db" for name in "ab"], list[Any]()
    for at, path in enumerate(paths):
        good_database(path)
        plain_sql(path, f"UPDATE quarantine SET times = {3 - at}, last_at = '2026-01-0{1 + at}T00:00:00+00:00',"
                        f" detail = 'of {path.name}'")  # fmt: skip
    plain_sql(paths[0], "DELETE FROM quarantine WHERE outcome = 'timed-out'")
    plain_sql(paths[1], "DELETE FROM quarantine WHERE outcome = 'crashed' AND device_name <> 'NVIDIA H200'")
    for order in (paths, paths[::-1]):
        into = tmp_path / f"{len(merged)}.db"
        for path in order:
            assert "in quarantine" in run("db", "merge", str(path), "--db", str(into)).stdout
        rows = plain_sql(into, "SELECT * FROM quarantine ORDER BY device_name, digest, tools")
        assert "in quarantine" not in run("db", "merge", *map(str, paths), "--db", str(into)).stdout
        assert plain_sql(into, "SELECT * FROM quarantine ORDER BY device_name, digest, tools") == rows
        merged.append(rows)
        both = "SELECT times, detail FROM quarantine WHERE outcome = 'crashed' AND device_name = 'NVIDIA H200'"
        assert plain_sql(into, both) == [(3, "of b.db")]
    assert merged[0] == merged[1]
