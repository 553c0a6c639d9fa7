"""Tests of the vendor's times beside a winner in tables and exports."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.databases import C128, beside_vendor
from tests.fabricated import exported, imported, trial, vendor_measurement
from tests.simulated import RUN
from tsm2_tune.console.tables import console, winners_table
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store

GEMM, LT = vendor_measurement(480), vendor_measurement(470, "cublasLtMatmul #3")


def table(rows: tuple[BestRow, ...], width: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The winners on a terminal so wide."""
    shown = console()
    shown.width, shown._force_terminal = width, True
    winners_table(rows, shown)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_says_how_many_times_as_fast(store: Store, capsys: pytest.CaptureFixture[str], width: int) -> None:
    beside_vendor(store, GEMM)
    other = Problem(20480, 8, 20480, "f32")
    store.add_trial(RUN, trial(400, C128, problem=other))
    shown = table(store.best(), width, capsys)
    for text in (" x ", "0.96", "500.0", "400.0", "geometric mean 0.96 x cuBLAS: 0 faster, 1 slower"):
        assert text in shown
    assert all(len(line) <= max(width, 60) for line in shown.splitlines())
    assert "-" in shown.replace("+-", "").replace("column-major", "")


def test_a_wrong_answer_is_marked(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    row = beside_vendor(store, vendor_measurement(480, right=False))
    assert "480.0 (wrong)" in table((row,), 80, capsys)
    for form in ("markdown", "latex"):
        assert "480.00 (wrong)" in exported(form, ((row,), {}))


def test_without_a_vendor_its_columns_are_left_out(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    row = beside_vendor(store)
    assert "cuBLAS" not in table((row,), 200, capsys)
    assert "| - | - | - |" in exported("markdown", ((row,), {}))
    assert json.loads(exported("json", ((row,), {})))["best"][0]["x_cublas"] is None


def test_every_export_says_how_many_times_as_fast(store: Store, tmp_path: Path) -> None:
    row = beside_vendor(store, GEMM, LT, ours=1000)
    found = ((row,), store.sources([row]))
    (line,) = csv.DictReader(io.StringIO(exported("csv", found)))
    (best,) = json.loads(exported("json", found))["best"]
    expected = {"vendor_us": 470, "vendor_right": 1, "vendor_routine": "cublasLtMatmul #3", "vendor_version": 130100}
    for name, value in expected.items():
        assert best[name] == value
        assert line[name] in (str(value), f"{value}.0")
    assert best["x_cublas"] == float(line["x_cublas"]) == 0.47  # it loses, and that is shown
    for form in ("markdown", "latex"):
        text = exported(form, found)
        assert "470.00" in text
        assert "0.47" in text
        assert "3 of 13.1.0" in text


def test_a_module_knows_the_routine_that_it_can_leave_a_product_to(store: Store, tmp_path: Path) -> None:
    row = beside_vendor(store, GEMM, LT, ours=1000)
    (winner,) = imported(exported("module", ((row,), store.sources([row]))), tmp_path).WINNERS
    told = winner.vendor_us, winner.vendor_right, winner.vendor_routine, winner.vendor_version, winner.x_cublas
    assert told == (480, 1, "cublasSgemm", 130100, 0.48)


@pytest.mark.parametrize("routine", ["cublasSsyrk", "cublasSgemv"])
def test_a_module_compares_with_no_routine_that_libraries_do_not_start(store: Store, routine: str) -> None:
    row = beside_vendor(store, vendor_measurement(480, routine))
    assert (row.vendor_us, row.vendor_routine, row.cublas_us, row.cublas_routine) == (480, routine, None, None)


def test_a_module_knows_the_routines_own_version(store: Store, tmp_path: Path) -> None:
    row = beside_vendor(
        store, vendor_measurement(480, version=130100), vendor_measurement(470, "cublasLtMatmul #3", version=130200)
    )
    (winner,) = imported(exported("module", ((row,), store.sources([row]))), tmp_path).WINNERS
    assert (row.vendor_version, winner.vendor_version) == (130200, 130100)


def test_a_module_knows_no_vendor_where_only_cublaslt_was_measured(store: Store, tmp_path: Path) -> None:
    row = beside_vendor(store, LT)
    (winner,) = imported(exported("module", ((row,), store.sources([row]))), tmp_path).WINNERS
    assert (row.vendor_us, winner.vendor_us, winner.x_cublas) == (470, None, None)
