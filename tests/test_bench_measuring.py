"""The benchmarks measure on the host, or with what measures nothing: rows, files, resumed and stopped runs."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from benchmarks import (
    first_kernel,
    gemv,
    general,
    module_calls,
    pack,
    parent_cost,
    regret,
    repeated,
    scale,
    scale_facts,
    scale_rates,
    unseen,
    unseen_run,
    versus_cublas,
)  # fmt: skip
from benchmarks.cells import LAYOUTS, Cell
from benchmarks.contest import CONTESTANTS, Contest
from benchmarks.recorded_spaces import FILE, rows_in, rows_of, space_of
from benchmarks.redraw import REGRET
from benchmarks.result_file import ResultFile, read
from benchmarks.unseen_run import Unseen
from benchmarks.unseen_shapes import UNSEEN_REGIMES
from benchmarks.winner import CELLS_AHEAD, Prospects, Skipped, Winner, plan, planned, planners, prospects_of
from tests.benchmarked_vendor import CEILINGS, PRODUCT, TSMT, FakeCublas, FakeLt
from tests.conftest import ONCE
from tests.fabricated import (
    BASIS,
    GPU,
    ONE_STATE,
    configuration,
    exported,
    final,
    host_run,
    imported,
    trial,
    tuning_run,
    winners,
)
from tests.fabricated_rows import BIG, FACTS, RIGHT, SMALL, row
from tests.modules import recorded
from tests.staged_kernels import SPLIT_DMMA
from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.families.gemv import DECOMPOSITIONS, GemvConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.measure.cross_timing import PairMeasured
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.loop import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.search.strategies.strategy import InOrder

H200 = PROFILES["h200"]
SQUARE = Cell("G", "column", Problem(5, 5, 40, "f64", "tx"))
TOO_LARGE = Problem(100_000_000, 64, 64, "f64")


# Rows


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch, quick: Toolchain, support_path: str) -> Callable[[int], Any]:
    """A contest on the host, in which NumPy stands for the libraries and leaves as many products out."""
    device = HostDevice(support_path=support_path)
    monkeypatch.setattr(device, "ceilings", lambda: CEILINGS)
    monkeypatch.setattr("benchmarks.contest.CublasLt", lambda *_: FakeLt())

    def made(missing: int) -> Any:
        monkeypatch.setattr("benchmarks.contest.Cublas", lambda: FakeCublas(missing))
        target: Any = SimpleNamespace(toolchain=quick, is_host=True, **ONE_STATE)
        target.caches = lambda own, others: tuple(others)
        found = Contest(cast(Any, device), target, support_path, ONCE, PhaseTimer())
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
    time_limit: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each takes 10 s by the clock that the run looks at."""
    now = [0.0]

    def measured(cell: Cell, _: Prospects) -> dict[str, Any]:
        now[0] += 10.0
        if cell.problem.n == 8:
            raise Skipped("no room for 1 bytes of device memory")
        return cast(dict[str, Any], row(cell))

    monkeypatch.setattr(versus_cublas, "time", SimpleNamespace(monotonic=lambda: now[0]))
    result = ResultFile(tmp_path / "result.json", dict(FACTS))
    cells = ((cell, Prospects(cell.problem, 1, ())) for cell in SELECTION.cells)
    done = versus_cublas.measure_cells(
        PhaseTimer(), measured, result, cells, time_limit=time_limit, start=0.0, verbose=True
    )
    assert done is (time_limit is None)
    assert [item["n"] for item in result.rows] == ([2, 16, 32] if done else [2])
    assert [item["n"] for item in result.skipped] == [8]
    assert read(result.path)["rows"] == result.rows
    said = capsys.readouterr().out
    assert ("stopped by the time limit before R column 20480x16x20480:f32" in said) is not done
    assert "in all: " in said


def test_parts_are_all_cells_each_once_and_the_command_says_them() -> None:
    parts = [replace(SELECTION, part=versus_cublas.part_of(f"{number}/3")) for number in (1, 2, 3)]
    assert sorted(cell.text for part in parts for cell in part.cells) == sorted(cell.text for cell in SELECTION.cells)
    assert parts[1].command == (
        "python -m benchmarks.versus_cublas --regime R --layout column --dtype f32 --shapes-of quick --seconds 1"
        " --cache dirty --part 2/3"
    )
    assert versus_cublas.seconds_text({"a": 0.001, "b": 0.25, "c": 1.0}) == "1.25 s: c 1.00, b 0.25"
    versus_cublas.refuse_less_precision({"PATH": "/bin", "NVIDIA_TF32_OVERRIDE": "0"})
    for name in versus_cublas.LESS_PRECISE:
        with pytest.raises(InputError, match=f"{name} = 1"):
            versus_cublas.refuse_less_precision({name: "1"})
    short = versus_cublas.PATIENT.options(1.0, Cache.DIRTY)
    assert (short.effort.limit_seconds, short.final_effort.limit_seconds) == pytest.approx((0.1, 0.05))


def tuner_of(compiled: list[int]) -> Any:
    return SimpleNamespace(
        target=SimpleNamespace(limits=H200),
        phases=PhaseTimer(),
        options=versus_cublas.PATIENT.options(1.0, Cache.DIRTY),
        compile_ahead=lambda candidates: compiled.append(len(candidates)),
    )


@pytest.mark.slow
def test_compilers_work_for_the_cells_to_come() -> None:
    cells, compiled, found = (
        [BIG, Cell("R", "column", Problem(2**31 - 1, 1, 2**31 - 1, "f64")), *[SMALL] * 5],
        list[int](),
        [],
    )
    with ThreadPoolExecutor(1) as pool:
        for number, (cell, prospects) in enumerate(planned(tuner_of(compiled), cells, pool)):
            found.append((cell, isinstance(prospects, Skipped)))
            assert len(compiled) == min(number + CELLS_AHEAD, len(cells) - 1)  # one is too large
    assert found == [(cell, number == 1) for number, cell in enumerate(cells)]
    assert set(compiled) == {8}  # as many as the trials of a second


@pytest.mark.slow
def test_other_processes_plan_and_one_that_died_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(20480, 1, 20480, "f32")
    with planners() as pool:
        prospects = prospects_of(problem, H200, pool.submit(plan, problem, H200))
        with pytest.raises(Skipped, match=r"needs 95\.4 GiB of device memory, of which 6\.0 GiB can be had"):
            prospects_of(problem, H200, pool.submit(plan, TOO_LARGE, PROFILES["k40c"]))
        pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"has died.* run this again with --resume"):
            list(planned(tuner_of([]), [BIG] * 3, pool))
    kept, first = plan(problem, H200)
    assert (prospects.kept, [one.config for one in prospects.candidates]) == (kept, list(first))
    monkeypatch.setattr("tsm2_tune.generator.space.space.FAMILIES", {})
    with pytest.raises(Skipped, match="no kernel family computes this product"):
        plan(Problem(100, 8, 8, "f32"), H200)


# Shapes that were not tuned


def test_device_arrays_are_the_operands(plain_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = recorded(plain_module, monkeypatch)

    def lying(address: int, rows: int, columns: int, leading: int) -> Any:
        filling = SimpleNamespace(leading_dimension=leading)
        return SimpleNamespace(address=address, rows=rows, columns=columns, filling=filling, row_major=False)

    operands: Any = SimpleNamespace(
        problem=Problem(6, 2, 3, "f32"), a=lying(0x1000, 6, 3, 7), b=lying(0x2000, 3, 2, 3), c=lying(0x3000, 6, 2, 8)
    )
    call = module_calls.called(module, operands, on_host=False, library=None)
    assert (call.falls_back, call.fallback, call.record["choice"]) == (None, None, str(call.choice))
    call.launch()
    (launch,) = module.driver.launches
    assert launch["values"] == [6, 2, 3, 1.0, 0x1000, 7, 0x2000, 3, 0.0, 0x3000, 8]
    assert launch["stream"] is None  # the default one, whose events the timing takes
    chosen, asked, planning = module.choice, list[Any](), list[Any]()
    monkeypatch.setattr(
        module, "choice", lambda *x, **y: chosen(*x, **y) if y.get("fallback") else module.Vendor("it is faster")
    )
    monkeypatch.setattr(module, "gemm", lambda *arrays, **options: asked.append(arrays))
    call = module_calls.called(module, operands, on_host=False, library=lambda array: (array, "theirs"))
    assert call.record["falls_back_because"] == "the vendor: it is faster"
    cast(Any, call.fallback)()
    assert asked[0][0][1] == "theirs"

    class Plan:
        match = "the fastest"

        def __call__(self) -> None:
            asked.append("started")

    clock = [10.0]
    monkeypatch.setattr(module_calls.time, "perf_counter", lambda: clock[0])
    for library in (None, lambda array: (array, "theirs")):

        def plan(*arrays: Any, **options: Any) -> Plan:
            planning.append((arrays, options))
            clock[0] += 0.25
            return Plan()

        found = module_calls.timed(cast(Any, SimpleNamespace(plan=plan)), operands, library=library)
        arrays, options = planning.pop()
        assert options == {"conj_a": False, "conj_b": False, "measure": True}
        assert [isinstance(x, tuple) for x in arrays] == [library is not None] * 3
        assert found.record == {"plan": "the fastest", "plan_seconds": 0.25}
        found.launch()
        assert asked[-1] == "started"


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


ON_HOST = ["--device", "cpu", "--regime", "R,T", "--layout", "column", "--dtype", "f32", "--each", "1"]
ON_HOST += ["--large", "40:60", "--long", "300:400", "--small", "2:4", "--pack", "pack.py"]


def asked(*arguments: str, status: int = 0) -> str:
    """What unseen says on the host, with its white space made one."""
    ended = CliRunner().invoke(unseen.main, [*ON_HOST, *arguments])
    assert ended.exit_code == status, ended.output
    return " ".join(ended.output.split())


@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.slow
def test_unseen_shapes_are_measured_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack from a result file, the measurement in parts and again, the tables."""
    monkeypatch.setattr(pack, "in_set", lambda record, shape_set: True)
    monkeypatch.setattr(HostDevice, "ceilings", lambda _: CEILINGS)
    monkeypatch.setattr(unseen_run, "PATIENT", replace(unseen_run.PATIENT, effort=ONCE, final_effort=ONCE))
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
    assert (first["configuration"], second["configuration"]) == (configuration().text, of_t)
    Path("pack.py").write_text(Path("pack.py").read_text() + "\n")
    assert "was measured with pack" in asked("--resume", "--output", "u.json", status=2)
    said = asked("--searched-in", "u.json", "--output", "again.json")  # beside another pack
    assert "The search of each shape took 0.1 s, and the last search ended by" in said
    (again,) = json.loads(Path("again.json").read_text())["rows"]
    assert (again["regime"], again["search_configuration"]) == ("T", second["search_configuration"])
    assert again["search_verified"]


@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.slow
def test_a_pack_is_tuned_once_and_its_kernels_are_timed_at_both_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pack, "PACK_SHAPES", {"R": ((48, 2, 64), (70, 3, 50))})
    monkeypatch.setattr(pack, "Options", partial(Options, effort=ONCE, max_trials=2))
    monkeypatch.setattr(pack, "FINAL", ONCE)
    monkeypatch.chdir(tmp_path)
    arguments = ("--regime", "R", "--pack-only", "--budget", "60", "--verbose")
    said = asked(*arguments)
    assert re.search(r"pack 1/2 48x2x64:f32: .* pack 2/2 70x3x50:f32: .* winners: .* pairs: ", said)
    module = imported(Path("pack.py").read_text(), tmp_path)
    assert len(module.WINNERS) == 2
    again = asked(*arguments)
    assert "pack 1/2" not in again
    told = iter([PairMeasured(0, 5), "a final", PairMeasured(1, 5), PairMeasured(2, 5)])
    crossing = cast(Any, SimpleNamespace(events=lambda: told))
    pack.Fill._cross(crossing, end=0.0)
    assert "among the pairs, 0 of 5 tried" in capsys.readouterr().out
    pack.Fill._cross(crossing, end=math.inf)
    assert (list(told), capsys.readouterr().out) == ([], "")


@pytest.mark.slow
def test_a_pack_is_of_a_dozen_shapes_of_each_kind(tmp_path: Path) -> None:
    kinds = pack.Kinds(UNSEEN_REGIMES, LAYOUTS, ("f32", "f64", "c64"))
    problems = [cell.problem for cell in pack.pack_cells(kinds)]
    assert len(problems) == len(set(problems)) == 12 * 18
    found = pack.winners_in(Path("benchmarks/results/h200-versus-cublas.json"), kinds)
    for space, (_, text) in zip(pack.spaces_of(found, H200), found, strict=True):
        assert [candidate.config for candidate in space.kept] == [parse_config(text)]
    result = ResultFile(tmp_path / "r.json", dict(FACTS))
    result.add(row(BIG))
    with pytest.raises(InputError, match="has 0 winners of the headline's shapes of R row f32"):
        pack.winners_in(result.path, pack.Kinds(("R",), LAYOUTS, ("f32",)))
    with pytest.raises(InputError, match=r"gone-t1 is no configuration for .* in this version"):
        pack.spaces_of([(BIG.problem, "gone-t1")], H200)


# Searches replayed, and times in two databases


PROBLEM = Problem(1000, 8, 8, "f64")
KEPT = search_space(PROBLEM, PROFILES["h100"], families=["resident_b_fma"]).kept
US = [100.0 - place % 50 for place in range(len(KEPT))]


def row_of_space(**changes: Any) -> dict[str, Any]:
    """A recorded space in which the fastest are 51 us."""
    trials = [[one.config.text, "ok", us] for one, us in zip(KEPT, US, strict=True)]
    return {"device": "NVIDIA H100 80GB HBM3", "problem": PROBLEM.text, "trials": trials, **changes}


@pytest.mark.slow
def test_a_search_has_the_recorded_times() -> None:
    of = space_of(row_of_space())
    assert (of.space.families, of.trials, of.best_us) == (("resident_b_fma",), len(KEPT), 51.0)
    found = regret.replayed(exhaustive(of.space), of, most=60)
    assert list(found.best_us) == [min(US[: count + 1]) for count in range(60)]
    assert (found.why, found.regret(of, 1), found.regret(of, 60)) == (
        Why.MAX_TRIALS,
        pytest.approx(100 / 51 - 1),
        0.0,
    )
    trials = row_of_space()["trials"]
    few = space_of(row_of_space(trials=trials[5:]))  # what was not recorded is passed over
    assert len(regret.replayed(exhaustive(few.space), few).best_us) == few.trials == len(KEPT) - 5
    trials[:2] = [trials[0][0], "behind", 60.0], [trials[1][0], "wrong-result", None]
    of = space_of(row_of_space(trials=trials))  # behind trials may win in another order, but wrong ones not
    assert list(regret.replayed(exhaustive(of.space), of, most=2).best_us) == [60.0, 60.0]
    assert regret.replayed(InOrder([KEPT[1]]), of).best_us == [math.inf]
    with pytest.raises(InputError, match="no bundled card is 'cpu'"):
        space_of(row_of_space(device="cpu"))


@pytest.mark.slow
def test_the_tables_are_of_the_spaces_as_they_are_now() -> None:
    """A rule that drops or keeps other configurations asks for the tables anew: python -m benchmarks.regret."""
    drawn = {row["problem"]: row["trials"] for row in json.loads(REGRET.read_text(encoding="utf-8"))["rows"]}
    assert drawn == {(of := space_of(row)).problem.text: of.trials for row in rows_in(FILE)}


def test_times_in_two_databases_are_compared_by_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slim, wide, third = configuration(64), configuration(128), configuration(256)
    other = Problem(1000, 4, 2000, "f64")

    def written(name: str, times: dict[Any, float], winner: float, device: str = GPU, **facts: Any) -> None:
        run = tuning_run(device, uuid=name)
        with Store.open(name, create=True) as store:
            for config, us in times.items():
                store.add_trial(run, trial(us, config, **facts))
            store.add_trial(run, trial(5.0, slim, problem=other, **facts))
            store.add_final(run, final((slim, winner)), (slim.family,), BASIS)
            assert {row["device"] for row in rows_of(store)} == {device}

    def said(*arguments: str, status: int = 0) -> list[str]:
        ended = CliRunner().invoke(repeated.main, arguments)
        assert ended.exit_code == status, ended.output
        return ended.output.splitlines()

    written("a.db", {slim: 100.0, wide: 200.0}, 99.0)
    written("b.db", {slim: 103.0, third: 120.0}, 100.5)
    written("c.db", {slim: 100.0}, 99.0, device="another GPU")
    lines = said("a.db", "b.db", "--output", "found.json")
    assert lines[0] == f"{GPU}, two cards: 1 of 1 winners are the same."
    trials = [line.split("|")[2:7] for line in lines[4:8]]
    assert [[cell.strip() for cell in line] for line in (trials[1], trials[3])] == [
        ["0", "", "", "", ""], ["2", "1.002", "1.015", "1.028", "50.0 %"],
    ]  # fmt: skip
    assert lines[8] == "| winners | 1 | 1.015 | 1.015 | 1.015 | 0.0 % | 100.0 % | 100.0 % |"
    assert said("--table", "found.json") == lines
    assert said("b.db", "a.db")[-1] == "| winners | 1 | 0.985 | 0.985 | 0.985 | 0.0 % | 100.0 % | 100.0 % |"
    assert "no trial in common" in said("a.db", "c.db", status=2)[0]


# What a run costs


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_rates_of_a_new_file_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MANY", 1000), ("READS", 1), ("ROUNDS", 1), ("OF_PROBLEM", 20)):
        monkeypatch.setattr(scale_rates, name, value)
    monkeypatch.setattr(scale_facts, "HOST_SHAPES", ("16x1x16",))
    monkeypatch.setattr(scale_facts, "HOST_TRIALS", 1)
    output = tmp_path / "rates.json"
    ended = CliRunner().invoke(scale_rates.main, ["--tuners", "2", "--seconds", "4", "--output", str(output)])
    assert ended.exit_code == 0, ended.output
    found, before = (json.loads(path.read_text()) for path in (output, scale.SQLITE))
    assert found.keys() == before.keys()
    assert found["recorded"] == pytest.approx(before["recorded"])  # SQLite sums in another order from 3.43 on
    assert found["rows"][0]["trials_per_second"] > 0
    assert found["tables"]["sample"]["rows"] > found["tables"]["trial"]["rows"] >= 40
    assert (found["asked"]["winners"] >= 1, found["reads"][-1]["trials"] >= 1000) == (True, True)
    milliseconds = parent_cost.milliseconds_per_trial(Problem(20480, 16, 20480, "f32"), 20, str(tmp_path / "r.db"))
    assert 0.0 < milliseconds < 1000.0


PRINTING = """
import json, os, pathlib, sys, time
if sys.argv[1] == 'export': pathlib.Path(sys.argv[-1]).touch(); sys.exit()
cache, db = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'kernel'), pathlib.Path(sys.argv[-1])
assert not db.exists(); db.touch()
for event in ('run_started', 'trial', 'other', 'trial'):
    print(json.dumps({'event': event, 'device': str(cache.exists())}), flush=True); time.sleep(0.2)
cache.touch()
"""
FAILING = "import sys; print('no GPU today', file=sys.stderr); sys.exit(3)"
FIRST = ("--device", "cpu", "--shapes", "16x1x16", "--budget", "0.1")


@pytest.mark.slow
def test_a_first_kernel_is_timed_from_the_command_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*program: str) -> Any:
        monkeypatch.setattr(first_kernel, "PROGRAM", (sys.executable, *program))
        return CliRunner().invoke(first_kernel.main, FIRST)

    failed = said("-c", FAILING)
    assert (failed.exit_code, "status 3: no GPU today" in failed.output) == (1, True)
    (tmp_path / "program.py").write_text(PRINTING)
    result = json.loads(said(str(tmp_path / "program.py")).output)
    assert result["device"] == "True"  # the last run's, whose cache the first one filled
    for seconds in result["seconds"].values():
        assert list(seconds) == ["run_started", "first_trial", first_kernel.EXPORTED]
        assert seconds["first_trial"] + 0.5 < seconds[first_kernel.EXPORTED]
    result = json.loads(said("-m", "tests.quick_command").output)
    assert result["device"].startswith("cpu ")
    for seconds in result["seconds"].values():
        assert list(seconds) == [*first_kernel.STAGES.values(), first_kernel.EXPORTED]
        assert list(seconds.values()) == sorted(seconds.values())
