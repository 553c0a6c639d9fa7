"""Benchmarks compute replays of searches, means, the faster side, and drawn shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import redraw, thinned, unseen_tables
from benchmarks.claims import outcome
from benchmarks.gains import Calls, gains_of
from benchmarks.recorded_spaces import FILE, rows_in, space_of
from benchmarks.regret import WITHIN, fastest, replayed, strategies
from tests.fabricated_rows import measured as of_unseen
from tests.fabricated_rows import row


@pytest.mark.slow
def test_the_tables_are_of_the_spaces_as_they_are_now() -> None:
    """A rule that drops or keeps other configurations asks for the tables anew: python -m benchmarks.regret."""
    drawn = {row["problem"]: row["trials"] for row in json.loads(redraw.REGRET.read_text(encoding="utf-8"))["rows"]}
    assert drawn == {(of := space_of(row)).problem.text: of.trials for row in rows_in(FILE)}


# What docs/regret.md promises of the default strategy


# Three element types and two ops. The order of the model alone, or of first choices alone, does worse on them.
SPACES = ("8x8x10000000:f64:tn", "4096x8x4096:f32", "2000000x8x8:c64")
TENTH = 0.1
# With all that the package brings; of other shapes alone, as for a new shape; and with a database of one's own.
KNOWING = ("model", "model, other shapes", "model, own database alone")


@pytest.mark.slow
@pytest.mark.parametrize("text", SPACES)
def test_a_tenth_of_the_trials_finds_98_percent_of_the_speed(text: str) -> None:
    rows = {row["problem"]: row for row in rows_in(FILE)}
    of = space_of(rows[text])
    alike = [fastest(row) for row in rows.values()]
    known = [one for one in alike if one.problem != of.problem and one.problem.dtype_name == of.problem.dtype_name]
    made, trials = strategies(of, known), round(TENTH * of.trials)
    regrets = {name: replayed(made[name](0), of, most=trials).regret(of, trials) for name in KNOWING}
    assert {name: regret for name, regret in regrets.items() if not 0 <= regret <= WITHIN} == {}


# What tables are made of


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row(ours=490.0, lt=480.0), "behind"),
        (row(ours=490.0, lt=None), "ahead"),
        ({**row(ours=510.0, lt=None), "cublas_verified": False}, "ahead"),
        ({**row(ours=490.0, lt=480.0), "cublaslt_verified": False}, "ahead"),
    ],
)
def test_who_is_ahead_is_told_by_intervals_and_right_answers(found: dict[str, Any], expected: str) -> None:
    assert outcome(found) == expected


CALLS = Calls(ours_us=6.0, vendors_us=12.0, left_us=16.0)


def product(ours: float, vendors: float, **changes: Any) -> dict[str, Any]:
    plain = {"cublas_us": vendors, "cublaslt_us": None, "falls_back": False, "plan_us": None, "plan_verified": True}
    found: dict[str, Any] = row() | plain | {"ours_us": ours} | changes
    return found


def winner(ours: float, vendors: float, cublas: float | None = None, **changes: Any) -> dict[str, Any]:
    """A winner as a JSON export has it."""
    times = {"median_us": ours, "vendor_us": vendors, "cublas_us": vendors if cublas is None else cublas}
    return {"m": 20480, "n": 8, "k": 20480, "vendor_right": 1, "cublas_right": 1} | times | changes


@pytest.mark.parametrize(
    ("found", "gain"),
    [
        (product(100.0, 250.0), 2.5),
        (product(1.0, 2.0, cublas_verified=False), None),
        (product(100.0, 200.0, verified=False), None),
        (product(100.0, 5.0, plan_us=5.0, plan="a", falls_back=None, plan_verified=False), None),
        (winner(300.0, 200.0, 250.0), 0.8),
        (winner(300.0, 200.0, 250.0, cublas_right=0), 200.0 / 300.0),  # not left to a routine that is wrong
        (winner(100.0, 200.0, vendor_right=0), None),
    ],
)
def test_a_product_takes_the_longer_of_its_kernel_and_its_call(found: dict[str, Any], gain: float | None) -> None:
    of_kinds = gains_of([], [found], CALLS) if "falls_back" in found else gains_of([found], [], CALLS)
    assert [value for values in of_kinds.values() for value in values] == (
        [] if gain is None else [pytest.approx(gain)]
    )


def test_wrong_answers_are_no_times() -> None:
    changes = {"cublas_verified": False, "cublaslt_verified": False}, {"search_verified": False}, {"verified": False}
    found = [unseen_tables.summary([of_unseen(**one)]) for one in changes]
    assert [(one.x_vendor, one.x_search) for one in found] == [(None, 0.95), (1.2, None), (None, None)]
    assert unseen_tables.summary([of_unseen(plan_verified=False)], by_timing=True).x_search is None


def test_wrong_answers_of_the_vendor_are_told_apart() -> None:
    right, ours = of_unseen(), of_unseen(plan_verified=False)
    vendors = of_unseen(plan="the vendor: timed", plan_verified=False, fallback_verified=False)
    assert unseen_tables.wrong_results([right, ours]) == ["wrong results: another"]
    (line,) = unseen_tables.wrong_results([right, vendors])
    assert line.startswith("The vendor's results are wrong at 1 shapes: ")


def test_a_product_that_is_left_to_cublas_gains_nothing_and_is_no_slower() -> None:
    rows = [of_unseen(ours_us=500.0, cublas_us=400.0, falls_back=left) for left in (True, False)]
    lines = unseen_tables.as_called(rows).splitlines()
    assert [line.split(" | ")[2:] for line in lines[2:]] == 2 * [["2", "1", "0.89", "1 / 0", "1 / 0", "0.80 |"]]


@pytest.mark.slow
def test_hardly_any_product_is_slower_than_by_cublas_whole_pack_or_thinned(tmp_path: Path) -> None:
    results = redraw.UNSEEN_H200.parent
    draws = [results / "h200-unseen.json.xz", *sorted(results.glob("h200-unseen-[0-9]*.json.xz"))]
    for arguments in (["h100"], ["h200", *(word for path in draws for word in ("--unseen", path))]):
        output = tmp_path / f"{arguments[0]}.json"
        done = CliRunner().invoke(thinned.main, [*map(str, arguments), "--output", str(output)])
        assert done.exit_code == 0, done.output
        rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
        assert all(row["products"] > 250 and row["x_cublas"] > 1.1 for row in rows)
        assert all(row["slower_by_3_percent"] <= 0.01 for row in rows)
