"""A contest on the host, where NumPy stands for the libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.cells import Cell
from benchmarks.contest import CONTESTANTS, Contest
from benchmarks.winner import Winner
from tests.conftest import ONCE
from tests.fabricated_rows import RIGHT
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families.inner import InnerFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.operands import Operand, Operands

CEILINGS = Ceilings(4000.0, 4000.0, (("f32", 6e4), ("f64", 3e4)))
PRODUCT = Cell("T", "column", Problem(5, 3, 40, "f64", "tn"))
SQUARE = Cell("G", "column", Problem(5, 5, 40, "f64", "tx"))
CONFIG = InnerFmaConfig(128, 8, 8, 4, 4, step=1, stages=2, splits=1, min_blocks=1)


def matrix(address: int, rows: int, columns: int, leading_dimension: int) -> Any:
    """The column-major matrix of f64 that lies there."""
    flat = np.ctypeslib.as_array((ctypes.c_double * (leading_dimension * (columns - 1) + rows)).from_address(address))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (8, 8 * leading_dimension))


def in_memory(operand: Operand) -> Any:
    return matrix(operand.address, operand.rows, operand.columns, operand.filling.leading_dimension)


class FakeCublas:
    """X^T Y, and the lower half of X^T X, without the last `missing` products."""

    version = 1

    def __init__(self, missing: int) -> None:
        self._missing = missing

    def launch(self, operands: Operands) -> Callable[[], None]:
        def start() -> None:
            kept = operands.problem.k - self._missing
            in_memory(operands.c)[:] = in_memory(operands.a)[:kept].T @ in_memory(operands.b)[:kept]

        return start

    def started(self, name: str, *arguments: Any) -> Callable[[], None]:
        uplo, operation, n, k, _, x, ldx, _, c, ldc = arguments
        assert (name, uplo, operation) == ("cublasDsyrk_v2", 0, 1)

        def start() -> None:
            first = matrix(x.value, k, n, ldx)[: k - self._missing]
            lower = np.tri(n) == 1
            matrix(c.value, n, n, ldc)[lower] = (first.T @ first)[lower]

        return start


class FakeLt:
    """An algorithm that computes nothing, and nothing for a matrix times itself."""

    version = 1

    def plan(self, operands: Operands) -> Any:
        if operands.problem.is_gram:
            raise CublasError("no such product")
        return SimpleNamespace(free=lambda: None, heuristic=lambda: (1,), launch=lambda _: lambda: None)


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
        found = contest.row(cell, Winner(CONFIG, RIGHT, kept=1, outcomes={"ok": 1}))
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
