"""Cells and rows of a result file that nothing measured."""

from __future__ import annotations

from typing import Any, cast

import pytest

from benchmarks.cells import Cell
from benchmarks.contest import row_of
from benchmarks.turns import Opponent
from benchmarks.winner import Winner
from tests.fabricated import configuration, measurement
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Cache, Verdict

FACTS = {
    "device": "NVIDIA H200",
    "driver": "580",
    "toolkit": "nvcc 13.0",
    "flags": "-arch=sm_90",
    "cublas": 130100,
    "cublaslt": 130100,
    "tsm2_tune": "0.1.0",
    "sources": "5f2d",
    "command": "python -m benchmarks.versus_cublas",
    "date": "2026-11-21",
    "read_gbytes_per_s": 4620.0,
    "copy_gbytes_per_s": 4170.0,
    "gflops": {"f32": 65000.0, "f64": 65000.0},
    "complete": False,
}
RIGHT = Verdict(True, 0.1, "every element right")
BIG = Cell("R", "column", Problem(20480, 8, 20480, "f32"))
SMALL = Cell("L", "row", Problem(10_000, 8, 8, "f64", "ttt"))


def row(cell: Cell = BIG, *, ours: float = 400.0, lt: float | None = 480.0, verdict: Verdict = RIGHT) -> Any:
    """A measured cell: cuBLAS takes 500 us, the floor is 380 us. With the L2 dirty all take 10 us more."""
    launch = pytest.fail
    winner = Winner(configuration(), RIGHT, kept=100, outcomes={"ok": 20})
    found = {"ours": measurement(ours), "cublas": measurement(500.0)}
    opponents = {"cublas": Opponent(launch, right=True, timed=1)}
    if lt is not None:
        found["cublaslt"] = measurement(lt)
        opponents["cublaslt"] = Opponent(launch, right=True, timed=8)
    dirty = {name: measurement(clean.median_us + 10) for name, clean in found.items()}
    return row_of(cell, winner, {Cache.CLEAN: found, Cache.DIRTY: dirty}, opponents, verdict, 380.0)


OF_AN_UNSEEN_RUN = {
    "pack": "ab12",
    "pack_facts": {"winners": 4, "kernels": 3},
    "draw": {"seed": 0, "each": 1},
    "search_seconds": 5.0,
    "fallback_library": "torch",
}


def measured(**changes: Any) -> dict[str, Any]:
    """A row of unseen: ours 400 us, cuBLAS 500, cuBLASLt 480, the search's winner 380, expected 500."""
    of_unseen = {
        "search_us": 380.0,
        "search_verified": True,
        "search_configuration": "other",
        "plan_us": 384.0,
        "plan_verified": True,
        "plan": "another",
        "plan_seconds": 0.03,
        "fallback_us": None,
        "fallback_verified": None,
        "falls_back": False,
        "expected_us": 500.0,
        "choice": "nearest",
        "basis": "predicted",
    }
    return cast(dict[str, Any], row() | of_unseen | changes)
