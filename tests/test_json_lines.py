"""`--json`: a line of JSON for each event, with the fields that docs/json.md names."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tsm2_tune
from tests.command import TUNE
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
from tests.on_host import ON_HOST
from tests.processes import python
from tsm2_tune.console import json_events
from tsm2_tune.console.json_events import LINES, EventLines
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial_summaries import TrialLine
from tsm2_tune.tuner.runs import events

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


# On this host

ROOT = Path(__file__).parents[1]


def command(path: Path, *arguments: str, trials: str = "1") -> list[str]:
    return [sys.executable, "-m", "tests.quick_command", *TUNE[:-1], trials, "--db", str(path), "--json", *arguments]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def started_in_a_process(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environment(), stdout=pipe, stderr=pipe, text=True, bufsize=1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, session_cache: None) -> tuple[Path, list[Line], str]:
    """The database of a run of two problems, its lines, and what it said on standard error."""
    path = tmp_path_factory.mktemp("lines") / "results.db"
    words = command(path, "--shapes", "64x2x64,33x3x17")
    ended = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return path, lines_of(ended.stdout), ended.stderr


def listing(path: Path) -> tuple[TrialLine, ...]:
    with Store.open(path, create=False) as store:
        return store.listing()


class TestOnHost:
    """Lines alone on standard output, of what is stored, whoever ends the run."""

    pytestmark = ON_HOST

    def test_a_run_prints_lines_alone_and_they_are_of_what_is_stored(
        self, tuned: tuple[Path, list[Line], str]
    ) -> None:
        path, lines, said = tuned
        assert said == ""
        names = [line["event"] for line in lines]
        assert (names[:2], names[-1]) == (["stream", "run_started"], "result")
        assert names.count("problem_started") == names.count("problem_ended") == 2
        for line in lines:
            assert_documented(line)
        stored = {one.id: one for one in listing(path)}
        trials = [line for line in lines if line["event"] == "trial"]
        assert {line["trial_id"] for line in trials} == set(stored)
        for line in trials:
            found = stored[line["trial_id"]]
            assert (line["config"], line["outcome"], line["median_us"]) == (
                found.config,
                found.outcome,
                found.median_us,
            )
        winners = [(row.problem.text, row.trial_id, row.median_us) for row in tsm2_tune.best(path)]
        assert [(one["problem"], one["trial_id"], one["median_us"]) for one in lines[-1]["winners"]] == winners

    @pytest.mark.usefixtures("tuned")
    def test_a_closed_pipe_ends_the_run_and_nothing_is_lost(self, path: Path) -> None:
        with started_in_a_process(*command(path, trials="30")) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            seen = 0
            for line in running.stdout:  # each comes when it happens
                seen = json.loads(line).get("trial_id", 0)
                if seen:
                    break
            assert running.poll() is None
            running.stdout.close()
            said = running.stderr.read()
        assert (running.returncode, said) == (1, "")
        assert seen <= len(listing(path)) < 30

    @pytest.mark.usefixtures("tuned")
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_it_with_a_line_and_a_sentence(self, path: Path, number: signal.Signals) -> None:
        running = started_in_a_process(*command(path, trials="30"))
        assert running.stdout is not None
        while json.loads(running.stdout.readline())["event"] != "trial":
            pass
        running.send_signal(number)
        rest, said = running.communicate(timeout=60.0)
        assert running.returncode == 128 + number
        last = lines_of(rest)[-1]
        assert_documented(last)
        assert (last["event"], last["signal"]) == ("stopped", number.name)
        assert said == f"stopped; every trial that ended is in {path}: run the same command again to continue\n"

    @pytest.mark.usefixtures("tuned")
    def test_the_example_runs(self, tmp_path: Path) -> None:
        (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        assert '["tsm2-tune", ' in example
        here = example.replace('["tsm2-tune", ', f'[{sys.executable!r}, "-m", "tests.quick_command", ')
        ended = python("-c", here, cwd=tmp_path, env=environment())
        assert (ended.returncode, ended.stderr) == (0, "")
        *trials, won, status = ended.stdout.splitlines()
        assert [line.split()[0] for line in trials] == ["1", "2"]
        assert won.startswith("64x2x64:f32 tsm2:")
        assert status == "exit status 0"
