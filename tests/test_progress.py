"""The display of a run on one device or several: the best beside the vendor, and why a search stopped."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import tsm2_tune
from tests.fabricated import PROBLEM, configuration, ended, started, trial, tuning_run
from tests.on_host import has_compiler
from tests.servers import wait_until
from tsm2_tune.console import run_notes
from tsm2_tune.console.eta import SILENCE_SECONDS, remaining_text
from tsm2_tune.console.export_progress import ExportProgress
from tsm2_tune.console.run_notes import changed_text, spent_text
from tsm2_tune.console.run_progress import RunProgress
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.kernel_sets.pair_timing import Narrowed
from tsm2_tune.tuner.export.kernel_sets.smallest_set import ChoiceStarted
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import (
    Event,
    FinalFailure,
    FleetStarted,
    Noted,
    OfRun,
    PairMeasured,
    PairsStarted,
    ProblemLeft,
    RunEnded,
    RunStarted,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
)
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

OTHER = Problem(20480, 8, 20480, "f32")
NO_WINNER = "no configuration gave a right result"


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no load of this machine be told."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def on_screen(width: int = 200, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=width)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@contextmanager
def shown_on(
    console: Console, problems: int = 1, phases: PhaseTimer | None = None, **options: Any
) -> Iterator[RunProgress]:
    more = {name: options.pop(name) for name in ("pairs", "clock", "long_seconds") if name in options}
    asked = tuple(replace(PROBLEM, m=1 + m) for m in range(problems))
    target: Any = None
    with RunProgress(console, **more) as shown:
        shown.show(RunStarted(target, asked, Options(**options), phases or PhaseTimer()))
        yield shown


def stored(*medians_us: float) -> list[TrialStored]:
    return [TrialStored(trial(us), number) for number, us in enumerate(medians_us, 1)]


def shows(console: Console, *events: Any, problems: int = 1) -> str:
    """Return what is printed while these are told."""
    with shown_on(console, problems) as shown:
        for event in events:
            shown.show(event)
    return printed(console)


# One device


@pytest.mark.parametrize("width", [20, 120])
def test_the_lines_of_progress_are_whole(width: int) -> None:
    said = shows(on_screen(width), started(12800, tried_before=128), *stored(*[123456.7] * 3), problems=12)
    last = said.rpartition("0/12")[2].split()  # Live draws it again and again
    assert last[:1] == ["problems"]
    assert {PROBLEM.text, "131/12800", "123456.7", "13.6", "GB/s,", "0", "%", "floor"} <= set(last)


def test_the_best_is_told_beside_the_vendor_where_a_final_has_measured_it() -> None:
    said = shows(on_screen(), started(vendor_us=600.0), *stored(500.0, 400.0))
    last = " ".join(said.rpartition(PROBLEM.text)[2].split())
    assert last.startswith("2/128 400.0 us, 4.2 TB/s, 1.50 x cuBLAS")


def test_without_a_terminal_lines_tell_what_happened() -> None:
    console, now = on_screen(terminal=False), [0.0]
    with shown_on(console, 12, budget_seconds=120.0, clock=lambda: now[0]) as shown:
        *first, last = stored(500.0, 450.0, 400.0)
        shown.show(started())
        for one in first:
            shown.show(one)
        now[0] = SILENCE_SECONDS
        interrupted = trial(outcome=Outcome.INTERRUPTED, measurement=None, detail="killed")
        reasons = (("libcublas not found", None), ("no such\nproduct", PROBLEM), ("again", None))
        then: list[Event] = [
            last,
            *(VendorLeftOut(problem, detail) for detail, problem in reasons),
            FinalFailure(PROBLEM, "it does not start", interrupted=True),
            TrialInterrupted(interrupted),
            ended(why=Why.GAIN, untried=9, quarantined=1),
        ]
        for event in then:
            shown.show(event)
        for why, untried in ((Why.ALL_TRIED, 0), (Why.MAX_TRIALS, 9), (Why.BUDGET, 9)):
            shown.show(started(12, OTHER))
            shown.show(ended(OTHER, why=why, untried=untried))
    assert printed(console).splitlines() == [
        f"1/12 {PROBLEM.text}: 3 of 128 trials; best 400.0 us, 4.2 TB/s, 100 % of the floor",
        "cuBLAS not measured: libcublas not found, or leave it out with --no-vendor",
        f"{PROBLEM.text}: cuBLAS not measured: no such product",
        f"{PROBLEM.text}: finalists not measured again: it does not start",
        f"{PROBLEM.text} {interrupted.config.text}: interrupted: killed",
        f"1/12 {PROBLEM.text}: {NO_WINNER} (3 new trials, 1 interrupted; no more --gain expected, 9 more possible; 1"
        " quarantined)",
        *(
            f"2/12 {OTHER.text}: {NO_WINNER} (3 new trials; {why})"
            for why in ("all tried", "--max-trials reached, 9 more possible", "--budget spent, 9 more possible")
        ),
    ]


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
    with shown_on(on_screen(), phases=phases, clock=lambda: now[0], pairs=True) as shown:
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
    assert "3/3  verifying the winner: long extents with 64-bit indices" in printed(lines)


def test_the_time_left_says_what_it_does_not_count() -> None:
    """Pairs follow the search, and nothing is left at the end."""
    now = [0.0]
    with shown_on(on_screen(terminal=False), 2, pairs=True, clock=lambda: now[0]) as shown:
        shown.show(started(6))
        assert shown.remaining == ""
        for one in stored(500.0, 500.0, 500.0):
            now[0] += 4.0
            shown.show(one)
        assert shown.remaining == "36 s left, then pairs"
        shown.show(ended())
        shown.show(started(3, OTHER))
        now[0] += 12.0
        for one in stored(500.0, 500.0, 500.0):
            shown.show(one)
        assert shown.remaining == "pairs left"
        shown.show(ended(OTHER))
        assert shown.remaining == ""


# Notes before and after the search


def test_busy_machines_and_wide_intervals_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_notes, "cores", lambda: 2)
    for load, text in ((0.5, ""), (64.5, "note: the load is 64.5 on 2 cores: times will be noisy")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert run_notes.load_text() == text
    rows: list[Any] = [SimpleNamespace(median_us=100.0, low_us=low, high_us=102.0) for low in (90.0, 96.0)]
    noise = run_notes.noise_text(rows, "h.db")
    assert noise.startswith("note: 1 of 2 times are noisy (+- over 5 %)")
    assert "`tsm2-tune confirm --db h.db`" in noise
    assert run_notes.noise_text(rows[1:], "h.db") == ""


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
    assert list(run_notes.next_steps(database)) == [
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


# Several devices

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
    return [line.partition(" (")[0] for line in printed(console).splitlines()]


def test_the_lines_of_several_devices_have_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where one times kernels at other shapes, and the other still searches."""
    crashed = TrialStored(trial(outcome=Outcome.CRASHED, measurement=None, detail="so"), 1)
    begun = (of_run(A), of_run(B, "NVIDIA H100"), begins(A), begins(B), OfRun(A, Noted("it waits")), ends(A))
    pairs = (PairsStarted(), PairMeasured(0, 3), TrialStored(trial(450.0), 1), PairMeasured(1, 3), crashed)
    assert shown_by(*begun, *(OfRun(A, one) for one in pairs), ends(B), begins(B, OTHER), DIES) == [
        f"{A}: NVIDIA H200",
        f"{B}: NVIDIA H100",
        f"{A}: 1/2 {PROBLEM.text}: {NO_WINNER}",
        f"{PROBLEM.text} {configuration().text}: crashed: so",
        f"{B}: 1/2 {PROBLEM.text}: {NO_WINNER}",
        "cross-checked kernels at shapes that they did not win: 1 measured, 1 crashed",
    ]
    assert capsys.readouterr().err.splitlines() == [f"{A}: it waits", f"{B} ended early: {DIES.trouble}"]


FIRST = (of_run(A), of_run(B), begins(A), begins(B))


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ((), {A, B}),
        ((OfRun(A, ProblemLeft(PROBLEM)),), {B}),
        ((DIES,), {A}),
        ((ends(B), begins(B, OTHER)), {A, B}),
        ((ends(B), OfRun(B, PairsStarted()), OfRun(B, PairMeasured(1, 3))), {A, f"{B}  pairs: 1 of 3"}),
    ],
)
def test_each_device_at_work_has_a_line(events: tuple[Event, ...], shown: set[str]) -> None:
    last = "".join(shown_by(*FIRST, *events, terminal=True)).rpartition("problems")[2]
    assert all(name in last for name in shown)
    assert {name for name in (A, B) if name in last} == {name.partition("  ")[0] for name in shown}


def test_pairs_are_counted_by_a_line_now_and_then_without_a_bar() -> None:
    now, console = [0.0], on_screen(terminal=False)
    with shown_on(console, clock=lambda: now[0]) as shown:
        shown.show(PairsStarted())
        for done in range(20):
            now[0] += 4.0
            shown.show(PairMeasured(done, 132))
    seconds = {done: 4.0 * (done + 1) / done * (132 - done) for done in (3, 7, 11, 15, 19)}
    lines = [f"pairs: {done} of 132, {remaining_text(left)}" for done, left in seconds.items()]
    assert printed(console).splitlines() == lines


# The end of a run


@pytest.mark.parametrize(
    ("configs", "winners", "text"),
    [
        ("abc-", "abcd", ""),
        ("abc", "bbc", "1 problem got a faster kernel from another shape: 8x2x8:f32"),
        ("aaaaaa", "bbbbbb", ", 11x2x8:f32, 12x2x8:f32, ..."),
    ],
)
def test_problems_whose_winner_is_anothers_kernel_are_named(configs: str, winners: str, text: str) -> None:
    ended, won = list[Any](), list[Any]()
    for number, config in enumerate(winners):
        won.append(SimpleNamespace(problem=Problem(8 + number, 2, 8, "f32"), config=config))
        before = None if configs[number] == "-" else SimpleNamespace(config=configs[number])
        ended.append(SimpleNamespace(problem=won[-1].problem, winner=before))
    changed = tsm2_tune.TuningResult((), tuple(ended), tuple(won), 0).changed
    assert bool(changed) is bool(text)
    assert not changed or changed_text(changed).endswith(text)


def test_seconds_of_a_run_are_told_by_their_purpose() -> None:
    searched = {"start": 2.0, "ceilings": 0.4, "search": 3.0, "compilers": 6.0, "timing": 1.2}
    searched |= {"the final round": 0.3, "the vendor's routines": 2.0, "full verification: edges": 7.0}
    for first, then, text in (
        (searched, {}, "22 seconds: 2 starting, 10 searching, 2 in finals, 7 verifying winners in full"),
        (
            {"search": 3.0}, {"timing": 4.0, "full verification": 1.0},
            "8 seconds: 3 searching, 5 timing kernels at other shapes",
        ),
        ({}, {}, "0 seconds"),
    ):  # fmt: skip
        assert spent_text(first, then) == text


def test_a_choice_of_kernels_tells_failures_and_later_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, failed = on_screen(terminal=False), TrialStored(trial(1.0, outcome=Outcome.WRONG_RESULT), 1)
    with ExportProgress(console) as shown:
        shown.show(ChoiceStarted("NVIDIA H200", "f32", "nn"))
        shown.show(failed)
        shown.show(TrialStored(trial(1.0), 2))
        monkeypatch.setattr("tsm2_tune.console.export_progress.SILENCE_SECONDS", 0.0)
        shown.show(Narrowed(2, 3))
    far = "f32 nn: 2 candidate kernels, 3 pairs to measure; 2 trials"
    assert printed(console).splitlines() == [str(failed).rstrip(), far]
