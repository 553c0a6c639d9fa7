"""Tests of the README's claims about the bench: who is ahead, by how much, and which answers count."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cells import Cell
from benchmarks.claims import lead_of_rival, lost, outcome, summary
from benchmarks.headline import headline, means
from tests.fabricated_rows import BIG, SMALL, row
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


def test_a_line_sums_up_a_regime_and_an_element_type() -> None:
    square = row(Cell("G", "row", Problem(16, 16, 10_000_000, "f32", "nxt")), ours=900.0)
    halves = [row(Cell("R", "column", Problem(20480, 8, 20480, name)), ours=600.0) for name in ("bf16", "f16")]
    wrong = {**row(ours=500.0, lt=None), **WRONG}
    lines = summary([*halves, row(SMALL), row(), row(ours=484.0), row(ours=240.0), wrong, square]).splitlines()
    assert lines[2:] == [
        "| R | bf16, f16 | 2 | 0 | 0 | 2 | 2 | 0.80 | 0.80 | 63 |",
        "| R | f32 | 4 | 3 | 0 | 1 | 0 | 1.20 | 0.99 | 87 |",
        "| L small | f64 | 1 | 1 | 0 | 0 | 0 | 1.20 | 1.20 | 95 |",
        "| G | f32 | 1 | 0 | 0 | 1 | 1 | 0.53 | 0.53 | 42 |",
    ]
    assert lead_of_rival(halves[0]) == pytest.approx(0.2)


def test_cells_that_are_lost_are_named() -> None:
    narrow = row(Cell("R", "row", Problem(20480, 2, 20480, "f32", "ttt")), ours=600.0)
    single = row(Cell("T", "column", Problem(8, 8, 10_000_000, "f64", "tn")), ours=500.0)
    assert lost([row(ours=500.0), narrow, row(ours=484.0), row(), single]).splitlines() == [
        "- R, f32: 2 cells, n = 2, 8; at most 20 %",
        "- T, f64: 1 cell, n = 8; at most 4 %",
    ]


def test_a_wrong_answer_is_said_and_counts_nowhere() -> None:
    found = {**row(BIG, ours=600.0), **WRONG}
    assert " | 600 | 500 (wrong) | **480** | 0.80 | " in headline([found])
    (mean,) = means([found, row()])
    assert mean["cublas"] == pytest.approx(500 / 400)
