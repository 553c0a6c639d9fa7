"""The display of a run: the best beside the vendor, a time left that never jumps, and why a search stopped."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.fabricated import PROBLEM, ended, started, trial, tuning_run
from tests.on_host import has_compiler
from tests.servers import wait_until
from tsm2_tune.console import run_progress
from tsm2_tune.console import search_progress as progress
from tsm2_tune.console.run_progress import RunProgress
from tsm2_tune.console.search_progress import SearchProgress
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import (
    Event,
    FleetStarted,
    Noted,
    OfRun,
    PairMeasured,
    PairsStarted,
    ProblemLeft,
    RunEnded,
    RunStarted,
    TrialStored,
)
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

OTHER = Problem(20480, 8, 20480, "f32")


def on_screen(width: int = 200, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=width)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown_on(console: Console, problems: int = 1, phases: PhaseTimer | None = None, **options: Any) -> SearchProgress:
    more = {name: options.pop(name) for name in ("next_phase", "clock", "long_seconds") if name in options}
    return SearchProgress(console, Options(**options), problems, phases or PhaseTimer(), **more)


def stored(*medians_us: float) -> list[TrialStored]:
    return [TrialStored(trial(us), number) for number, us in enumerate(medians_us, 1)]


def shows(console: Console, *events: Any, problems: int = 1) -> str:
    """Return what is printed while these are told."""
    with shown_on(console, problems) as shown:
        for event in events:
            shown.show(event)
    return printed(console)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_lines_of_progress_are_whole(width: int) -> None:
    said = shows(on_screen(width), started(12800, tried_before=128), *stored(*[123456.7] * 3), problems=12)
    last = said.rpartition("0/12")[2].split()  # Live draws it again and again
    assert last[:1] == ["problems"]
    assert {PROBLEM.text, "131/12800", "left,", "finals", "123456.7", "13.6", "GB/s,", "0", "%", "floor"} <= set(last)


def test_the_best_is_told_beside_the_vendor_where_a_final_has_measured_it() -> None:
    said = shows(on_screen(), started(vendor_us=600.0), *stored(500.0, 400.0))
    last = " ".join(said.rpartition(PROBLEM.text)[2].split())
    assert last.startswith("2/128 400.0 us, 4.2 TB/s, 1.50 x cuBLAS")


def test_where_no_bar_tells_trials_and_problems_are_counted() -> None:
    console, now = on_screen(terminal=False), [0.0]
    with shown_on(console, 12, budget_seconds=120.0, clock=lambda: now[0]) as shown:
        shown.show(started())
        *first, last = stored(500.0, 450.0, 400.0)
        for one in first:
            shown.show(one)
        now[0] = progress.SILENCE_SECONDS
        shown.show(last)
    of_best = r"best 400\.0 us, .* of the floor"
    counted = rf"1/12 {PROBLEM.text}: 3 of 128 trials, \d+ (s|min) of search left, then finals; {of_best}\n"
    assert re.fullmatch(counted, printed(console))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "all tried"),
        ({"why": Why.MAX_TRIALS, "untried": 9}, "--max-trials reached, 9 more possible"),
        ({"why": Why.BUDGET, "untried": 9}, "--budget spent, 9 more possible"),
        (
            {"why": Why.GAIN, "untried": 9, "quarantined": 1},
            "no more --gain expected, 9 more possible; 1 quarantined",
        ),
    ],
)
def test_a_line_says_why_a_search_stopped(changes: dict[str, Any], why: str) -> None:
    said = shows(on_screen(terminal=False), started(12), ended(**changes))
    assert said == f"{PROBLEM.text}: no configuration gave a right result (3 new trials; {why})\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_signal_interrupts_is_told(terminal: bool) -> None:
    console = on_screen(terminal=terminal)
    with suppress(Stopped), shown_on(console, 12) as shown:
        shown.show(started())
        shown.show(stored(400.0)[0])
        raise Stopped
    number = "" if terminal else "1/12 "
    best = "best 400.0 us, 4.2 TB/s, 100 % of the floor"
    assert printed(console).endswith(f"{number}{PROBLEM.text}: interrupted, 1 of 128 tried; {best}\n")


def test_runs_that_share_problems_have_a_line_each() -> None:
    console, plain = on_screen(), on_screen(terminal=False)
    runs = (("GPU 0", PROBLEM), ("GPU 1", OTHER), ("GPU 2", PROBLEM))
    with shown_on(console, 3) as shown:
        for (run, problem), median_us in zip(runs[:2], (400.0, 7.0), strict=True):
            shown.show(started(problem=problem), run)
            shown.show(TrialStored(trial(median_us, problem=problem), 1), run)
    for line in (f"GPU 0  {PROBLEM.text}  1/128  400.0 us", f"GPU 1  {OTHER.text}  1/128  7.0 us"):
        assert printed(console).rpartition("0/3 problems")[2].count(line) == 1
    with shown_on(plain, 3) as shown:
        for run, problem in runs:
            shown.show(started(0, problem), run)
        for run, problem in runs:
            shown.show(ended(problem, 0), run)
    numbered = zip(runs, (1, 2, 1), strict=True)
    told = [f"{run}: {number}/3 {problem.text}: nothing tried" for (run, problem), number in numbered]
    assert [line.partition(" (")[0] for line in printed(plain).splitlines()] == told


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_trial_is_not_silent(terminal: bool) -> None:
    """A line after a while, then twice as long after that, and so on; anew after each event."""
    console, phases = on_screen(terminal=terminal), PhaseTimer()
    with shown_on(console, 2, phases, long_seconds=0.2) as shown:
        time.sleep(0.3)
        assert printed(console).count(" s)") == 0, "there is no problem yet"
        shown.show(started())
        phases.enter("compilers")
        wait_until(lambda: printed(console).count(": compiling (") >= 2)
        phases.enter("timing")
        shown.show(TrialStored(trial(500.0), 1))
        wait_until(lambda: ": timing (" in printed(console))
        shown.show(ended())
        before = printed(console)
        time.sleep(0.5)
        assert " s)" not in printed(console)[len(before) :], "the problem has ended"
    pattern = rf"{'' if terminal else '1/2 '}20480x16x20480:f32: compiling \(\d+ s\)"
    assert len(re.findall(pattern, before)) >= 2


def test_finals_show_their_phase_and_no_time_that_is_not_known() -> None:
    now, phases, lines = [0.0], PhaseTimer(), Console(file=io.StringIO(), width=200)
    with shown_on(on_screen(), phases=phases, clock=lambda: now[0], next_phase="pairs") as shown:
        shown.show(started(3))
        phases.enter("compilers")
        lines.print(shown)
        assert "0/3  compiling" in printed(lines)
        for one in stored(400.0, 400.0, 400.0):
            now[0] += 1.0
            shown.show(one)
        phases.enter("full verification: long extents with 64-bit indices")
        now[0] += 60.0
        lines.print(shown)
    assert "3/3  finals and pairs left  verifying the winner: long extents with 64-bit indices" in printed(lines)


def test_the_time_left_says_what_it_does_not_count() -> None:
    """The first problem's finals take an unknown time; pairs follow the search; nothing is left at the end."""
    with shown_on(on_screen(terminal=False), 2, next_phase="pairs") as shown:
        shown.show(started())
        for one in stored(500.0, 500.0, 500.0):
            shown.show(one)
        assert re.fullmatch(r"\d+ (s|min) of search left, then finals, then pairs", shown.remaining)
        shown.show(ended())
        assert re.fullmatch(r"\d+ (s|min) left, then pairs", shown.remaining)
        shown.show(started(problem=OTHER))
        shown.show(ended(OTHER))
        assert shown.remaining == ""


@pytest.mark.parametrize(("load", "warns"), [(0.5, False), (64.5, True)])
def test_a_busy_machine_is_told_before_the_search(load: float, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert run_progress.load_text() == ("note: the load is 64.5 on 2 cores: times will be noisy" if warns else "")


def test_wide_intervals_are_told_after_the_table() -> None:
    rows: list[Any] = [SimpleNamespace(median_us=100.0, low_us=low, high_us=102.0) for low in (90.0, 96.0)]
    assert run_progress.noise_text(rows, "h.db").startswith("note: 1 of 2 times are noisy (+- over 5 %)")
    assert "`tsm2-tune confirm --db h.db`" in run_progress.noise_text(rows, "h.db")
    assert run_progress.noise_text(rows[1:], "h.db") == ""


@pytest.mark.parametrize(
    ("is_on_path", "database", "place"), [(True, "results.db", ""), (False, "a b.db", " --db 'a b.db'")]
)
def test_a_run_ends_in_the_next_two_commands_as_they_are_typed(
    database: str, place: str, is_on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tsm2-tune").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if is_on_path else "/nowhere")
    monkeypatch.setattr(sys, "argv", [".venv/bin/tsm2-tune"])
    typed = "tsm2-tune" if is_on_path else ".venv/bin/tsm2-tune"
    assert list(run_progress.next_steps(database)) == [
        f"next: {typed} best{place}",
        f"      {typed} export -o best_kernels.py{place}",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_first_line_waits_for_no_compiler(tmp_path: Path) -> None:
    hanging = tmp_path / "c++"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o700)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tsm2_tune", "--shapes", "64x2x64", "--dtype", "f32,f64", "--device", "cpu"]
    told = os.environ | {"CXX": str(hanging), "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=told) as started:
        os.close(theirs)
        with open(ours, encoding="utf-8") as terminal:
            assert terminal.readline() == "tuning 2 problems on device cpu\n"
            started.terminate()


A, B = "GPU 0", "GPU 1"
DIES = RunEnded(B, "its process was killed by SIGKILL")


def of_run(run: str, device: str = "NVIDIA H200") -> OfRun:
    target: Any = SimpleNamespace(identity=tuning_run(device).identity, cache=lambda asked: asked, is_host=False)
    return OfRun(run, RunStarted(target, (PROBLEM, OTHER), Options(), PhaseTimer()))


def begins(run: str, problem: Problem = PROBLEM) -> OfRun:
    return OfRun(run, started(problem=problem))


def ends(run: str, problem: Problem = PROBLEM) -> OfRun:
    return OfRun(run, ended(problem))


def shown_by(*events: Event, terminal: bool = False) -> list[str]:
    """The lines that are printed."""
    console = on_screen(150, terminal=terminal)
    with RunProgress(console, "results.db", lambda run, name: [f"{name}: {run.target.identity.name}"]) as progress:
        for event in (FleetStarted((A, B), (PROBLEM, OTHER)), *events):
            progress.show(event)
    return printed(console).splitlines()


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no load of this machine be told."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def test_each_run_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    noted = OfRun(A, Noted("it waits"))
    lines = shown_by(of_run(A), of_run(B), begins(A), begins(B, OTHER), noted, ends(B, OTHER), ends(A))
    assert lines[:2] == [f"{A}: NVIDIA H200", f"{B}: NVIDIA H200"]
    assert [line.partition(" (")[0] for line in lines[2:]] == [
        f"{B}: 2/2 {OTHER.text}: no configuration gave a right result",
        f"{A}: 1/2 {PROBLEM.text}: no configuration gave a right result",
    ]
    assert capsys.readouterr().err == f"{A}: it waits\n"
    of_two_kinds = shown_by(of_run(A), of_run(B, "NVIDIA H100"), begins(A), begins(B), ends(B), ends(A))
    assert len([line for line in of_two_kinds if PROBLEM.text in line]) == 2  # each ends the problem


def frames(*sequences: tuple[Event, ...]) -> list[tuple[bool, bool]]:
    """Whether the last frame on a terminal has a line of A and of B, after each sequence of events."""
    last = ["".join(shown_by(*events, terminal=True)).rpartition("problems")[2] for events in sequences]
    return [(A in frame, B in frame) for frame in last]


def test_a_device_that_leaves_a_problem_to_another_has_no_line() -> None:
    first = (of_run(A), of_run(B), begins(A), begins(B))
    left = OfRun(A, ProblemLeft(PROBLEM))
    assert frames(first, (*first, left)) == [(True, True), (False, True)]
    told = [line for line in shown_by(*first, left, begins(A, OTHER), ends(B), ends(A, OTHER)) if ": no conf" in line]
    assert [line.partition(":")[0] for line in told] == [B, A]


def test_a_run_that_dies_is_told_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    first = (of_run(A), of_run(B), begins(A), begins(B, OTHER))
    lines = shown_by(*first, DIES, ends(A), begins(A, OTHER), ends(A, OTHER))
    assert capsys.readouterr().err == f"{B} ended early: its process was killed by SIGKILL\n"
    assert [line.partition(" ")[0] for line in lines[2:]] == ["GPU", "GPU"]
    assert frames(first, (*first, DIES)) == [(True, True), (True, False)]


def test_pairs_are_shown_once_all_runs_have_come_to_them_or_died() -> None:
    in_pairs = [OfRun(A, PairsStarted()), OfRun(A, PairMeasured(1, 3)), OfRun(A, TrialStored(trial(450.0), 1))]
    comes = [ends(B), OfRun(B, PairsStarted()), OfRun(B, PairMeasured(0, 3))]
    lines = shown_by(of_run(A), of_run(B), begins(B), *in_pairs, *comes)
    assert lines[-1] == "cross-checked kernels at shapes that they did not win: 1 measured"
    assert PROBLEM.text in lines[-2]
    crashed = OfRun(A, TrialStored(trial(outcome=Outcome.CRASHED, measurement=None), 1))
    lines = shown_by(of_run(A), of_run(B), begins(B), OfRun(A, PairsStarted()), crashed, RunEnded(B, "it died"))
    assert lines[-1] == "cross-checked kernels at shapes that they did not win: 0 measured, 1 crashed"
