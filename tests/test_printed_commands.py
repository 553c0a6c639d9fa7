"""Snapshots: the whole output of commands is compared with transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.printed_commands import FOLDER, replayed

TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_commands_print_what_their_transcripts_say(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    transcript = path.read_text(encoding="utf-8")
    assert replayed(transcript) == transcript, "python -m tests.printed_commands"
