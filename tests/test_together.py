"""Several runs in one display: a line each, a problem that several are at ends once, and pairs come when all do."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.fabricated import PROBLEM, trial, tuning_run
from tsm2_tune.console.run_progress import RunProgress
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import (
    Event,
    FleetStarted,
    Noted,
    OfRun,
    PairMeasured,
    PairsStarted,
    ProblemEnded,
    ProblemLeft,
    ProblemStarted,
    RunEnded,
    RunStarted,
    TrialStored,
)
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

OTHER = Problem(64, 2, 64, "f32")
A, B = "GPU 0", "GPU 1"
DIES = RunEnded(B, "its process was killed by SIGKILL")


def started(run: str, device: str = "NVIDIA H200") -> OfRun:
    target: Any = SimpleNamespace(identity=tuning_run(device).identity, cache=lambda asked: asked, is_host=False)
    return OfRun(run, RunStarted(target, (PROBLEM, OTHER), Options(), PhaseTimer()))


def begins(run: str, problem: Problem = PROBLEM) -> OfRun:
    space: Any = SimpleNamespace(problem=problem, kept=range(128))
    return OfRun(run, ProblemStarted(space, 0, 0.0, None))


def ends(run: str, problem: Problem = PROBLEM, new_trials: int = 3) -> OfRun:
    return OfRun(run, ProblemEnded(problem, new_trials, 3, 0, 0, 0, None, Why.ALL_TRIED))


def shown(*events: Event, terminal: bool = False) -> list[str]:
    """The lines that are printed."""
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=150)
    with RunProgress(console, "results.db", lambda run, name: [f"{name}: {run.target.identity.name}"]) as progress:
        for event in (FleetStarted((A, B), (PROBLEM, OTHER)), *events):
            progress.show(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no load of this machine be told."""
    monkeypatch.setattr("tsm2_tune.console.run_progress.load_text", lambda: "")


def test_each_run_has_its_name() -> None:
    lines = shown(started(A), started(B), begins(A), begins(B, OTHER), ends(B, OTHER), ends(A))
    assert lines[:2] == [f"{A}: NVIDIA H200", f"{B}: NVIDIA H200"]
    assert [line.partition(" (")[0] for line in lines[2:]] == [
        f"{B}: 2/2 {OTHER.text}: no configuration gave a right result",
        f"{A}: 1/2 {PROBLEM.text}: no configuration gave a right result",
    ]


def test_a_device_that_leaves_a_problem_to_another_has_no_line() -> None:
    first = (started(A), started(B), begins(A), begins(B))
    left = OfRun(A, ProblemLeft(PROBLEM))
    frames = ["".join(shown(*events, terminal=True)).rpartition("problems")[2] for events in (first, (*first, left))]
    assert [(A in frame, B in frame) for frame in frames] == [(True, True), (False, True)]
    told = [line for line in shown(*first, left, begins(A, OTHER), ends(B), ends(A, OTHER)) if ": no conf" in line]
    assert [line.partition(":")[0] for line in told] == [B, A]


def test_cards_of_two_kinds_each_end_the_problem() -> None:
    lines = shown(started(A), started(B, "NVIDIA H100"), begins(A), begins(B), ends(B), ends(A))
    assert len([line for line in lines if PROBLEM.text in line]) == 2


def test_a_run_that_dies_is_told_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    first = (started(A), started(B), begins(A), begins(B, OTHER), DIES)
    lines = shown(*first, ends(A), begins(A, OTHER), ends(A, OTHER))
    assert capsys.readouterr().err == f"{B} ended early: its process was killed by SIGKILL\n"
    assert [line.partition(" ")[0] for line in lines[2:]] == ["GPU", "GPU"]


def test_on_a_terminal_the_line_of_a_run_that_dies_is_gone() -> None:
    first = (started(A), started(B), begins(A), begins(B, OTHER))
    frames = ["".join(shown(*events, terminal=True)).rpartition("problems")[2] for events in (first, (*first, DIES))]
    assert [(A in frame, B in frame) for frame in frames] == [(True, True), (True, False)]


def test_pairs_are_shown_once_all_runs_have_come_to_them() -> None:
    measured = trial(450.0)
    in_pairs = [OfRun(A, PairsStarted()), OfRun(A, PairMeasured(1, 3)), OfRun(A, TrialStored(measured, 1))]
    lines = shown(
        started(A), started(B), begins(B), *in_pairs, ends(B), OfRun(B, PairsStarted()), OfRun(B, PairMeasured(0, 3))
    )
    assert lines[-1] == "cross-checked kernels at shapes that they did not win: 1 measured"
    assert PROBLEM.text in lines[-2]


def test_pairs_do_not_wait_for_a_run_that_died() -> None:
    measured = OfRun(A, TrialStored(trial(outcome=Outcome.CRASHED, measurement=None), 1))
    lines = shown(started(A), started(B), begins(B), OfRun(A, PairsStarted()), measured, RunEnded(B, "it died"))
    assert lines[-1] == "cross-checked kernels at shapes that they did not win: 0 measured, 1 crashed"


def test_what_a_run_notes_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    shown(started(A), OfRun(A, Noted("it waits")))
    assert capsys.readouterr().err == f"{A}: it waits\n"
