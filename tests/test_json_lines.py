"""`--json`: a line of JSON for each event, with the fields that docs/json.md names."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.event_lines import FIELDS, PAGE, Line, assert_documented, lines_of
from tests.fabricated import PROBLEM, configuration, final, trial, tuning_run, vendor_measurement
from tsm2_tune.api.tune import TuningResult
from tsm2_tune.console import json_events
from tsm2_tune.console.json_events import LINES, EventLines
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs import events
from tsm2_tune.tuner.runs.signals import Stopped
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

OBJECTS = {"winner", "times", "progress"}  # headings that are of no line
HOSTILE = "C[3, 1] = \x1b[31m2\n\u2028\ud800"


@pytest.fixture
def winner(path: Path) -> BestRow:
    with Store.open(path, create=True) as store:
        store.add_trial(tuning_run(), trial(500.0))
        return store.best()[0]


def run_started() -> events.RunStarted:
    target: Any = SimpleNamespace(identity=tuning_run().identity, cache=lambda asked: asked)
    return events.RunStarted(target, (PROBLEM,), Options(cache=Cache.CLEAN, budget_seconds=60.0), PhaseTimer())


def every_event(winner: BestRow | None) -> Iterator[events.Event]:
    """One of each kind, in an order in which they may come."""
    space: Any = SimpleNamespace(problem=PROBLEM, kept=range(128))
    measured = final((configuration(), 460.0), vendor=(vendor_measurement(690.0),))
    yield events.FleetStarted(("GPU 0", "GPU 1"), (PROBLEM,))
    yield events.RunEnded("GPU 1", "its process was killed by SIGKILL")
    yield events.Noted("another run has the device")
    yield run_started()
    yield events.ProblemStarted(space, 0, 0.0, None, 900.0)
    yield events.TrialStored(trial(450.0), 57)
    yield events.TrialStored(
        trial(outcome=Outcome.COMPILE_FAILED, measurement=None, resources=None, detail=HOSTILE), 58
    )
    yield events.TrialInterrupted(trial(outcome=Outcome.INTERRUPTED, measurement=None))
    yield events.FinalStored(measured)
    yield events.FinalFailure(PROBLEM, "it does not start", interrupted=True)
    yield events.WinnerVerified(PROBLEM, 57, configuration().text, Outcome.OK, "right")
    yield events.VendorLeftOut(None, "libcublas not found")
    yield events.ProblemLeft(PROBLEM)
    yield events.ProblemEnded(PROBLEM, 3, 2, 0, 125, 1, winner, Why.BUDGET, quarantined=2)
    yield events.PairsStarted()
    yield events.PairMeasured(1, 2)
    yield events.TrialStored(trial(450.0), 59)


@pytest.fixture
def lines(winner: BestRow, capsys: pytest.CaptureFixture[str]) -> list[Line]:
    """Return the lines of a run in which every event happens."""
    target: Any = None
    told = list(every_event(winner))
    with EventLines("results.db") as shown:
        for event in told:
            shown.show(event)
    ended = tuple(one for one in told if isinstance(one, events.ProblemEnded))
    shown.end(TuningResult(target, ended, (winner,), 1))
    out = capsys.readouterr().out
    assert out.isascii(), "no terminal would obey it"
    assert "\x1b" not in out
    return lines_of(out)


def named(lines: Sequence[Line], name: str) -> Line:
    return next(line for line in lines if line["event"] == name)


def test_lines_have_the_fields_that_are_documented(lines: list[Line]) -> None:
    for line in lines:
        assert_documented(line)
    here = {line["event"] for line in lines} - {"trial_interrupted"}
    assert here | {"heartbeat", "stopped"} == set(FIELDS) - OBJECTS


def test_objects_have_the_fields_that_are_documented(lines: list[Line]) -> None:
    assert set(named(lines, "trial")["progress"]) == FIELDS["progress"]
    assert set(named(lines, "problem_ended")["winner"]) == FIELDS["winner"]
    assert set(named(lines, "result")["winners"][0]) == FIELDS["winner"]
    measured = named(lines, "final")
    assert set(measured["finalists"][0]) == FIELDS["times"] | {"config"}
    assert set(measured["vendor"][0]) == FIELDS["times"] | {"library", "version", "routine", "correct"}


def test_every_event_of_a_tuning_has_a_line() -> None:
    of_other_commands = {events.Confirmed}
    assert set(LINES) == set(events.Event.__args__) - of_other_commands - {events.OfRun}


def test_a_line_of_one_of_several_runs_has_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with EventLines("results.db") as shown:
        shown.show(events.OfRun("GPU 1", events.Noted("it waits")))
    *_, line = lines_of(capsys.readouterr().out)
    assert (line["event"], line["run"], line["text"]) == ("note", "GPU 1", "it waits")


def test_the_first_line_has_the_version_of_the_names(lines: list[Line]) -> None:
    assert (lines[0]["event"], lines[0]["schema"]) == ("stream", json_events.SCHEMA)
    assert f"version of these names and meanings: {json_events.SCHEMA}" in PAGE


def test_lines_say_what_a_person_sees(lines: list[Line]) -> None:
    right, failed = (line for line in lines if line["event"] == "trial" and line["progress"])
    assert (right["trial_id"], right["config"], right["median_us"]) == (57, configuration().text, 450.0)
    assert (failed["outcome"], failed["median_us"], failed["registers"]) == ("compile-failed", None, None)
    assert failed["detail"] == HOSTILE
    progress = right["progress"]
    assert (progress["tried"], progress["total"], progress["x_cublas"]) == (1, 128, 2.0)
    assert named(lines, "final")["progress"]["x_cublas"] == 1.5
    ended = named(lines, "problem_ended")
    assert (ended["stop_reason"], ended["untried"], ended["winner"]["trial_id"]) == ("budget", 125, 1)
    assert ended["quarantined"] == 2
    assert (lines[-2]["trial_id"], lines[-2]["progress"]) == (59, None), "no search runs"
    assert (lines[-1]["event"], lines[-1]["complete"], lines[-1]["interrupted"]) == ("result", False, 1)


def test_runs_that_share_problems_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with EventLines("results.db") as shown:
        for one in ("GPU 0", "GPU 1"):
            for event in every_event(None):
                shown.show(event, one)
    found = lines_of(capsys.readouterr().out)[1:]
    assert {line["run"] for line in found} == {"GPU 0", "GPU 1"}


@pytest.mark.slow
def test_a_long_silence_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(json_events, "LONG_SECONDS", 0.1)
    found: list[Line] = []
    with EventLines("results.db") as shown:
        time.sleep(0.3)
        assert "heartbeat" not in capsys.readouterr().out, "the run has not started"
        started = run_started()
        shown.show(started)
        started.phases.enter("compilers")
        end = time.monotonic() + 10.0
        while not found and time.monotonic() < end:
            time.sleep(0.02)
            found = [line for line in lines_of(capsys.readouterr().out) if line["event"] == "heartbeat"]
    assert_documented(found[0])
    assert found[0]["phase"] == "compilers"


def test_a_signal_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> None:
        with EventLines("results.db") as shown:
            shown.show(run_started())
            raise Stopped(signal.SIGTERM)

    with pytest.raises(Stopped):
        stopped()
    last = lines_of(capsys.readouterr().out)[-1]
    assert_documented(last)
    assert last["signal"] == "SIGTERM"
