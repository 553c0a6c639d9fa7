"""Snapshots: the whole output of commands is compared with transcripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.printed_commands import FOLDER, replayed

REFUSALS = FOLDER / "refusals.txt"
TRANSCRIPTS = [
    pytest.param(path, id=path.stem, marks=() if path == REFUSALS else pytest.mark.slow)
    for path in sorted(FOLDER.glob("*.txt"))
]


@pytest.mark.slow
@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("path", TRANSCRIPTS)
def test_commands_print_their_transcripts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    transcript = path.read_text(encoding="utf-8")
    assert replayed(transcript) == transcript, "python -m tests.printed_commands"


def test_bad_input_gets_one_sentence() -> None:
    answers = re.split(r"\n?^\$ tsm2-tune .*\n", REFUSALS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(answers) > 150
    assert [one for one in answers if not re.fullmatch(r"Error: .{1,2000}\n\[status 2\]\n", one)] == []
