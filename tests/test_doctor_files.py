"""Tests of `doctor` on the cache and the database's folder, in which it leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.databases import database_of
from tests.standing_in import Disk
from tsm2_tune.tuner.compile import cache as binaries
from tsm2_tune.tuner.doctor import storage
from tsm2_tune.tuner.doctor.examination import PROBES
from tsm2_tune.tuner.doctor.finding import Finding, Question, State

QUESTION = Question("cpu", "results.db")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a working folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_nothing_is_left_of_a_cache_that_was_not_there(tmp_path: Path) -> None:
    with storage.cache_left_as_it_was():
        found = only(storage.cache(QUESTION))
    assert (found.state, (tmp_path / "cache").exists()) == (State.OK, False)
    folder = binaries.cache_folder()
    assert only(storage.cache(QUESTION)).state is State.OK
    assert list(folder.iterdir()) == []


def test_a_cache_that_others_can_write_is_a_problem() -> None:
    binaries.cache_folder().chmod(0o777)
    found = only(storage.cache(QUESTION))
    assert found.state is State.PROBLEM
    assert "others can write" in found.text


@pytest.mark.parametrize(("probe", "names"), [("cache", "cache folder"), ("database", "database")])
def test_a_folder_that_cannot_be_made_is_a_problem(
    probe: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    question = Question("cpu", str(tmp_path / "file" / "results.db"))
    assert only(PROBES[probe].look(question)).state is State.PROBLEM


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


@pytest.mark.parametrize("probe", ["cache", "database"])
def test_a_full_disk_is_a_problem(probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(28, "No space left on device")

    def refuse(_: int) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        found = only(PROBES[probe].look(Question("cpu", str(tmp_path / "results.db"))))
    assert found.state is State.PROBLEM
    assert "No space left on device" in found.text


@pytest.mark.parametrize(("free_bytes", "state"), [(2**20, State.PROBLEM), (2**28, State.NOTE), (2**40, State.OK)])
def test_little_space_is_told(free_bytes: int, state: State, disk: Disk) -> None:
    disk(f_bavail=free_bytes, f_frsize=1)
    assert only(storage.cache(QUESTION)).state is state


def test_a_database_is_read_and_nothing_else(path: Path, tmp_path: Path) -> None:
    database_of(path)
    before = path.read_bytes()
    found = only(storage.database(Question("cpu", str(path))))
    assert (found.state, path.read_bytes()) == (State.OK, before)
    assert sorted(os.listdir(tmp_path)) == ["results.db"]


def test_a_file_that_is_no_database_is_a_problem(path: Path) -> None:
    path.write_text("text, and more of it than a header has" * 99)
    assert "file is not a database" in only(storage.database(Question("cpu", str(path)))).text
    assert only(storage.database(Question("cpu", str(path.parent)))).state is State.PROBLEM


def test_locks_that_do_not_hold_are_a_problem(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SECOND", "")  # the second process gets the lock
    found = only(storage.database(Question("cpu", str(path))))
    assert found.state is State.PROBLEM
    assert "two concurrent runs can corrupt it" in found.text.lower()


def test_a_networks_file_system_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "network_of", lambda _: "nfs4")
    assert "(nfs4)" in only(storage.database(Question("cpu", str(path)))).text
