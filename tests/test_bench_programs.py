"""Files of programs: which ones are read, and the products and calls that they report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.program_tables import read_programs, table
from benchmarks.recorded_worth import compared
from tsm2_tune.errors import InputError


def written(path: Path, programs: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"programs": programs}))
    return path


def program(before: list[Any], after: list[Any]) -> dict[str, Any]:
    return {"before_ms": before, "after_ms": after}


def test_the_table_has_each_program_by_itself_and_by_both_packs(tmp_path: Path) -> None:
    tuned = read_programs(written(tmp_path / "tuned.json", {"one": program([4.0, 4.2], [2.0, 2.2])}))
    other = {"one": program([3.8, 4.0], [5.0, 5.0]), "two": program([9.0], [3.0])}
    lines = table(tuned, read_programs(written(tmp_path / "other.json", other)), ("A", "B")).splitlines()
    assert lines[0].startswith("| program | A by itself | tuned for it |")
    assert lines[2:] == [
        "| one | 4.10 | 2.10 | 1.95 | 3.90 | 5.00 | 0.78 |",
        "| two | - | - | - | 9.00 | 3.00 | 3.00 |",
    ]


@pytest.mark.parametrize("wrong", [[], [0], ["x"], [None], [-1.0], 3, {"before_ms": [1.0]}])
def test_what_is_no_file_of_programs_is_refused(tmp_path: Path, wrong: Any) -> None:
    found = wrong if isinstance(wrong, dict) else program(wrong, wrong)
    with pytest.raises(InputError, match="is no file of programs"):
        read_programs(written(tmp_path / "programs.json", {"one": found}))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"programs": 3}', '{"programs": {}}'])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "programs.json").write_text(content)
    with pytest.raises(InputError, match="is no file of programs"):
        read_programs(tmp_path / "programs.json")


def test_recorded_and_profiled_products_meet_by_shape() -> None:
    """Both orders of a product's matrices match; a product that only one side saw counts for nothing."""
    ours = [
        {"shape": (8, 1000, 16), "calls": 3, "us": 30.0},
        {"shape": (1000, 8, 16), "calls": 1, "us": 10.0},
        {"shape": (5, 1, 7), "calls": 2, "us": 60.0},
        {"shape": (9, 9, 9), "calls": 1, "us": 1e6},
    ]
    theirs = [
        {"shapes": [[1000, 16], [16, 8]], "calls": 4, "us": 60.0},
        {"shapes": [[1], [5, 7], [7, 1], [], []], "calls": 2, "us": 40.0},  # addmm has an addend before
    ]
    first, second = compared(ours, theirs)
    assert (first["shape"], first["calls"], first["us"], first["share"]) == ("1000x8x16", 4, 40.0, 0.4)
    assert (second["shape"], second["profiler_us"], second["profiler_share"]) == ("5x1x7", 40.0, 0.4)
