"""`--json`: a line of JSON for each event, with the fields that docs/json.md names."""

from __future__ import annotations

import signal
import time

import pytest

from tests.event_lines import (
    FIELDS,
    PAGE,
    TRANSCRIPT,
    Line,
    assert_documented,
    every_event,
    lines_of,
    run_started,
    show_every_event,
    without_times,
)
from tests.fabricated import trial, tuning_run
from tsm2_tune.console import json_events
from tsm2_tune.console.json_events import LINES, EventLines
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import events
from tsm2_tune.tuner.runs.signals import Stopped

OBJECTS = {"winner", "times", "progress"}  # headings that are of no line


@pytest.fixture
def printed(store: Store, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a run prints in which every event happens."""
    store.add_trial(tuning_run(), trial(500.0))
    show_every_event(store.best()[0])
    return capsys.readouterr().out


def test_lines_are_those_of_the_transcript(printed: str) -> None:
    assert printed.isascii(), "no terminal would obey it"
    assert "\x1b" not in printed
    assert without_times(printed) == TRANSCRIPT.read_text(encoding="utf-8"), "python -m tests.event_lines"


def test_lines_have_the_fields_that_are_documented(printed: str) -> None:
    lines = lines_of(printed)
    for line in lines:
        assert_documented(line)
    here = {line["event"] for line in lines} - {"trial_interrupted"}
    assert here | {"heartbeat", "stopped"} == set(FIELDS) - OBJECTS
    first = {line["event"]: line for line in reversed(lines)}
    assert set(first["trial"]["progress"]) == FIELDS["progress"]
    assert set(first["problem_ended"]["winner"]) == set(first["result"]["winners"][0]) == FIELDS["winner"]
    assert set(first["final"]["finalists"][0]) == FIELDS["times"] | {"config"}
    assert set(first["final"]["vendor"][0]) == FIELDS["times"] | {"library", "version", "routine", "correct"}
    assert f"version of these names and meanings: {json_events.SCHEMA}" in PAGE


def test_every_event_of_a_tuning_has_a_line() -> None:
    of_other_commands = {events.Confirmed}
    assert set(LINES) == set(events.Event.__args__) - of_other_commands - {events.OfRun}


def test_runs_that_share_problems_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with EventLines("results.db") as shown:
        for one in ("GPU 0", "GPU 1"):
            for event in every_event(None):
                shown.show(event, one)
    found = lines_of(capsys.readouterr().out)[1:]
    assert {line["run"] for line in found} == {"GPU 0", "GPU 1"}


@pytest.mark.slow
def test_a_long_silence_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[Line] = []
    with EventLines("results.db", long_seconds=0.1) as shown:
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
