"""A contest on the host, where NumPy stands for the libraries."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.cells import Cell
from benchmarks.contest import CONTESTANTS, Contest
from benchmarks.winner import Winner
from tests.benchmarked_vendor import CEILINGS, PRODUCT, TSMT, FakeCublas, FakeLt
from tests.conftest import ONCE
from tests.fabricated_rows import RIGHT
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

SQUARE = Cell("G", "column", Problem(5, 5, 40, "f64", "tx"))


@pytest.fixture
def contest(
    monkeypatch: pytest.MonkeyPatch, quick: Toolchain, support_path: str
) -> Callable[[Cell, int], dict[str, Any]]:
    """The row of a cell where cuBLAS leaves as many products out."""
    device = HostDevice(support_path=support_path)
    monkeypatch.setattr(device, "ceilings", lambda: CEILINGS)
    monkeypatch.setattr("benchmarks.contest.CublasLt", lambda *_: FakeLt())

    def row(cell: Cell, missing: int) -> dict[str, Any]:
        monkeypatch.setattr("benchmarks.contest.Cublas", lambda: FakeCublas(missing))
        target = cast(Target, SimpleNamespace(toolchain=quick, caches=lambda own, others: tuple(others)))
        phases = PhaseTimer()
        contest = Contest(cast(CudaDevice, device), target, support_path, ONCE, phases)
        found = contest.row(cell, Winner(TSMT, RIGHT, kept=1, outcomes={"ok": 1}))
        assert {"contest: operands", "contest: checks", "contest: turns"} <= set(phases.taken())
        return found

    return row


@pytest.mark.parametrize(("cell", "others"), [(PRODUCT, ("cublas", "cublaslt")), (SQUARE, ("cublas",))])
def test_all_compute_the_same_product(
    contest: Callable[[Cell, int], dict[str, Any]], cell: Cell, others: tuple[str, ...]
) -> None:
    row = contest(cell, 0)
    assert (row["verified"], row["verdict"]) == (True, RIGHT.detail)
    assert row["cublas_verified"] is True
    assert row["cublaslt_verified"] is (False if "cublaslt" in others else None)  # it computes nothing
    for name in CONTESTANTS:
        for state in ("", "_dirty"):
            assert (row[f"{name}{state}_us"] is not None) is (name == "ours" or name in others)
    assert contest(cell, 1)["cublas_verified"] is False
