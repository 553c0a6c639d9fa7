"""Contests with cuBLAS and shapes that were not tuned, on the host: rows, files, resumed and stopped runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from benchmarks import module_calls, pack, unseen, unseen_run, versus_cublas
from benchmarks.cells import Cell
from benchmarks.contest import CONTESTANTS, Contest
from benchmarks.result_file import ResultFile, read
from benchmarks.versus_cublas import PATIENT
from benchmarks.winner import Prospects, Skipped, Winner
from tests.benchmarked_vendor import CEILINGS, PRODUCT, TSMT, FakeCublas, FakeLt, KnownHost
from tests.conftest import ONCE
from tests.fabricated import ONE_STATE, configuration
from tests.fabricated_rows import BIG, FACTS, RIGHT, SMALL, row
from tests.modules import recorded
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

H200 = PROFILES["h200"]
SQUARE = Cell("G", "column", Problem(5, 5, 40, "f64", "tx"))


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


# Shapes that were not tuned


def test_device_arrays_are_the_operands(plain_module: ModuleType) -> None:
    module = recorded(plain_module)

    def lying(address: int, rows: int, columns: int, leading: int) -> Any:
        filling = SimpleNamespace(leading_dimension=leading)
        return SimpleNamespace(address=address, rows=rows, columns=columns, filling=filling, row_major=False)

    a, b, c = lying(0x1000, 6, 3, 7), lying(0x2000, 3, 2, 3), lying(0x3000, 6, 2, 8)
    operands: Any = SimpleNamespace(problem=Problem(6, 2, 3, "f32"), a=a, b=b, c=c)
    call = module_calls.called(module, operands, on_host=False, library=None)
    assert (call.falls_back, call.fallback, call.record["choice"]) == (None, None, str(call.choice))
    call.launch()
    (launch,) = module.driver.launches
    assert launch["values"] == [6, 2, 3, 1.0, 0x1000, 7, 0x2000, 3, 0.0, 0x3000, 8]
    assert launch["stream"] is None  # the default one, whose events the timing takes


ON_HOST = ["--device", "cpu", "--regime", "R,T", "--layout", "column", "--dtype", "f32", "--each", "1"]
ON_HOST += ["--large", "40:60", "--long", "300:400", "--small", "2:4", "--pack", "pack.py"]


def asked(*arguments: str, status: int = 0) -> str:
    """Return the output of `unseen` on the host, with single spaces for white space."""
    ended = CliRunner().invoke(unseen.main, [*ON_HOST, *arguments])
    assert ended.exit_code == status, ended.output
    return " ".join(ended.output.split())


@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.slow
def test_unseen_shapes_are_measured_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack from a result file, the measurement in parts and again, the tables."""
    monkeypatch.setattr(pack, "in_set", lambda record, shape_set: True)
    monkeypatch.setattr(HostDevice, "ceilings", lambda _: CEILINGS)
    monkeypatch.setattr(unseen_run, "PATIENT", replace(PATIENT, effort=ONCE, final_effort=ONCE))
    monkeypatch.chdir(tmp_path)
    result = ResultFile(Path("winners.json"), dict(FACTS))
    result.add(row(Cell("R", "column", Problem(64, 3, 64, "f32"))))
    of_t = "inner_fma:threads=128,block=4x4,thread=4x4x4,stages=1,splits=16"
    result.add(row(Cell("T", "column", Problem(3, 4, 300, "f32", "tn"))) | {"configuration": of_t})
    assert "pack 1/2 64x3x64:f32: tsm2 " in asked("--pack-only", "--pack-from", "winners.json")
    assert "No shape was searched" in asked("--search-seconds", "0", "--part", "1/2", "--output", "u.json")
    asked("--output", "u.json", status=2)  # it is there
    asked("--search-seconds", "0.1", "--resume", "--output", "u.json")
    first, second = json.loads(Path("u.json").read_text())["rows"]
    assert (first["regime"], second["regime"], first["verified"], second["verified"]) == ("R", "T", True, True)
    assert (first["search_us"], second["search_verified"]) == (None, True)
    assert sum(second["search_trials"].values()) < 20  # of hundreds: its seconds end the search
    assert (first["configuration"], second["configuration"]) == (configuration().text, of_t)
    Path("pack.py").write_text(Path("pack.py").read_text() + "\n")
    assert "was measured with pack" in asked("--resume", "--output", "u.json", status=2)
    said = asked("--searched-in", "u.json", "--output", "again.json")  # beside another pack
    assert "The search of each shape took 0.1 s, and the last search ended by" in said
    (again,) = json.loads(Path("again.json").read_text())["rows"]
    assert (again["regime"], again["search_configuration"]) == ("T", second["search_configuration"])
    assert again["search_verified"]
