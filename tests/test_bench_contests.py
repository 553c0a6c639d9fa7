"""Tests of contests with cuBLAS, on the host or without measuring: rows, files, resumed and stopped runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import (
    gemv,
    general,
    versus_cublas,
)  # fmt: skip
from benchmarks.cells import Cell
from benchmarks.contest import CONTESTANTS, Contest
from benchmarks.result_file import ResultFile, read
from benchmarks.unseen_run import Unseen
from benchmarks.winner import Prospects, Skipped, Winner, plan, planners, prospects_of
from tests.benchmarked_vendor import PRODUCT, TSMT, FakeCublas, FakeLt, KnownHost
from tests.conftest import ONCE
from tests.fabricated import (
    ONE_STATE,
    exported,
    host_run,
    imported,
    trial,
    winners,
)
from tests.fabricated_rows import BIG, FACTS, RIGHT, SMALL, row
from tests.staged_kernels import SPLIT_DMMA
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, GemvConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

H200 = PROFILES["h200"]
SQUARE = Cell("G", "column", Problem(5, 5, 40, "f64", "tx"))
TOO_LARGE = Problem(100_000_000, 64, 64, "f64")


# Rows


@pytest.fixture
def contest(quick: Toolchain, support_path: str) -> Callable[[int], Any]:
    """A contest on the host, in which NumPy stands for the libraries and leaves as many products out."""
    device = KnownHost(support_path=support_path)

    def made(missing: int) -> Any:
        target: Any = SimpleNamespace(toolchain=quick, is_host=True, **ONE_STATE)
        target.caches = lambda own, others: tuple(others)
        libraries: Any = FakeCublas(missing), FakeLt()
        found = Contest(cast(Any, device), target, support_path, ONCE, PhaseTimer(), libraries=libraries)
        found.host = device  # type: ignore[attr-defined]
        return found

    return made


@pytest.mark.parametrize(("cell", "others"), [(PRODUCT, ("cublas", "cublaslt")), (SQUARE, ("cublas",))])
def test_all_contestants_compute_the_same_product(contest: Any, cell: Cell, others: tuple[str, ...]) -> None:
    found = contest(0).row(cell, Winner(TSMT, RIGHT, kept=1, outcomes={"ok": 1}))
    assert (found["verified"], found["verdict"], found["cublas_verified"]) == (True, RIGHT.detail, True)
    assert found["cublaslt_verified"] is (False if "cublaslt" in others else None)  # it computes nothing
    for name in CONTESTANTS:
        for state in ("", "_dirty"):
            assert (found[f"{name}{state}_us"] is not None) is (name == "ours" or name in others)
    assert contest(1).row(cell, Winner(TSMT, RIGHT, 1, {"ok": 1}))["cublas_verified"] is False


@pytest.mark.parametrize("missing", [0, 1])
def test_a_row_of_a_vector_has_every_decomposition(contest: Any, missing: int) -> None:
    made, problem = contest(missing), Problem(70, 1, 40, "f64", "tn")
    both = GemvConfig(128, 8, 4, 2, 2, 3), GemvConfig(128, 1, 4, 2, 2, 1)
    row = gemv.contest_row(made, made.host, "column", problem, [Winner(one, RIGHT, 1, {"ok": 1}) for one in both])
    assert set(row["decompositions"]) == {"several rows a thread", "both"}
    for one in row["decompositions"].values():
        assert (one["verified"], one["percent_of_read"]) == (True, gemv.of_read(problem, one["ours_us"], 4000.0))
    assert row["cublas_verified"] is (missing == 0)
    many, few = (gemv.candidates(Problem(m, 1, k, "f32"), H200, 2, 280.0) for m, k in ((20480, 20480), (32, 10**7)))
    assert (set(many), set(few)) == (set(DECOMPOSITIONS), {"several threads a row", "both"})  # but what is hopeless


def test_the_global_configuration_is_timed_beside_the_first_choices(
    tmp_path: Path, support_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, target = HostDevice(seed=1, support_path=support_path), find_target("cpu")
    known, other = SPLIT_DMMA["c128"], replace(SPLIT_DMMA["c128"], splits=1)
    shapes = [("sizes", Problem(70, 90, 20, "c128")), ("short k", Problem(70, 90, 9, "c128"))]
    monkeypatch.setattr(general, "problems", lambda *, quick: iter(shapes))
    monkeypatch.setattr(general, "tried_first", lambda table, problem, limits: (known if problem.k == 20 else other,))

    times = {"ours_us": 1.0, "cublas_us": 2.0, "cublaslt_us": 2.0, "verified": True}
    contest: Any = SimpleNamespace(row=lambda cell, one: {**cell.record, **times, "configuration": one.config.text})
    result = ResultFile(tmp_path / "general.json", {"variants": []})
    stopwatch = general.Stopwatch(cast(Any, device), target, support_path)
    measure = partial(general.measure_cells, stopwatch, contest, result, target.limits, quick=False)
    assert measure(end=math.inf)
    assert [set(one["choices_us"]) for one in result.rows] == [{known.text}, {known.text, other.text}]
    assert {one["global"] for one in result.rows} == {known.text}
    assert not measure(end=0.0)
    assert len(result.rows) == 2
    device.close()


# Files of rows


def test_a_run_goes_on_where_another_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ResultFile(tmp_path / "result.json", FACTS)
    first.add(row(BIG))
    first.skip(SMALL.record, "no time")
    found = read(first.path)
    assert (len(found["rows"]), found["skipped"]) == (1, [{**SMALL.record, "skipped": "no time"}])
    assert {name: found[name] for name in FACTS} == FACTS
    second = ResultFile(first.path, {**FACTS, "complete": True})
    second.go_on()
    assert (second.measured(BIG.record), second.measured(SMALL.record)) == (True, False)
    second.add(row(SMALL))
    found = read(first.path)
    assert ([item["run"] for item in found["rows"]], found["earlier_runs"], found["skipped"]) == ([0, 1], [FACTS], [])
    other = ResultFile(first.path, {**FACTS, "driver": "600"})
    with pytest.raises(InputError, match="measured with driver '580', not '600'"):
        other.go_on()
    before = first.path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        second.add(row(SMALL))
    assert ([path.name for path in tmp_path.iterdir()], first.path.read_bytes()) == (["result.json"], before)


# The run beside cuBLAS


SELECTION = versus_cublas.Selection(("R",), ("column",), ("f32",), "quick", seconds=1.0, time_limit=None)


@pytest.mark.parametrize("time_limit", [None, 25.0])
def test_cells_are_measured_or_skipped_until_the_time_limit(
    time_limit: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each takes 10 s by the clock that the run looks at."""
    now = [0.0]

    def measured(cell: Cell, _: Prospects) -> dict[str, Any]:
        now[0] += 10.0
        if cell.problem.n == 8:
            raise Skipped("no room for 1 bytes of device memory")
        return cast(dict[str, Any], row(cell))

    result = ResultFile(tmp_path / "result.json", dict(FACTS))
    cells = ((cell, Prospects(cell.problem, 1, ())) for cell in SELECTION.cells)
    done = versus_cublas.measure_cells(
        PhaseTimer(), measured, result, cells, time_limit=time_limit, start=0.0, verbose=True, clock=lambda: now[0]
    )
    assert done is (time_limit is None)
    assert [item["n"] for item in result.rows] == ([2, 16, 32] if done else [2])
    assert [item["n"] for item in result.skipped] == [8]
    assert read(result.path)["rows"] == result.rows
    said = capsys.readouterr().out
    assert ("stopped by the time limit before R column 20480x16x20480:f32" in said) is not done
    assert "in all: " in said


def test_parts_are_all_cells_each_once_and_less_precision_is_refused() -> None:
    parts = [replace(SELECTION, part=versus_cublas.part_of(f"{number}/3")) for number in (1, 2, 3)]
    assert sorted(cell.text for part in parts for cell in part.cells) == sorted(cell.text for cell in SELECTION.cells)
    versus_cublas.refuse_less_precision({"PATH": "/bin", "NVIDIA_TF32_OVERRIDE": "0"})
    for name in versus_cublas.LESS_PRECISE:
        with pytest.raises(InputError, match=f"{name} = 1"):
            versus_cublas.refuse_less_precision({name: "1"})


@pytest.mark.slow
def test_other_processes_plan() -> None:
    problem = Problem(20480, 1, 20480, "f32")
    with planners() as pool:
        prospects = prospects_of(problem, H200, pool.submit(plan, problem, H200))
        with pytest.raises(Skipped, match=r"needs 95\.4 GiB of device memory, of which 6\.0 GiB can be had"):
            prospects_of(problem, H200, pool.submit(plan, TOO_LARGE, PROFILES["k40c"]))
    kept, first = plan(problem, H200)
    assert (prospects.kept, [one.config for one in prospects.candidates]) == (kept, list(first))


def test_a_row_has_the_vendor_beside_the_choice(contest: Any, tmp_path: Path) -> None:
    tuned = Problem(5, 3, 60, "f64", "tn")
    won = trial(500.0, TSMT, problem=tuned, source=render(tuned, TSMT))
    module = imported(exported("module", winners(tmp_path, (host_run(), won))), tmp_path)
    shapes = Unseen(contest(0), module, cast(Any, None), None)
    found = shapes.row(PRODUCT, None)
    assert (found["verified"], found["cublas_verified"], found["cublaslt_verified"]) == (True, True, False)
    assert found["x_vendor"] == pytest.approx(found["cublas_us"] / found["ours_us"], abs=1e-3)
    assert (found["search_us"], found["falls_back"], found["tuned_shape"]) == (None, None, [5, 3, 60])
    for problem, why in ((tuned, "the pack was tuned for it"), (replace(tuned, k=61, dtype_name="f32"), "f32")):
        with pytest.raises(Skipped, match=why):
            shapes.row(Cell("T", "column", problem), None)
