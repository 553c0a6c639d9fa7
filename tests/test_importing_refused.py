"""An import of what cannot be read, or where no copy can be made, is refused in a sentence."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run
from tests.fabricated import plain_sql
from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.tuner.compile.cache import cache_folder
from tsm2_tune.tuner.results.merge import files

pytestmark = pytest.mark.usefixtures("session_cache")


def test_what_is_no_database_is_refused(two_databases: tuple[Path, Path], tmp_path: Path) -> None:
    ours, _ = two_databases
    pipe, empty, other = tmp_path / "pipe", tmp_path / "empty", tmp_path / "other"
    os.mkfifo(pipe)
    empty.touch()
    other.write_text("SELECT 1")
    cut, newer, others = tmp_path / "cut", tmp_path / "newer", tmp_path / "others"
    cut.write_bytes(b"SQLite format 3\0" + bytes(500))
    newer.write_text('{"tsm2_tune": {"version": 99}, "cache": {}}')
    others.write_text('{"cache": {}}')
    plain_sql(tmp_path / "foreign.db", "CREATE TABLE t (x)")
    for name, sentence in {
        str(pipe): "is not a regular file",
        str(tmp_path): "is not a regular file",
        str(tmp_path / "missing"): "No such file or directory",
        str(empty): "holds no results yet",
        str(other): "it is neither a database nor a file of trials, nor a T4 file or a cache of Kernel Tuner",
        str(tmp_path / "foreign.db"): "is a database of another program",
        str(cut): "is not a SQLite database",
        str(newer): "its version is 99, and not 2",
        str(others): "tsm2-tune did not write it",
        "pretuned:tpu": "unknown 'pretuned:tpu': the package has pretuned:h100, pretuned:h200",
        "H200": "no file H200: did you mean pretuned:h200, the pretuned kernels?",
        "": "the name of the file is empty: name a database or a file of trials",
        '["tsm2-tune"]\n': "the argument is the content of a file of trials, not its name: write it to a file",
    }.items():
        said = run("import", name, "--db", str(ours))
        assert (said.exit_code, said.stdout) == (2, "")
        assert sentence in said.stderr
        assert "tsm2-tune-" not in said.stderr.replace(str(tmp_path), "")
    with pytest.raises((InputError, StoreError)):
        tsm2_tune.import_trials("x\0y", ours)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("verdict_correct = 0", "trial 1 is ok, but has no right result or time"),
        ("outcome = 'wrong-result'", "trial 1 has a right result and is wrong"),
        ("basis = '=1+1'", "trial 1 has a basis that is not a digest"),
        ("cache = 'warm'", "trial 1 has its time in another state of the L2"),
    ],
)
def test_a_trial_that_contradicts_itself_replaces_none(
    two_databases: tuple[Path, Path], change: str, sentence: str
) -> None:
    ours, theirs = two_databases
    before = [row.config for row in tsm2_tune.best(ours)]
    plain_sql(theirs, f"UPDATE trial SET {change} WHERE id = 1")
    said = run("import", str(theirs), "--db", str(ours))
    assert (said.exit_code, said.stdout) == (2, "")
    assert sentence in said.stderr
    assert [row.config for row in tsm2_tune.best(ours)] == before


def test_a_full_disk_is_named_by_its_folder(
    two_databases: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the copy, or the folder of the database."""
    ours, theirs = two_databases
    connect = sqlite3.connect
    sentences = {
        "/working/": f"cannot copy {theirs} to read it: the disk of {cache_folder()} is full: ",
        str(ours): f"{ours} cannot grow, the disk of {ours.parent} is full: ",
    }
    for place, sentence in sentences.items():

        def small(name: Any, *arguments: Any, place: str = place, **named: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(name, *arguments, **named)
            if place in str(name):
                connection.execute("PRAGMA max_page_count = 1")  # no less than there are: none more
            return connection

        monkeypatch.setattr(sqlite3, "connect", small)
        said = run("import", str(theirs), "--db", str(ours))
        assert (said.exit_code, said.stdout) == (2, "")
        assert said.stderr == f"Error: {sentence}free some space there, then run this again\n"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StoreError])
def test_where_no_copy_can_be_made_its_folder_is_named(
    error: OSError | type[StoreError], two_databases: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = two_databases

    def none(*arguments: Any) -> None:
        raise error if isinstance(error, OSError) else error(f"{arguments[1]} cannot be opened: why")

    monkeypatch.setattr(files, "workplace" if isinstance(error, OSError) else "_copied", none)
    said = run("import", str(theirs), "--db", str(ours))
    assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert said.stderr.startswith(f"Error: cannot copy {theirs} to read it (")
    assert f"make {cache_folder()} writable, with space left, or set XDG_CACHE_HOME" in said.stderr
