"""Tests of what benchmarks compute from the rows of their files: means, quantiles, the faster side, and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import redraw, thinned, unseen_tables
from benchmarks.cells import (
    LAYOUTS,
    REGIMES,
    SHAPE_SETS,
    SMALL_EXTENT,
    Cell,
    cell_key,
    cells,
    shapes_of,
)
from benchmarks.claims import outcome
from benchmarks.gains import Calls, gains_of
from benchmarks.result_file import read
from benchmarks.unseen_file import read_unseen
from benchmarks.unseen_shapes import OWNERS, UNSEEN_REGIMES, Ranges, drawn
from tests.fabricated_rows import measured as of_unseen
from tests.fabricated_rows import row
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import DTYPES
from tsm2_tune.tuner.verify.operands import needed_bytes

H200 = PROFILES["h200"]


# Which products are measured


def places(found: Iterable[Cell]) -> set[tuple[Any, ...]]:
    return {cell_key(cell.record) for cell in found}


def test_cells_are_of_their_regimes_and_of_nested_sets() -> None:
    measured = {cell_key(row) for row in read(redraw.RESULT)["rows"]}
    quick, head, full = (cells(REGIMES, LAYOUTS, tuple(DTYPES), name) for name in SHAPE_SETS)
    assert measured <= places(full)
    assert places(quick) <= places(full)
    assert places(head) <= places(full)
    assert all(len(places(found)) == len(found) for found in (quick, head, full))
    assert {(k, n, m) for m, n, k in shapes_of("L", "full")} == set(shapes_of("T", "full"))
    for cell in full:
        assert cell.small == (cell.regime != "R" and max(cell.problem.m, cell.problem.k) <= SMALL_EXTENT)


@pytest.mark.parametrize("name", DTYPES)
def test_every_cell_of_the_headline_has_a_family_in_every_type(name: str) -> None:
    every = cells(REGIMES, LAYOUTS, (name,), "headline")
    assert all(any(family.supports(cell.problem) for family in FAMILIES.values()) for cell in every)
    ops = {"f32": {"tx", "nxt"}, "f64": {"tx", "nxt"}, "c64": {"cx", "jxt"}, "c128": {"cx", "jxt"}}  # BLAS has these
    assert {cell.problem.op for cell in every if cell.regime == "G"} == ops.get(name, set())


DRAW: dict[str, Any] = {"each": 14, "ranges": Ranges(), "seed": 0, "limits": H200}
KINDS = (UNSEEN_REGIMES, LAYOUTS, ("f32", "f64", "c64"))


def test_unseen_shapes_are_drawn_log_uniformly_and_fit() -> None:
    found = drawn(*KINDS, **DRAW)
    assert len(places(found)) == len(found) == 3 * 2 * 3 * 14
    assert all(OWNERS * needed_bytes(cell.problem) < H200.memory_bytes for cell in found)
    many = drawn(("L",), ("column",), ("f32",), **DRAW | {"each": 800})
    places_of_m = [math.log(cell.problem.m / 20_000) / math.log(1000) for cell in many]
    assert all(150 <= sum(at / 4 <= place < (at + 1) / 4 for place in places_of_m) <= 250 for at in range(4))
    assert places(drawn(("T",), ("row",), ("f64",), **DRAW)) <= places(found)  # other arguments make no difference
    stored = read_unseen(redraw.UNSEEN)
    again = drawn(*KINDS, **DRAW | {"seed": stored["draw"]["seed"], "limits": PROFILES["h100"]})
    assert {cell_key(row) for row in stored["rows"]} <= places(again)
    with pytest.raises(InputError, match=r"the ranges have no 2 shapes of R in f32 that fit h200"):
        drawn(("R",), ("column",), ("f32",), **DRAW | {"each": 2, "ranges": Ranges(large=(9, 9), small=(2, 2))})


# Beside cuBLAS


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


# A program's gain, with the cost of the call


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


# Shapes that were not tuned


def test_wrong_answers_are_no_times() -> None:
    changes = {"cublas_verified": False, "cublaslt_verified": False}, {"search_verified": False}, {"verified": False}
    found = [unseen_tables.summary([of_unseen(**one)]) for one in changes]
    assert [(one.x_vendor, one.x_search) for one in found] == [(None, 0.95), (1.2, None), (None, None)]
    assert unseen_tables.summary([of_unseen(plan_verified=False)], by_timing=True).x_search is None


def test_hardly_any_product_is_slower_than_by_cublas_whole_pack_or_thinned(tmp_path: Path) -> None:
    for arguments in (["h100"], ["h200", "--unseen", redraw.UNSEEN_H200, "--unseen", redraw.UNSEEN_H200_LATER]):
        output = tmp_path / f"{arguments[0]}.json"
        done = CliRunner().invoke(thinned.main, [*map(str, arguments), "--output", str(output)])
        assert done.exit_code == 0, done.output
        rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
        assert all(row["products"] > 250 and row["x_cublas"] > 1.1 for row in rows)
        assert all(row["slower_by_3_percent"] <= (0.016 if "%" in row["pack"] else 0.01) for row in rows)
