"""The run of the bench: what is skipped, planned ahead and told."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from benchmarks import versus_cublas
from benchmarks.beside_cublas import main as versions_main
from benchmarks.cells import REGIMES, Cell, cells
from benchmarks.result_file import ResultFile, read
from benchmarks.versus_cublas import (
    PATIENT,
    QUICK,
    Selection,
    line_of,
    main,
    measure_cells,
    part_of,
    seconds_text,
    selected,
    troubles,
)
from benchmarks.winner import (
    CELLS_AHEAD,
    MOST_CONFIGURATIONS,
    Prospects,
    Skipped,
    Winner,
    plan,
    planned,
    planners,
    prospects_of,
    room_bytes,
)
from tests.fabricated import configuration
from tests.fabricated_rows import BIG, FACTS, RIGHT, SMALL, WRONG, row
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.phase_timer import PhaseTimer


def test_what_does_not_fit_is_skipped() -> None:
    limits = PROFILES["h200"]
    assert plan(Problem(10_000_000, 8, 8, "f32"), limits)[0] > 0
    with pytest.raises(Skipped, match=r"needs 95\.4 GiB of device memory, of which 6\.0 GiB can be had"):
        plan(Problem(100_000_000, 64, 64, "f64"), PROFILES["k40c"])
    assert room_bytes(limits) < limits.memory_bytes


def test_what_no_family_computes_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsm2_tune.generator.space.space.FAMILIES", {})
    with pytest.raises(Skipped, match="no kernel family computes this product"):
        plan(Problem(100, 8, 8, "f32"), PROFILES["h200"])


# The run


SELECTION = Selection(("R",), ("column",), ("f32",), "quick", seconds=1.0, time_limit=None)


class FakeContest:
    """Measures nothing, and is out of memory for n = 8."""

    def row(self, cell: Cell, winner: Winner) -> dict[str, Any]:
        if cell.problem.n == 8:
            raise Skipped("no room for 1 bytes of device memory")
        return cast(dict[str, Any], row(cell))


@pytest.fixture
def ten_seconds_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run starts at 0, and each cell takes 10 s by the clock that the run looks at."""
    now = [0.0]

    def tuned(tuner: Tuner, prospects: Prospects) -> Winner:
        now[0] += 10.0
        return Winner(configuration(), RIGHT, 1, {"ok": 1})

    monkeypatch.setattr("benchmarks.versus_cublas.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("benchmarks.versus_cublas.tuned", tuned)


def run_of(selection: Selection, path: Path, time_limit: float | None = None) -> tuple[bool, ResultFile]:
    result = ResultFile(path, dict(FACTS))
    contest, tuner = FakeContest(), cast(Tuner, SimpleNamespace(phases=PhaseTimer()))
    found = ((cell, Prospects(cell.problem, 1, ())) for cell in selection.cells)

    def measured(cell: Cell, prospects: Prospects) -> dict[str, Any]:
        return contest.row(cell, versus_cublas.tuned(tuner, prospects))

    return measure_cells(
        tuner.phases, measured, result, found, time_limit=time_limit, start=0.0, verbose=True
    ), result


def test_compilers_work_for_the_cells_to_come() -> None:
    compiled: list[int] = []
    tuner = SimpleNamespace(
        target=SimpleNamespace(limits=PROFILES["h200"]),
        phases=PhaseTimer(),
        options=PATIENT.options(1.0, Cache.DIRTY),
        compile_ahead=lambda candidates: compiled.append(len(candidates)),
    )
    cells = [BIG, Cell("R", "column", Problem(2**31 - 1, 1, 2**31 - 1, "f64")), *[SMALL] * 5]
    found = []
    with ThreadPoolExecutor(1) as pool:
        for number, (cell, prospects) in enumerate(planned(cast(Tuner, tuner), cells, pool)):
            found.append((cell, isinstance(prospects, Skipped)))
            assert len(compiled) == min(number + CELLS_AHEAD, len(cells) - 1)  # one is too large
    assert found == [(cell, number == 1) for number, cell in enumerate(cells)]
    assert set(compiled) == {8}  # as many as the trials of a second


def test_another_process_plans_the_same_search() -> None:
    limits, problem = PROFILES["h200"], Problem(20480, 1, 20480, "f32")
    with planners() as pool:
        prospects = prospects_of(problem, limits, pool.submit(plan, problem, limits))
        too_large = pool.submit(plan, Problem(100_000_000, 64, 64, "f64"), PROFILES["k40c"])
        with pytest.raises(Skipped, match=r"needs 95\.4 GiB of device memory"):
            prospects_of(problem, limits, too_large)
    space = search_space(problem, limits)
    assert prospects.kept == len(space.kept)
    assert prospects.candidates == tuple(ordered(space, 0, candidate_times_us)[:MOST_CONFIGURATIONS])


def test_a_planner_that_died_is_said() -> None:
    tuner = SimpleNamespace(
        target=SimpleNamespace(limits=PROFILES["h200"]),
        phases=PhaseTimer(),
        options=PATIENT.options(1.0, Cache.DIRTY),
    )
    with planners() as pool:
        pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"has died.* run this again with --resume"):
            list(planned(cast(Tuner, tuner), [BIG] * 3, pool))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"rows": ' + "[" * 200_000, "is no result file"),
        ('{"rows": [{"regime": "R"}]}', "no usable"),
        ("", "is no result file"),
    ],
)
def test_a_file_that_cannot_be_resumed_is_left_as_it_is(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    found = CliRunner().invoke(main, ["--resume", "--output", str(path)])
    assert (found.exit_code, found.output.count("\n")) == (2, 1)
    assert sentence in found.output
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("bench", "remedy"),
    [(main, "name another --output, or go on with --resume"), (versions_main, "name another --output")],
)
def test_a_file_of_another_run_is_not_written_over(tmp_path: Path, bench: Command, remedy: str) -> None:
    path = tmp_path / "result.json"
    path.write_text("hours")
    found = CliRunner().invoke(bench, ["--output", str(path)])
    assert (found.exit_code, found.output) == (2, f"Error: {path} exists: {remedy}\n")
    assert path.read_text() == "hours"
    found = CliRunner().invoke(bench, ["--output", str(tmp_path / "none" / "result.json")])
    assert found.exit_code == 2
    assert "is in no folder that exists" in found.output


@pytest.mark.parametrize(
    "arguments",
    [["--seconds", "x"], ["--shapes-of", "none"], ["--nonsense"], ["--regime", "Q"], ["--part", "x"], ["more"]],
)
def test_a_wrong_word_gets_one_line(arguments: list[str]) -> None:
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, found.output.count("\n"), found.output[:7]) == (2, 1, "Error: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "cpu"], "cuBLAS has no host"),
        (["--shapes", "8x8"], "expected MxNxK"),
        (["--dtype", "f8"], "unknown dtype 'f8'"),
        (["--seconds", "nan"], "is not a time"),
        (["--seconds", "0"], "is not in the range"),
    ],
)
def test_the_bench_of_the_versions_refuses_before_it_tunes(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    found = CliRunner().invoke(versions_main, [*arguments, "--output", str(tmp_path / "o.json")])
    assert (found.exit_code, found.output.count("\n")) == (2, 1)
    assert sentence in found.output


def test_parts_are_all_cells_each_once() -> None:
    whole = SELECTION.cells
    parts = [replace(SELECTION, part=part_of(f"{number}/3")) for number in (1, 2, 3)]
    assert sorted(cell.text for part in parts for cell in part.cells) == sorted(cell.text for cell in whole)
    assert parts[1].command.endswith(" --part 2/3")
    for text in ("0/3", "4/3", "1", "1/0", "a/b", ""):
        with pytest.raises(InputError, match="expected such as 1/4"):
            part_of(text)


@pytest.mark.parametrize(
    ("seconds", "time_limit", "part", "sentence"),
    [
        (-1.0, None, "1/1", "--seconds -1: expected a number above 0"),
        (float("nan"), None, "1/1", "--seconds nan: expected a number above 0"),
        (1.0, float("nan"), "1/1", "--time-limit nan: expected a number above 0"),
        (1.0, None, "9999/9999", "part 9999/9999 of the selection has no cell"),
    ],
)
def test_what_could_not_be_measured_is_refused(
    seconds: float, time_limit: float | None, part: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        selected("R", "column", "f32", "quick", seconds, time_limit, part)


@pytest.mark.usefixtures("ten_seconds_a_cell")
def test_every_cell_is_measured_or_skipped(tmp_path: Path) -> None:
    complete, result = run_of(SELECTION, tmp_path / "result.json")
    assert complete
    assert [item["n"] for item in result.rows] == [2, 16, 32]
    assert [item["n"] for item in result.skipped] == [8]
    assert read(result.path)["rows"] == result.rows


@pytest.mark.usefixtures("ten_seconds_a_cell")
def test_no_cell_is_begun_that_would_pass_the_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete, result = run_of(SELECTION, tmp_path / "result.json", time_limit=25.0)
    assert not complete
    assert len(result.rows) + len(result.skipped) == 2
    said = capsys.readouterr().out
    assert "stopped by the time limit before R column 20480x16x20480:f32" in said
    assert "in all: " in said


def test_the_command_names_no_path() -> None:
    assert SELECTION.command == (
        "python -m benchmarks.versus_cublas --regime R --layout column --dtype f32 --shapes-of quick --seconds 1"
        " --cache dirty"
    )


def test_quick_takes_about_two_minutes() -> None:
    count = len(cells(REGIMES, tuple(QUICK.layouts.split(",")), ("f32", "f64"), "quick"))  # type: ignore[arg-type]
    assert count * (QUICK.seconds + 1.5) < 130


def test_a_short_search_does_not_dwell_on_long_kernels() -> None:
    short, long = PATIENT.options(1.0, Cache.DIRTY), PATIENT.options(PATIENT.seconds, Cache.DIRTY)
    assert short.budget_seconds == 1.0
    assert (short.effort.limit_seconds, short.final_effort.limit_seconds) == pytest.approx((0.1, 0.05))
    assert (long.effort, long.final_effort) == (Effort(), PATIENT.final_effort)


def test_phases_are_told_with_the_longest_first() -> None:
    assert seconds_text({"search": 0.001, "turns": 0.25, "probes": 1.0}) == "1.25 s: probes 1.00, turns 0.25"


def test_a_wrong_winner_is_no_success() -> None:
    assert troubles([row()]) == ""
    assert troubles([]) == "no cell was measured"
    assert troubles([row(), row(verdict=WRONG)]) == "wrong results of 1 winners: R 20480x8x20480:f32"
    assert "WRONG: C[0, 0] is wrong" in line_of(row(verdict=WRONG))
