"""`doctor` on the cache, the database's folder and a PostgreSQL server, to none of which it writes; its verdict."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.command import run
from tests.databases import database_of
from tests.fabricated import trial, tuning_run
from tests.servers import TestServer, asked, running
from tests.standing_in import Disk
from tsm2_tune.tuner.compile import cache as binaries
from tsm2_tune.tuner.doctor import examination, storage
from tsm2_tune.tuner.doctor.examination import DATABASE, PROBES, Examination, examine
from tsm2_tune.tuner.doctor.finding import Finding, Question, State, note, ok, problem

QUESTION = Question("cpu", "results.db")
TABLES = "ALL TABLES IN SCHEMA public TO other"
SEQUENCES = "ALL SEQUENCES IN SCHEMA public TO other"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a working folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_cache_that_others_can_write_is_a_problem(tmp_path: Path) -> None:
    with storage.cache_left_as_it_was():
        found = only(storage.cache(QUESTION))
    assert (found.state, (tmp_path / "cache").exists()) == (State.OK, False)
    folder = binaries.cache_folder()
    with storage.cache_left_as_it_was():
        assert only(storage.cache(QUESTION)).state is State.OK
    assert list(folder.iterdir()) == []
    folder.chmod(0o777)
    found = only(storage.cache(QUESTION))
    assert (found.state, "others can write" in found.text) == (State.PROBLEM, True)


@pytest.mark.parametrize("probe", ["cache", "database"])
@pytest.mark.parametrize("is_full", [False, True])
def test_full_disk_is_a_problem(probe: str, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path if is_full else tmp_path / "file"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with monkeypatch.context() as patch:
        if is_full:
            patch.setattr(os, "fsync", refuse)
        found = only(PROBES[probe].look(Question("cpu", str(folder / "results.db"))))
    assert (found.state, "No space left on device" in found.text) == (State.PROBLEM, is_full)


@pytest.mark.parametrize(
    ("name", "said", "remedy"),
    [
        ("/proc/x.db", "no file can be created in /proc", "name a file elsewhere with --db"),
        ("missing/x.db", "no folder {here}/missing", "make it, or name a file elsewhere with --db"),
        ("file/x.db", "{here}/file is not a folder", "name a file elsewhere with --db"),
    ],
)
def test_a_folder_that_takes_no_database_is_told_as_it_is(name: str, said: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = only(storage.database(Question("cpu", name)))
    assert (found.state, found.found, found.remedy) == (State.PROBLEM, said.format(here=tmp_path), remedy)


@pytest.mark.parametrize(("free_bytes", "state"), [(2**20, State.PROBLEM), (2**28, State.NOTE), (2**40, State.OK)])
def test_little_space_is_told(free_bytes: int, state: State, disk: Disk) -> None:
    disk(f_bavail=free_bytes, f_frsize=1)
    assert only(storage.cache(QUESTION)).state is state


def test_a_database_is_read_and_nothing_else_and_another_file_is_a_problem(path: Path, tmp_path: Path) -> None:
    assert only(storage.database(Question("cpu", str(path)))).found.startswith(f"{path}, not made yet")
    database_of(path)
    before = path.read_bytes()
    found = only(storage.database(Question("cpu", str(path))))
    assert (found.state, path.read_bytes()) == (State.OK, before)
    assert found.found.startswith(f"{path}, there")
    assert sorted(os.listdir(tmp_path)) == ["results.db"]
    path.write_text("text, and more of it than a header has" * 99)
    assert "file is not a database" in only(storage.database(Question("cpu", str(path)))).text
    assert only(storage.database(Question("cpu", str(path.parent)))).state is State.PROBLEM


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SECOND", "", "two concurrent runs can corrupt it"),  # the second process gets the lock
        ("network_of", lambda _: "nfs4", "(nfs4)"),
    ],
)
def test_a_file_system_whose_locks_may_not_hold_is_told(
    name: str, value: object, said: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, name, value)
    found = only(storage.database(Question("cpu", str(path))))
    assert (found.state, said in found.text.lower()) == (State.PROBLEM, True)


# A database of a PostgreSQL server


@pytest.fixture
def of_other(server: TestServer, address: str) -> str:
    """The address as a user has it who does not own the database, and has no right in it yet."""
    if not server.sql("SELECT 1 FROM pg_roles WHERE rolname = 'other'"):
        server.sql("CREATE ROLE other LOGIN")
    return server.url(address.partition("@/")[2].partition("?")[0], "other")


RIGHTS = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLES}; GRANT USAGE ON {SEQUENCES}"
WRITING = f"GRANT INSERT, UPDATE, DELETE ON {TABLES}; GRANT USAGE ON {SEQUENCES}"
ELSEWHERE = "or name another database with --db"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("granted", "lacking", "remedy"),
    [
        (f"GRANT SELECT ON {TABLES}", "INSERT, UPDATE, DELETE in all of its tables, nor use the sequences", WRITING),
        (f"{RIGHTS}; REVOKE SELECT ON best FROM other", "SELECT in all", f"GRANT SELECT ON {TABLES}"),
        (f"{RIGHTS}; REVOKE SELECT ON lease FROM other", "SELECT in all", f"GRANT SELECT ON {TABLES}"),
        (f"{RIGHTS}; REVOKE INSERT ON sample FROM other", "INSERT in all", f"GRANT INSERT ON {TABLES}"),
        (f"{RIGHTS}; REVOKE UPDATE ON receipt FROM other", "UPDATE in all", f"GRANT UPDATE ON {TABLES}"),
        (f"{RIGHTS}; REVOKE DELETE ON lease FROM other", "DELETE in all", f"GRANT DELETE ON {TABLES}"),
        (f"{RIGHTS}; REVOKE USAGE ON SEQUENCE trial_id_seq FROM other", "use the sequences", f"USAGE ON {SEQUENCES}"),
        (f"{RIGHTS}; REVOKE INSERT, UPDATE, DELETE ON tsm2_tune, best FROM other", "", ""),
    ],
)
def test_missing_rights_are_named(address: str, of_other: str, granted: str, lacking: str, remedy: str) -> None:
    database_of(address, trial(600))
    asked(address, granted)
    before = asked(address, "SELECT xmin FROM pg_class ORDER BY oid")
    found = only(storage.database(Question("cpu", of_other)))
    assert asked(address, "SELECT xmin FROM pg_class ORDER BY oid") == before
    assert found.state is (State.PROBLEM if lacking else State.OK)
    assert f"{of_other}, {'where this user may not ' if lacking else 'there'}{lacking}" in found.found
    assert remedy in found.remedy
    if granted == f"GRANT SELECT ON {TABLES}":
        assert found.remedy == f"have its owner run {WRITING}; {ELSEWHERE}"
        assert run("best", "--db", of_other).stdout == run("best", "--db", address).stdout
        assert run("forget", "1", "--db", of_other).exit_code == 2
        asked(address, WRITING)
        database_of(of_other, trial(700), run=tuning_run("NVIDIA H100"))


@pytest.mark.slow
def test_who_may_make_no_tables_has_a_problem(address: str, of_other: str) -> None:
    found = only(storage.database(Question("cpu", of_other)))
    assert found.state is State.PROBLEM
    assert "where this user may not create tables in its schema public" in found.found
    assert found.remedy.startswith("have its owner run GRANT CREATE ON SCHEMA public TO other, ")
    asked(address, "GRANT CREATE ON SCHEMA public TO other")
    found = only(storage.database(Question("cpu", of_other)))
    assert (found.state, found.found) == (State.OK, f"{of_other}, not made yet")
    assert asked(address, "SELECT * FROM pg_tables WHERE schemaname = 'public'") == []


@pytest.mark.slow
def test_an_older_schema_needs_the_owner(address: str, of_other: str) -> None:
    database_of(address, trial())
    asked(address, f"GRANT ALL ON {TABLES}; GRANT ALL ON {SEQUENCES}; GRANT CREATE ON SCHEMA public TO other")
    asked(address, "UPDATE tsm2_tune SET schema_version = 24")
    found = only(storage.database(Question("cpu", of_other)))
    assert found.state is State.PROBLEM
    assert "has schema 24, and only the owner of its tables can migrate it to " in found.found
    assert only(storage.database(Question("cpu", address))).state is State.OK
    assert asked(address, "SELECT schema_version FROM tsm2_tune") == [(24,)]


@pytest.mark.slow
def test_a_standby_is_a_problem(session_folder: Path) -> None:
    with running(session_folder / "postgresql") as own:
        address = own.new()
        database_of(address, trial())
        own.stop()
        (own.folder / "data" / "standby.signal").touch()
        own.start()
        found = only(storage.database(Question("cpu", address)))
        assert (found.state, found.found) == (State.PROBLEM, f"{address} is read-only, because it is a standby")


@pytest.mark.parametrize(
    ("probe", "device", "state"),
    [
        ("C++ compiler", "0", State.NOTE), ("C++ compiler", "cpu", State.PROBLEM), ("cache", "cpu", State.PROBLEM),
        ("CUDA toolkit", "0", State.PROBLEM), ("CUDA toolkit", "cpu", State.NOTE),
    ],
)  # fmt: skip
def test_a_problem_counts_where_the_device_needs_the_thing(probe: str, device: str, state: State) -> None:
    assert examination._weighed(problem(probe, "gone"), PROBES[probe], device).state is state


@pytest.mark.parametrize(
    ("findings", "status", "last"),
    [
        ((ok("one", "here"), note("two", "slow", means="it waits", remedy="hurry")), 0, "tuning can run on GPU 0"),
        ((problem("two", "gone"), problem(DATABASE, "a text")), 1, "tuning cannot run on GPU 0"),
        (
            (ok("one", "here"), problem(DATABASE, "a text")),
            1,
            "tuning can run on GPU 0, but not with results.db: name another database with --db",
        ),
    ],
)
def test_the_command_prints_a_line_each(
    findings: tuple[Finding, ...], status: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "examine", lambda spec, database: Examination(spec or "0", findings))
    found = run("doctor")
    assert found.exit_code == status
    assert found.output.splitlines() == [*(one.text for one in findings), last]
    told = json.loads(run("doctor", "--json", "--device", "0").output)
    assert (told["device"], told["can_tune"], len(told["findings"])) == ("0", status == 0, 2)
    if findings[1].state is State.NOTE:
        assert findings[1].text == "note     two: slow. It waits. Remedy: hurry"


def test_no_probe_uses_the_gpu_while_its_processes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, beside = set[str](), dict[str, set[str]]()

    def looked(name: str, question: Question) -> list[Finding]:
        now.add(name)
        time.sleep(0.05)
        beside[name] = set(now)
        now.remove(name)
        return [ok(name, "", gpus=[{"name": "Fake GPU", "bus_id": "0000:01:00.0", "compute_capability": [9, 0]}])]

    monkeypatch.setattr(examination, "_examined", looked)
    found = examine("0", "results.db")
    assert beside["nvidia-smi"] == {"nvidia-smi"}
    assert [one.name for one in found.findings] == list(PROBES)
