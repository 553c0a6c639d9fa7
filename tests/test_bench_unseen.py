"""Shapes that nobody tuned: how they are drawn, the pack, what the module gives them, and the runs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from benchmarks import pack, unseen_run
from benchmarks.cells import LAYOUTS, Cell
from benchmarks.contest import Contest
from benchmarks.module_calls import called
from benchmarks.pack import Kinds, pack_cells, spaces_of, winners_in
from benchmarks.result_file import ResultFile
from benchmarks.unseen import main
from benchmarks.unseen_run import Unseen
from benchmarks.unseen_shapes import OWNERS, UNSEEN_REGIMES, Ranges, drawn, range_of
from benchmarks.winner import Skipped
from tests.benchmarked_vendor import CEILINGS, PRODUCT, FakeCublas, FakeLt
from tests.benchmarked_vendor import TSMT as TSMT
from tests.conftest import ONCE
from tests.fabricated import ONE_STATE, configuration, exported, host_run, imported, trial, winners
from tests.fabricated_rows import FACTS, OF_AN_UNSEEN_RUN, measured, row
from tests.modules import recorded
from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda import CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.cross_timing import PairMeasured
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.search.loop import Options, Tuner
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.verify.operands import Operands, needed_bytes

H200 = PROFILES["h200"]
KINDS = (UNSEEN_REGIMES, LAYOUTS, ("f32", "f64", "c64"))
DRAW = {"each": 14, "ranges": Ranges(), "seed": 0, "limits": H200}
RESULTS = Path("benchmarks/results/h200-versus-cublas.json")


# The draw


def test_shapes_are_drawn_from_their_ranges() -> None:
    found = drawn(*KINDS, **DRAW)
    assert len(found) == len({cell.problem for cell in found}) == 3 * 2 * 3 * 14 >= 240
    for cell in found:
        p = cell.problem
        square, long, small = {
            "R": ((p.m, p.k), (), (p.n,)),
            "L": ((), (p.m,), (p.n, p.k)),
            "T": ((), (p.k,), (p.m, p.n)),
        }[cell.regime]
        assert all(2_000 <= extent <= 30_000 for extent in square)
        assert all(20_000 <= extent <= 20_000_000 for extent in long)
        assert all(1 <= extent <= 64 for extent in small)
        assert OWNERS * needed_bytes(p) < H200.memory_bytes


def test_extents_are_log_uniform() -> None:
    """Each quarter of the range, on a logarithmic scale, has about a quarter of the shapes."""
    found = drawn(("L",), ("column",), ("f32",), each=800, ranges=Ranges(), seed=0, limits=H200)
    places = [math.log(cell.problem.m / 20_000) / math.log(1000) for cell in found]
    for quarter in range(4):
        assert 150 <= sum(quarter / 4 <= place < (quarter + 1) / 4 for place in places) <= 250


def test_a_draw_is_the_seed_s() -> None:
    every = drawn(*KINDS, **DRAW)
    assert drawn(*KINDS, **DRAW) == every
    some = drawn(("T",), ("row",), ("f64",), **DRAW)
    assert set(some) == {cell for cell in every if cell in some}  # the other arguments make no difference
    assert not set(drawn(*KINDS, **DRAW | {"seed": 1})) & set(every)


def test_what_does_not_fit_is_not_drawn() -> None:
    small = replace(H200, memory_bytes=8 * 2**30)  # 2 GiB of it are for operands
    found = drawn(*KINDS, **DRAW | {"limits": small})
    assert all(OWNERS * needed_bytes(cell.problem) <= 2 * 2**30 for cell in found)
    with pytest.raises(InputError, match=r"the ranges have no 2 shapes of R in f32 that fit h200"):
        drawn(("R",), ("column",), ("f32",), each=2, ranges=Ranges(large=(9, 9), small=(2, 2)), seed=0, limits=H200)


@pytest.mark.parametrize("text", ["", "5", "5:3", "0:4", "1:99999999999", "1:2:3", "a:b", "-1:4"])
def test_a_range_is_two_extents(text: str) -> None:
    with pytest.raises(InputError, match=r"--small .*expected two extents such as 2000:30000"):
        range_of("small", text)
    assert range_of("small", "3:3") == (3, 3)


# The pack


def test_the_pack_is_of_few_winners_of_each_kind() -> None:
    kinds = Kinds(*KINDS)
    found = winners_in(RESULTS, kinds)
    spaces = spaces_of(found, H200)
    assert len(found) == len(spaces) == len({problem for problem, _ in found})
    for space, (_, text) in zip(spaces, found, strict=True):
        assert [candidate.config for candidate in space.kept] == [parse_config(text)]
    assert all(len(found) <= 12 * 18 for _ in spaces)


def test_a_pack_is_tuned_for_a_dozen_shapes_of_each_kind() -> None:
    kinds = Kinds(*KINDS)
    found = [cell.problem for cell in pack_cells(kinds)]
    assert len(found) == len(set(found)) == 12 * 18
    for problem in found:
        assert needed_bytes(problem) < H200.memory_bytes / 8


def test_a_file_without_winners_of_a_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    result = ResultFile(path, dict(FACTS))
    result.add(row(Cell("R", "column", Problem(20480, 8, 20480, "f32"))))
    with pytest.raises(InputError, match="has 0 winners of the headline's shapes of R row f32"):
        winners_in(path, Kinds(("R",), LAYOUTS, ("f32",)))
    with pytest.raises(InputError, match=r"gone-t1 is no configuration for .* in this version"):
        spaces_of([(Problem(20480, 8, 20480, "f32"), "gone-t1")], H200)


# The calls


def test_device_arrays_are_the_operands(plain_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = recorded(plain_module, monkeypatch)

    def lying(address: int, rows: int, columns: int, leading: int) -> Any:
        filling = SimpleNamespace(leading_dimension=leading)
        return SimpleNamespace(address=address, rows=rows, columns=columns, filling=filling, row_major=False)

    operands = SimpleNamespace(
        problem=Problem(6, 2, 3, "f32"), a=lying(0x1000, 6, 3, 7), b=lying(0x2000, 3, 2, 3), c=lying(0x3000, 6, 2, 8)
    )
    call = called(module, cast(Operands, operands), on_host=False, library=None)
    assert (call.falls_back, call.fallback) == (None, None)
    assert call.record["choice"] == str(call.choice)
    call.launch()
    (launch,) = module.driver.launches
    assert launch["values"] == [6, 2, 3, 1.0, 0x1000, 7, 0x2000, 3, 0.0, 0x3000, 8]
    assert launch["stream"] is None  # the default one, whose events the timing takes
    asked: list[Any] = []
    chosen = module.choice

    def choice(*arrays: Any, **options: Any) -> Any:
        return chosen(*arrays, **options) if options.get("fallback") else module.Vendor("it is faster")

    monkeypatch.setattr(module, "choice", choice)
    monkeypatch.setattr(module, "gemm", lambda *arrays, **options: asked.append(arrays))
    call = called(module, cast(Operands, operands), on_host=False, library=lambda array: (array, "theirs"))
    assert call.record["falls_back_because"] == "the vendor: it is faster"
    assert call.fallback is not None
    call.fallback()
    ((a, _, _),) = asked
    assert a[1] == "theirs"


def test_a_row_has_the_vendor_beside_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: Toolchain, support_path: str
) -> None:
    """On the host, where NumPy stands for the libraries."""
    device = HostDevice(support_path=support_path)
    monkeypatch.setattr(device, "ceilings", lambda: CEILINGS)
    monkeypatch.setattr("benchmarks.contest.Cublas", lambda: FakeCublas(0))
    monkeypatch.setattr("benchmarks.contest.CublasLt", lambda *_: FakeLt())
    target = cast(Target, SimpleNamespace(toolchain=quick, is_host=True, **ONE_STATE))
    contest = Contest(cast(CudaDevice, device), target, support_path, ONCE, PhaseTimer())
    tuned = Problem(5, 3, 60, "f64", "tn")
    won = trial(500.0, TSMT, problem=tuned, source=render(tuned, TSMT))
    text = exported("module", winners(tmp_path, (host_run(), won)))
    unseen = Unseen(contest, imported(text, tmp_path), cast(Tuner, None), None)
    found = unseen.row(PRODUCT, None)
    assert found["verified"]
    assert (found["cublas_verified"], found["cublaslt_verified"]) == (True, False)  # the latter computes nothing
    assert found["x_vendor"] == pytest.approx(found["cublas_us"] / found["ours_us"], abs=1e-3)
    assert (found["search_us"], found["falls_back"], found["tuned_shape"]) == (None, None, [5, 3, 60])
    assert found["launch"]["threads"] == 128
    with pytest.raises(Skipped, match="the pack was tuned for it"):
        unseen.row(Cell("T", "column", tuned), None)
    with pytest.raises(Skipped, match="f32"):
        unseen.row(Cell("T", "column", replace(tuned, k=61, dtype_name="f32")), None)


# The run


SMALL = ["--device", "cpu", "--regime", "R,T", "--layout", "column", "--dtype", "f32", "--each", "1"]
SMALL += ["--large", "40:60", "--long", "300:400", "--small", "2:4"]


@pytest.mark.host
@pytest.mark.usefixtures("session_cache", "known_ceilings")
def test_a_run_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack from a result file, the measurement in parts and again, the tables."""
    once = Effort(min_samples=1, max_samples=1, warm_up_seconds=0.0)
    monkeypatch.setattr(pack, "in_set", lambda record, shape_set: True)
    monkeypatch.setattr(HostDevice, "ceilings", lambda _: CEILINGS)
    monkeypatch.setattr(unseen_run, "PATIENT", replace(unseen_run.PATIENT, effort=once, final_effort=once))
    monkeypatch.chdir(tmp_path)
    result = ResultFile(Path("winners.json"), dict(FACTS))
    result.add(row(Cell("R", "column", Problem(64, 3, 64, "f32"))))
    of_t = "inner_fma:threads=128,block=4x4,thread=4x4x4,stages=1,splits=16"
    result.add(row(Cell("T", "column", Problem(3, 4, 300, "f32", "tn"))) | {"configuration": of_t})

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, [*SMALL, "--pack", "pack.py", *arguments])

    done = run("--pack-only", "--pack-from", "winners.json")
    assert done.exit_code == 0, done.output
    assert "pack 1/2 64x3x64:f32: tsm2 " in done.output
    done = run("--search-seconds", "0", "--part", "1/2", "--output", "u.json")
    assert done.exit_code == 0, done.output
    assert "No shape was searched" in done.output
    assert run("--output", "u.json").exit_code == 2  # it is there
    done = run("--search-seconds", "0.1", "--resume", "--output", "u.json")
    assert done.exit_code == 0, done.output
    found = json.loads(Path("u.json").read_text())
    assert [r["regime"] for r in found["rows"]] == ["R", "T"]
    for one in found["rows"]:
        assert one["verified"]
        assert one["ours_us"] > 0
        assert one["cublas_us"] is None
    first, second = found["rows"]
    assert first["search_us"] is None
    assert second["search_us"] > 0
    assert second["search_verified"]
    assert (first["configuration"], second["configuration"]) == (configuration().text, of_t)
    Path("pack.py").write_text(Path("pack.py").read_text() + "\n")
    refused = run("--resume", "--output", "u.json")
    assert refused.exit_code == 2
    assert "was measured with pack" in refused.output
    searched = run("--searched-in", "u.json", "--output", "again.json")  # beside another pack
    assert searched.exit_code == 0, searched.output
    assert "The search of each shape took 0.1 s, and the last search ended by" in searched.output
    (again,) = json.loads(Path("again.json").read_text())["rows"]
    assert (again["regime"], again["search_configuration"]) == ("T", second["search_configuration"])
    assert again["search_us"] > 0
    assert again["search_verified"]


@pytest.mark.parametrize(
    ("of_run", "of_row", "sentence"),
    [
        ({"search_seconds": 0}, {}, "is not of searches of one length on one device"),
        ({}, {"search_configuration": "stream_a_fma-t7"}, "stream_a_fma-t7 is of another version"),
        ({}, {"search_verified": False}, "has no winner of a search"),
        ({}, {}, "the searches were on a GPU, not on"),
    ],
)
def test_a_file_without_searches_of_this_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_run: dict[str, Any], of_row: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pack.py").write_text("")
    given = {"search_configuration": configuration().text, "search_verified": True} | of_row
    ResultFile(Path("u.json"), FACTS | OF_AN_UNSEEN_RUN | {"device": "a GPU"} | of_run).add(measured(**given))
    refused = CliRunner().invoke(main, [*SMALL, "--pack", "pack.py", "--searched-in", "u.json", "--output", "2.json"])
    assert refused.exit_code == 2
    assert sentence in " ".join(refused.output.split())


@pytest.mark.host
@pytest.mark.usefixtures("session_cache", "known_ceilings")
def test_a_pack_is_tuned_once_and_has_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PACK_SHAPES", {"R": ((48, 2, 64), (70, 3, 50))})
    monkeypatch.setattr(pack, "Options", partial(Options, effort=ONCE, max_trials=2))
    monkeypatch.setattr(pack, "FINAL", ONCE)
    monkeypatch.chdir(tmp_path)
    asked = [*SMALL, "--regime", "R", "--pack-only", "--pack", "pack.py", "--budget", "60", "--verbose"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    assert "pack 1/2 48x2x64:f32: " in done.output
    assert "pack 2/2 70x3x50:f32: " in done.output
    assert re.search(r"^winners: .*\bs\b", done.output, re.MULTILINE)
    assert re.search(r"^pairs: .*\bs\b", done.output, re.MULTILINE)
    winners = imported(Path("pack.py").read_text(), tmp_path).WINNERS
    assert len(winners) == 2
    if len({w.digest for w in winners}) == 2:
        assert any(w.elsewhere for w in winners)
    Path("pack.py").write_text("of before")
    again = CliRunner().invoke(main, asked)
    assert again.exit_code == 0, again.output
    assert "pack 1/2" not in again.output
    assert len(imported(Path("pack.py").read_text(), tmp_path).WINNERS) == 2


def test_pairs_are_tried_until_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    told = iter([PairMeasured(0, 5), "a final", PairMeasured(1, 5), PairMeasured(2, 5)])
    crossing = cast(Any, SimpleNamespace(events=lambda: told))
    pack.Fill._cross(crossing, end=0.0)
    assert "among the pairs, 0 of 5 tried" in capsys.readouterr().out
    pack.Fill._cross(crossing, end=math.inf)
    assert (list(told), capsys.readouterr().out) == ([], "")
