"""Where files may be written, as it is looked at before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command import run
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.written_files import refuse_unwritable, write


def test_a_pipe_without_a_name_of_its_own_is_written_into() -> None:
    """As /dev/stdout is where another program reads what is printed."""
    reads, writes = os.pipe()
    try:
        refuse_unwritable(f"/dev/fd/{writes}")
        write("kernels", f"/dev/fd/{writes}")
        assert os.read(reads, 100) == b"kernels"
        with pytest.raises(InputError, match="no ordinary file"):
            refuse_unwritable(f"/dev/fd/{writes}", is_ordinary=True)
    finally:
        os.close(reads)
        os.close(writes)


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, database = tmp_path / "gone", tmp_path / "results.db"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    said = run("export", "--db", str(database), "--format", "csv", "--output", "out.csv")
    assert said.exit_code == 2
    assert "cannot write out.csv: its folder is not there" in said.stderr
    monkeypatch.undo()


@pytest.mark.parametrize(("text", "is_taken"), [(" 5 ", True), ("+5", True), ("1_0", False), ("\uff15", False)])
def test_spaces_beside_a_number_are_nothing(text: str, is_taken: bool, tmp_path: Path) -> None:
    database = str(tmp_path / "missing" / "results.db")
    said = run("--device", "cpu", "--shapes", "8x2x8", "--max-trials", text, "--db", database)
    assert said.exit_code == 2
    assert ("is not a valid integer: expected digits from 0 to 9" in said.stderr) is not is_taken
