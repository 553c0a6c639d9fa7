"""The bench of matrix times vector: what it tries, a row of it on the host, its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from benchmarks.contest import Contest
from benchmarks.gemv import (
    LARGE,
    MOST_ELEMENTS,
    SHAPES,
    Selection,
    candidates,
    contest_row,
    drawn,
    fastest,
    line_of,
    main,
    of_read,
)
from benchmarks.winner import Winner
from tests.benchmarked_vendor import CEILINGS, addressed_operands, in_memory
from tests.conftest import ONCE
from tests.fabricated_rows import FACTS, RIGHT
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, GemvConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.vendor.blas import CONJUGATE_TRANSPOSE, NO_TRANSPOSE, TRANSPOSE, gemv_of
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.operands import Operands

H200 = PROFILES["h200"]
BOTH, ROWS = GemvConfig(128, 8, 4, 2, 2, 3), GemvConfig(128, 1, 4, 2, 2, 1)


@pytest.mark.parametrize(
    ("op", "dtype", "operation", "stored", "apart"),
    [
        ("nn", "f32", NO_TRANSPOSE, (50, 30), (1, 1)),
        ("tn", "f64", TRANSPOSE, (30, 50), (1, 1)),
        ("ttt", "f32", TRANSPOSE, (30, 50), (4, 4)),
        ("cnt", "c64", CONJUGATE_TRANSPOSE, (30, 50), (1, 4)),
        ("nt", "c128", NO_TRANSPOSE, (50, 30), (4, 1)),
    ],
)
def test_blas_is_told_the_same_product(
    op: str, dtype: str, operation: int, stored: tuple[int, int], apart: tuple[int, int]
) -> None:
    gemv = gemv_of(addressed_operands(Problem(50, 1, 30, dtype, op), padding=3))
    assert (gemv.operation, (gemv.rows, gemv.columns), (gemv.increment_b, gemv.increment_c)) == (
        operation,
        stored,
        apart,
    )


@pytest.mark.parametrize("text", ["50x2x30:f32", "50x1x30:bf16", "50x1x30:c64:jn", "50x1x30:c64:nc"])
def test_blas_has_no_other_product_with_a_vector(text: str) -> None:
    with pytest.raises(CublasError, match="no product"):
        gemv_of(addressed_operands(Problem.parse(text), padding=0))


def test_shapes_are_a_grid_and_the_largest() -> None:
    assert all(m * k <= MOST_ELEMENTS for m, k in SHAPES["grid"])
    assert all(4 * m * k > 10**9 for m, k in LARGE)
    assert set(SHAPES["all"]) == {*SHAPES["grid"], *LARGE}


def test_the_grid_is_of_the_first_type() -> None:
    cells = Selection(("f64", "f32"), ("column", "row"), "all", 1).cells
    assert len(cells) == len(set(cells)) == 2 * (len(SHAPES["all"]) + len(LARGE))
    assert {(problem.m, problem.k) for _, problem in cells if problem.dtype_name == "f32"} == set(LARGE)


@pytest.mark.parametrize("op", ["nn", "tn"])
def test_what_is_hopeless_is_left_out(op: str) -> None:
    floor_us = 280.0
    found = candidates(Problem(32, 1, 10**7, "f32", op), H200, 2, floor_us)
    assert set(found) == {"several threads a row", "both"}
    found = candidates(Problem(20480, 1, 20480, "f32", op), H200, 2, floor_us)
    assert set(found) == set(DECOMPOSITIONS)
    assert all(len(every) == 2 for every in found.values())


class FakeCublas:
    """A x without the last `missing` products."""

    version = 1

    def __init__(self, missing: int) -> None:
        self._missing = missing

    def gemv_launch(self, operands: Operands) -> Callable[[], None]:
        def start() -> None:
            kept = operands.problem.k - self._missing
            in_memory(operands.c)[:] = in_memory(operands.a)[:, :kept] @ in_memory(operands.b)[:kept]

        return start


@pytest.mark.host
@pytest.mark.parametrize("missing", [0, 1])
def test_a_row_has_every_decomposition_and_cublas(
    monkeypatch: pytest.MonkeyPatch, quick: Toolchain, support_path: str, missing: int
) -> None:
    device = cast(CudaDevice, HostDevice(support_path=support_path))
    monkeypatch.setattr(device, "ceilings", lambda: CEILINGS)
    monkeypatch.setattr("benchmarks.contest.CublasLt", lambda *_: None)
    monkeypatch.setattr("benchmarks.contest.Cublas", lambda: FakeCublas(missing))
    contest = Contest(device, cast(Target, SimpleNamespace(toolchain=quick)), support_path, ONCE, PhaseTimer())
    problem = Problem(70, 1, 40, "f64")
    winners = [Winner(config, RIGHT, kept=1, outcomes={"ok": 1}) for config in (ROWS, BOTH)]
    row = contest_row(contest, device, "column", problem, winners)
    assert list(row["decompositions"]) == ["several rows a thread", "both"]
    for config, one in zip((ROWS, BOTH), row["decompositions"].values(), strict=True):
        assert (one["configuration"], one["verified"]) == (config.text, True)
        assert one["percent_of_read"] == of_read(problem, one["ours_us"], CEILINGS.read_gbytes_per_s)
    assert row["cublas_verified"] is (missing == 0)
    assert row["cublas_us"] > 0


def row(m: int, k: int, *, layout: str = "column", one: float = 900.0, both: float = 400.0) -> dict[str, Any]:
    times = {"one thread a row": one, "both": both}
    return {
        "layout": layout,
        "dtype": "f32",
        "op": "nn",
        "m": m,
        "k": k,
        "decompositions": {
            name: {"ours_us": us, "percent_of_read": 37000 / us, "configuration": f"gemv-{name}", "verified": True}
            for name, us in times.items()
        },
        "cublas_us": 500.0,
        "cublas_percent_of_read": 74.0,
        "cublas_verified": True,
    }


def test_the_tables_name_the_fastest_decomposition() -> None:
    rows = [row(100, 1000), row(1000, 100, one=370.0), row(20480, 20480), row(100, 100, layout="row")]
    assert [fastest(one) for one in rows] == ["both", "one thread a row", "both", "both"]
    parts = drawn({**FACTS, "rows": rows})
    column, by_rows = parts["gemv-grid"].split("f32, row-major:")
    assert "| 100 |  | both 92 (74) |" in column
    assert "| 1,000 | one 100 (74) |  |" in column
    assert "| 100 | both 92 (74) |" in by_rows
    assert "20480" not in parts["gemv-grid"]
    assert "| 20480 x 20480 | 900 | – | – | **400** | 500 | 92 | `gemv-both` |" in parts["gemv-large"]
    assert FACTS["device"] in parts["gemv-runs"]
    assert "WRONG" not in line_of(rows[0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cpu"], "cuBLAS has no host"),
        (["--dtype", "f8"], "unknown dtype 'f8'"),
        (["--layout", "diagonal"], "unknown layout"),
        (["--trials", "0"], "is not in the range"),
    ],
)
def test_it_refuses_before_it_measures(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(main, [*arguments, "--output", str(tmp_path / "gemv.json")])
    assert (found.exit_code, found.output.count("\n")) == (2, 1)
    assert sentence in found.output
