"""Answers of doctor, as they are written down and drawn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import doctor_answers
from benchmarks.doctor_answers import BROKEN, HOME, WHOLE


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_answers_name_no_folder_of_the_machine() -> None:
    found = doctor_answers.answers(str(shutil.which("nvcc")))
    assert found.keys() == {WHOLE, BROKEN}
    for one in found.values():
        assert one["exit_status"] in (0, 1)
        assert any(line.startswith("ok       Python: ") for line in one["lines"])
        assert any(f"{HOME}/.cache/tsm2-tune" in line for line in one["lines"])
    assert any(f"{HOME}/cuda/bin/nvcc" in line for line in found[BROKEN]["lines"])


def test_long_lines_are_folded_below_what_begins_them(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    lines = ["ok       Python: " + "word " * 40, "tuning can run"]
    answers = {WHOLE: {"lines": lines}, BROKEN: {"lines": [lines[0], "tuning cannot run"]}}
    file.write_text(json.dumps({"answers": answers}))
    drawn = doctor_answers.drawn(file, file)
    assert drawn["doctor-broken"].splitlines() == ["```", "$ tsm2-tune doctor", "tuning cannot run", "```"]
    block = drawn["doctor-host"].splitlines()
    assert block[:2] == ["```", "$ tsm2-tune doctor"]
    assert block[-2:] == ["tuning can run", "```"]
    assert all(len(line) <= 118 for line in block)
    assert block[2].startswith("ok       Python: word ")
    assert all(line.startswith(" " * 9) for line in block[3:-2])
    assert sum(line.count("word") for line in block) == 40
