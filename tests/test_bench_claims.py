"""What the README claims of the bench: who is ahead, by how much, and which answers count."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cells import Cell
from benchmarks.claims import behind, counts, lead_of_rival, outcome, ranges
from benchmarks.headline import headline, means
from tests.fabricated_rows import BIG, row
from tsm2_tune.generator.problem import Problem

WRONG = {"cublas_verified": False}


def interval(found: dict[str, Any], who: str, low: float, high: float) -> dict[str, Any]:
    return {**found, f"{who}_low_us": low, f"{who}_high_us": high}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row(ours=400.0, lt=480.0), "ahead"),
        (row(ours=490.0, lt=480.0), "behind"),
        (interval(row(ours=479.0, lt=480.0), "ours", 470.0, 480.5), "even"),
        (interval(row(ours=481.0, lt=480.0), "cublaslt", 479.0, 482.0), "even"),
        (row(ours=490.0, lt=None), "ahead"),
        ({**row(ours=510.0, lt=None), **WRONG}, "ahead"),
        ({**row(ours=490.0, lt=480.0), "cublaslt_verified": False}, "ahead"),
    ],
)
def test_who_is_ahead_is_told_by_intervals_and_right_answers(found: dict[str, Any], expected: str) -> None:
    assert outcome(found) == expected


def test_cells_are_counted_by_type_without_gram_matrices() -> None:
    square = row(Cell("G", "row", Problem(16, 16, 10_000_000, "f32", "nxt")), ours=900.0)
    double = row(Cell("R", "column", Problem(20480, 8, 20480, "f64")), ours=600.0)
    lines = counts([row(), row(ours=484.0), double, square]).splitlines()
    assert lines[2:] == [
        "| f32 | 2 | 1 | 0 | 1 | 0 | 1 % |",
        "| f64 | 1 | 0 | 0 | 1 | 1 | 20 % |",
        "| all | 3 | 1 | 0 | 2 | 1 | 20 % |",
    ]
    assert lead_of_rival(double) == pytest.approx(0.2)


def test_cells_far_behind_are_named_farthest_first() -> None:
    lines = behind([row(ours=500.0), row(ours=600.0), row(ours=484.0), row()]).splitlines()
    assert [line.split(" | ")[4:8] for line in lines[2:]] == [
        ["600", "500", "480", "20 %"],
        ["500", "500", "480", "4 %"],
    ]


def test_ranges_are_of_large_column_major_cells() -> None:
    wide = row(Cell("R", "column", Problem(20480, 32, 20480, "f32")), ours=250.0)
    assert ranges([row(), {**row(ours=250.0), "percent_of_floor": 60.0}, wide]).splitlines()[2:4] == [
        "| f32 | up to 16 | 1.20 to 1.92; 60 to 95 % | – | – |",
        "| f32 | 32 and 64 | 1.92; 152 % | – | – |",
    ]


def test_a_wrong_answer_is_said_and_counts_nowhere() -> None:
    found = {**row(BIG, ours=600.0), **WRONG}
    assert " | 600 | 500 (wrong) | **480** | 0.80 | " in headline([found])
    (mean,) = means([found, row()])
    assert mean["cublas"] == pytest.approx(500 / 400)
