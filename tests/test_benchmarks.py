"""Benchmarks start, draw the pages, measure on the host, and find what docs/regret.md promises."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from benchmarks import claims, pack, plot, redraw, thinned, unseen_run, versus_cublas
from benchmarks.cells import Cell
from benchmarks.contest import CONTESTANTS, Contest, Opponent, row_of
from benchmarks.recorded_spaces import FILE, space_of
from benchmarks.regret import WITHIN, fastest, replayed, strategies
from benchmarks.result_file import ResultFile, read
from benchmarks.winner import Winner
from tests.benchmarked_vendor import CEILINGS, PRODUCT, TSMT, FakeCublas, FakeLt, KnownHost
from tests.conftest import ONCE
from tests.databases import database_of
from tests.fabricated import ONE_STATE, configuration, host_run, measurement, trial
from tsm2_tune.errors import InputError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seed_table import FILE as MEASURED
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.results.trial import Cache, Verdict
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

RESULTS = Path("benchmarks/results").absolute()
NEEDS = {"report_pictures": "playwright"}  # a package that a command imports at once
COMMANDS = sorted(path.stem for path in Path("benchmarks").glob("*.py") if "__main__" in path.read_text())
FACTS = {
    "device": "NVIDIA H200", "driver": "580", "toolkit": "nvcc 13.0", "flags": "-arch=sm_90", "cublas": 130100,
    "cublaslt": 130100, "tsm2_tune": "0.1.0", "sources": "5f2d", "command": "python -m benchmarks.versus_cublas",
    "date": "2026-11-21", "gflops": {"f32": 65e3, "f64": 65e3}, "read_gbytes_per_s": 4620.0,
    "copy_gbytes_per_s": 4170.0,
}  # fmt: skip
RIGHT = Verdict(True, 0.1, "every element right")
BIG = Cell("R", "column", Problem(20480, 8, 20480, "f32"))
SMALL = Cell("L", "row", Problem(10_000, 8, 8, "f64", "ttt"))


def row(cell: Cell = BIG, *, ours: float = 400.0, lt: float | None = 480.0, **changes: Any) -> dict[str, Any]:
    """Return a measured cell: cuBLAS takes 500 us, the floor is 380 us."""
    winner = Winner(configuration(), RIGHT, kept=100, outcomes={"ok": 20})
    us = {"ours": ours, "cublas": 500.0} | ({} if lt is None else {"cublaslt": lt})
    found = {name: measurement(one) for name, one in us.items()}
    opponents = {name: Opponent(pytest.fail, right=True, timed=1) for name in found}
    return row_of(cell, winner, {Cache.CLEAN: found, Cache.DIRTY: found}, opponents, RIGHT, 380.0) | changes


# Commands


def command_named(name: str) -> click.Command:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return cast(click.Command, importlib.import_module(f"benchmarks.{name}").main)


def started(name: str, *arguments: object) -> Result:
    return CliRunner().invoke(command_named(name), [str(one) for one in arguments])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_starts_and_knows_its_options(name: str) -> None:
    for part in ([], *([one] for one in getattr(command_named(name), "commands", ()))):
        assert started(name, *part, "--help").exit_code == 0
        assert "--nonsense" in started(name, *part, "--nonsense").output


# Each line is a command, its arguments in a folder with a file `there`, and words of the sentence that refuses them.
REFUSED = """
    batches --device cpu --output new | cuBLAS has no host: use a CUDA ordinal
    call_cost --output new | no CUDA driver answers, and cuBLAS has no host: run this where there is a GPU
    join there --output new | is no result file
    regret --db host.db | has no trial of a GPU, and the host's times are of an emulation: name another --db
    unseen --device cpu --pack there --searched-in unseen.json --output new | other is of another version
    unseen --device cpu --pack fails.py --output new | cannot be imported
    versus_cublas --output there | there exists: name another --output, or go on with --resume
    versus_cublas --part 9999/9999 | part 9999/9999 of the selection has no cell
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("line", re.findall(r"\S.*", REFUSED))
def test_wrong_arguments_are_refused_before_the_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sentence = line.split(" | ")
    monkeypatch.chdir(tmp_path)
    searched = FACTS | {"search_seconds": 5.0, "rows": [row(search_configuration="other", search_verified=True)]}
    for file, text in {"there": "hours", "fails.py": "1 / 0", "unseen.json": json.dumps(searched)}.items():
        Path(file).write_text(text)
    database_of("host.db", trial(), run=host_run())
    before = sorted(os.listdir())
    ended = started(*asked.split())
    assert (ended.exit_code, sentence in ended.output, ended.output.count("\n")) == (2, True, 1), ended.exception
    assert (sorted(set(os.listdir()) - {"__pycache__"}), Path("there").read_text()) == (before, "hours")


# Each line is a command that needs no GPU, and words that it prints. It writes its file, if any, as `new`.
RUN = """
    expected {h200}-versus-cublas.json | all
    join {h200}-versus-cublas.json {h200}-versus-cublas.json --output new | rows of
    measured --output new | wrote
    recorded_spaces results.db --output new | wrote new: 1 trials of 1 problems
    repeated results.db results.db | one card: 0 of 0 winners are the same
    unseen --table {h100}-unseen.json | The pack has
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"\S.*", RUN))
def test_commands_without_a_gpu_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, sentence = line.format(h100=RESULTS / "h100", h200=RESULTS / "h200").split(" | ")
    monkeypatch.chdir(tmp_path)
    database_of("results.db", trial())
    ended = started(*asked.split())
    assert (ended.exit_code, sentence in ended.output) == (0, True), ended.output
    if asked.startswith("measured"):
        assert Path("new").read_text(encoding="utf-8") == MEASURED.read_text(encoding="utf-8")


# What the pages show


REGIONS = [match for path in redraw.PAGES for match in redraw.REGION.finditer(path.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("names", redraw.DRAWN)
def test_pages_are_drawn_from_the_result_files(names: str) -> None:
    parts = redraw.drawn(names)
    assert parts.keys() == {*names.split()}
    stale = [found[2] for found in REGIONS if found[2] in parts and found[0] != redraw.redrawn(found[0], parts)]
    assert stale == [], "python -m benchmarks.redraw"


@pytest.mark.slow
def test_each_region_and_the_csv_are_drawn(tmp_path: Path) -> None:
    assert {found[2] for found in REGIONS} == {*" ".join(redraw.DRAWN).split()}
    with pytest.raises(InputError, match="nothing is drawn for 'other'"):
        redraw.redrawn("<!-- drawn: other -->\n\nx\n\n<!-- end -->", {})
    assert claims.cells_csv(read(redraw.RESULT)["rows"]) == redraw.CELLS.read_text(encoding="utf-8")
    pytest.importorskip("matplotlib")
    plot.draw(FACTS | {"rows": [row(BIG), row(SMALL)]}, tmp_path / "new")
    assert (tmp_path / "new").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_tables_of_regret_are_of_the_spaces_as_they_are_now() -> None:
    """If it fails because a rule drops other configurations, run python -m benchmarks.regret."""
    drawn = {row["problem"]: row["trials"] for row in json.loads(redraw.REGRET.read_text(encoding="utf-8"))["rows"]}
    assert drawn == {(of := space_of(row)).problem.text: of.trials for row in read(FILE)["rows"]}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["8x8x10000000:f64:tn", "4096x8x4096:f32", "2000000x8x8:c64"])
def test_a_tenth_of_the_trials_finds_98_percent_of_the_speed(text: str) -> None:
    """docs/regret.md promises it of the default strategy, also for new shapes and with a database of one's own."""
    rows = {row["problem"]: row for row in read(FILE)["rows"]}
    of = space_of(rows[text])
    alike = [fastest(row) for row in rows.values()]
    known = [one for one in alike if one.problem != of.problem and one.problem.dtype_name == of.problem.dtype_name]
    made, trials = strategies(of, known), round(0.1 * of.trials)
    names = ("model", "model, other shapes", "model, own database alone")
    regrets = {name: replayed(made[name](0), of, most=trials).regret(of, trials) for name in names}
    assert {name: regret for name, regret in regrets.items() if not 0 <= regret <= WITHIN} == {}


@pytest.mark.slow
def test_hardly_any_product_is_slower_than_by_cublas_whole_pack_or_thinned(tmp_path: Path) -> None:
    draws = [RESULTS / "h200-unseen.json.xz", *sorted(RESULTS.glob("h200-unseen-[0-9]*.json.xz"))]
    for arguments in (["h100"], ["h200", *(word for path in draws for word in ("--unseen", path))]):
        output = tmp_path / f"{arguments[0]}.json"
        done = CliRunner().invoke(thinned.main, [*map(str, arguments), "--output", str(output)])
        assert done.exit_code == 0, done.output
        rows = read(output)["rows"]
        assert all(row["products"] > 230 and row["x_cublas"] > 1.1 for row in rows)
        assert all(row["slower_by_3_percent"] <= 0.01 for row in rows)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row(ours=490.0), "behind"),
        (row(ours=490.0, lt=None), "ahead"),
        (row(ours=510.0, lt=None, cublas_verified=False), "ahead"),
        (row(ours=490.0, cublaslt_verified=False), "ahead"),
    ],
)
def test_the_faster_of_right_results_is_ahead(found: dict[str, Any], expected: str) -> None:
    assert claims.outcome(found) == expected


# Measuring


@pytest.fixture
def contest(quick: Toolchain, support_code: bytes) -> Callable[[int], Contest]:
    """Return a contest on the host in which NumPy stands for the libraries and omits the last `missing` products."""

    def made(missing: int) -> Contest:
        target: Any = SimpleNamespace(toolchain=quick, is_host=True, **ONE_STATE)
        target.caches = lambda own, others: tuple(others)
        libraries: Any = FakeCublas(missing), FakeLt()
        device = KnownHost(support_code=support_code)
        return Contest(device, target, support_code, ONCE, PhaseTimer(), libraries=libraries)

    return made


SQUARE = Cell("G", "column", Problem(5, 5, 40, "f64", "tx"))


@pytest.mark.parametrize(("cell", "others"), [(PRODUCT, ("cublas", "cublaslt")), (SQUARE, ("cublas",))])
def test_all_contestants_compute_the_same_product(contest: Any, cell: Cell, others: tuple[str, ...]) -> None:
    found = contest(0).row(cell, Winner(TSMT, RIGHT, kept=1, outcomes={"ok": 1}))
    assert (found["verified"], found["verdict"], found["cublas_verified"]) == (True, RIGHT.detail, True)
    assert found["cublaslt_verified"] is (False if "cublaslt" in others else None)  # it computes nothing
    for name in CONTESTANTS:
        for state in ("", "_dirty"):
            assert (found[f"{name}{state}_us"] is not None) is (name == "ours" or name in others)
    assert contest(1).row(cell, Winner(TSMT, RIGHT, 1, {"ok": 1}))["cublas_verified"] is False


def test_a_run_goes_on_where_another_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ResultFile(tmp_path / "result.json", dict(FACTS))
    first.add(row(BIG))
    first.skip(SMALL.record, "no time")
    assert read(first.path)["skipped"] == [{**SMALL.record, "skipped": "no time"}]
    second = ResultFile(first.path, {**FACTS, "complete": True})
    second.go_on()
    assert (second.measured(BIG.record), second.measured(SMALL.record)) == (True, False)
    second.add(row(SMALL))
    found = read(first.path)
    assert ([item["run"] for item in found["rows"]], found["earlier_runs"], found["skipped"]) == ([0, 1], [FACTS], [])
    with pytest.raises(InputError, match="measured with driver '580', not '600'"):
        ResultFile(first.path, {**FACTS, "driver": "600"}).go_on()
    before = first.path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        second.add(row(SMALL))
    assert ([path.name for path in tmp_path.iterdir()], first.path.read_bytes()) == (["result.json"], before)


ON_HOST = ["--device", "cpu", "--regime", "R,T", "--layout", "column", "--dtype", "f32", "--each", "1"]
ON_HOST += ["--large", "40:60", "--long", "300:400", "--small", "2:4", "--pack", "pack.py"]


def asked(*arguments: str, status: int = 0) -> str:
    """Return the output of `unseen` on the host, with single spaces for white space."""
    ended = started("unseen", *ON_HOST, *arguments)
    assert ended.exit_code == status, ended.output
    return " ".join(ended.output.split())


@pytest.mark.usefixtures("session_cache", "known_ceilings")
@pytest.mark.slow
def test_unseen_shapes_are_measured_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pack from a result file, the measurement in parts and again, the tables."""
    monkeypatch.setattr(pack, "in_set", lambda record, shape_set: True)
    monkeypatch.setattr(HostDevice, "ceilings", lambda _: CEILINGS)
    monkeypatch.setattr(unseen_run, "PATIENT", replace(versus_cublas.PATIENT, effort=ONCE, final_effort=ONCE))
    monkeypatch.chdir(tmp_path)
    result = ResultFile(Path("winners.json"), dict(FACTS))
    result.add(row(Cell("R", "column", Problem(64, 3, 64, "f32"))))
    of_t = "inner_fma:threads=128,block=4x4,thread=4x4x4,stages=1,splits=16"
    result.add(row(Cell("T", "column", Problem(3, 4, 300, "f32", "tn"))) | {"configuration": of_t})
    assert "pack 1/2 64x3x64:f32: tsm2 " in asked("--pack-only", "--pack-from", "winners.json")
    assert "No shape was searched" in asked("--search-seconds", "0", "--part", "1/2", "--output", "u.json")
    asked("--output", "u.json", status=2)  # it is there
    asked("--search-seconds", "0.1", "--resume", "--output", "u.json")
    first, second = read(Path("u.json"))["rows"]
    assert (first["regime"], second["regime"], first["verified"], second["verified"]) == ("R", "T", True, True)
    assert (first["search_us"], second["search_verified"]) == (None, True)
    assert sum(second["search_trials"].values()) < 20  # of hundreds: its seconds end the search
    assert (first["configuration"], second["configuration"]) == (configuration().text, of_t)
    Path("pack.py").write_text(Path("pack.py").read_text() + "\n")
    assert "was measured with pack" in asked("--resume", "--output", "u.json", status=2)
    said = asked("--searched-in", "u.json", "--output", "again.json")  # beside another pack
    assert "The search of each shape took 0.1 s, and the last search ended by" in said
    (again,) = read(Path("again.json"))["rows"]
    assert (again["regime"], again["search_configuration"]) == ("T", second["search_configuration"])
    assert again["search_verified"]
