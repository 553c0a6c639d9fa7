"""The bench of matrices that are large both ways: its cells, and its tables."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import general
from benchmarks.cells import Cell
from benchmarks.general import PAPER_OPS, PAPER_SIZES, problems, tried_first
from benchmarks.general_tables import GLOBAL_SIZE, tables
from benchmarks.result_file import ResultFile
from benchmarks.winner import Winner
from tests.conftest import compiled
from tests.staged_kernels import SPLIT_DMMA
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import FMA_DTYPES, Problem
from tsm2_tune.generator.render import support_source
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import find_target


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, False])
def test_every_cell_has_first_choices_once(quick: bool) -> None:
    cells = list(problems(quick=quick))
    assert len(set(cells)) == len(cells)
    assert all(tried_first(*cell, PROFILES["h200"]) for cell in cells)


def test_the_global_configuration_is_known_first() -> None:
    first = [problem for _, problem in problems(quick=False)][: len(FMA_DTYPES)]
    assert [problem.dtype_name for problem in first] == list(FMA_DTYPES)
    assert {problem.m for problem in first} == {GLOBAL_SIZE}


def test_the_papers_sizes_are_measured_in_every_order() -> None:
    found = {
        (problem.dtype_name, problem.m, problem.op) for table, problem in problems(quick=False) if table == "paper"
    }
    assert found == {(dtype, size, op) for dtype, size in PAPER_SIZES.items() for op in PAPER_OPS}


class FakeContest:
    """Libraries that take twice as long as ours."""

    def row(self, cell: Cell, winner: Winner) -> dict[str, Any]:
        times = {"ours_us": 1.0, "cublas_us": 2.0, "cublaslt_us": 2.0}
        return {**cell.record, **times, "configuration": winner.config.text, "verified": True}


@pytest.mark.host
def test_the_global_configuration_is_timed_beside_the_first_choices(
    tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = compiled(support_source(), "", toolchain).path
    device, target = HostDevice(seed=1, support_path=support), find_target("cpu")
    known, other = SPLIT_DMMA["c128"], replace(SPLIT_DMMA["c128"], splits=1)
    shapes = [("sizes", Problem(70, 90, 20, "c128")), ("short k", Problem(70, 90, 9, "c128"))]
    monkeypatch.setattr(general, "problems", lambda *, quick: iter(shapes))
    monkeypatch.setattr(general, "tried_first", lambda table, problem, limits: (known if problem.k == 20 else other,))
    result = ResultFile(tmp_path / "general.json", {"variants": []})
    stopwatch = general.Stopwatch(cast(Any, device), target, support)
    measured = partial(general.measure_cells, stopwatch, cast(Any, FakeContest()), result, target.limits, quick=False)
    assert measured(end=math.inf)
    assert [set(row["choices_us"]) for row in result.rows] == [{known.text}, {known.text, other.text}]
    assert {row["global"] for row in result.rows} == {known.text}
    assert not measured(end=0.0)
    assert len(result.rows) == 2
    device.close()


def row(table: str, size: int, k: int, ours: float, cublas: float, choices: dict[str, float]) -> dict[str, Any]:
    return {
        "table": table, "dtype": "f64", "op": "nn", "m": size, "n": size, "k": k,
        "ours_us": ours, "cublas_us": cublas, "cublaslt_us": None,
        "configuration": "staged_dmma:stages=1", "choices_us": choices, "global": "staged_dmma:stages=2",
    }  # fmt: skip


def test_tables_say_what_was_measured() -> None:
    rows = [
        row("paper", 1000, 1000, 20.0, 40.0, {}),
        row("sizes", 1000, 1000, 40.0, 20.0, {"staged_dmma:stages=1": 40.0, "staged_dmma:stages=2": 44.0}),
        row("short k", 1000, 32, 10.0, 20.0, {"staged_dmma:stages=2": 10.0}),
        row("stencil", 1000, 1000, 40.0, 20.0, {"gemm:block=1": 50.0, "gemm:block=2": 40.0}),
    ]
    facts = {"device": "D", "driver": "1", "toolkit": "T", "cublas": 2, "date": "today", "command": "it"}
    rates = {"read_gbytes_per_s": 1.0, "copy_gbytes_per_s": 1.0, "gflops": {"f32": 1.0, "f64": 1.0}}
    variants = [{"dtype": "f32", "op": "nt", "size": 1000, "kept": 9, "times_us": {"a": 20.0, "b": 40.0, "c": 200.0}}]
    found = tables({**facts, **rates, "variants": variants, "rows": rows})
    lines = {name: part.splitlines()[-1] for name, part in found.items()}
    assert (
        lines["general-paper"] == "| 1000 | f64 | nn | **20.0** | 40.0 | – | 100.0 | 200 % | `staged_dmma:stages=1` |"
    )
    assert (
        lines["general-stencil"] == "| 1000 | f64 | nn | 40.0 | **20.0** | – | 50.0 | 50 % | `staged_dmma:stages=1` |"
    )
    assert found["general-forms"].splitlines()[-2:] == [
        "| 1000 | f64 | nn | `gemm:block=2` | 40.0 |",
        "| 1000 | f64 | nn | `gemm:block=1` | 50.0 |",
    ]
    assert lines["general-sizes"] == "| 1000 | – | 50.0 (50 %, –) | – | – |"
    assert found["general-global"].splitlines()[-2:] == [
        "| 1000 x 1000 x 32 | – | the same | – | – |",
        "| 1000 x 1000 x 1000 | – | `stages=1`, 10 % | – | – |",
    ]
    assert lines["general-variants"] == "| 1000 | SGEMM | nt | 9 | 3 | 10.0 | 50.0 | 100.0 | `a` |"
    assert "general-variants" not in tables({**facts, **rates, "variants": [], "rows": rows})
