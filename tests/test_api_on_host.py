"""The Python API tunes on this host: events, results, ends that come early, and a script as a user writes it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.on_host import ON_HOST
from tests.processes import python

pytestmark = [*ON_HOST, pytest.mark.usefixtures("known_ceilings")]

ROOT = Path(__file__).parents[1]
SHAPES = ("64x2x64", "33x3x17")


def tuned(path: Path, **options: Any) -> tsm2_tune.TuningResult:
    """Both shapes, one configuration each."""
    plain: dict[str, Any] = {"device": "cpu", "db": path, "family": "tsm2", "max_trials": 1}
    return tsm2_tune.tune(SHAPES, **plain | options)


def test_events_and_the_result_tell_what_is_stored(path: Path) -> None:
    events = list[Any]()
    result = tuned(path, on_event=events.append)
    names = [type(event).__name__ for event in events]
    assert names[0] == "RunStarted"
    assert names.count("ProblemStarted") == names.count("ProblemEnded") == len(SHAPES)
    assert names.count("TrialStored") >= len(SHAPES)
    assert names.index("PairsStarted") > max(at for at, name in enumerate(names) if name == "ProblemEnded")
    assert all("\n" not in str(event) and not str(event).startswith(type(event).__name__) for event in events)
    assert [one.problem.shape for one in result.ended] == list(SHAPES)
    assert (result.unsolved, result.interrupted) == ((), 0)
    assert result.winners == tsm2_tune.best(path)
    assert {row.problem for row in result.winners} == {one.problem for one in result.ended}

    again = tuned(path, device=result.target)
    assert [one.new_trials for one in again.ended] == [0, 0]
    assert again.winners == result.winners
    assert [row.problem.shape for row in tuned(path, pairs=False, max_trials=2).winners] == [
        row.problem.shape for row in result.winners
    ]


def test_what_a_callback_raises_ends_the_run_and_nothing_stored_is_lost(path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, tsm2_tune.TrialStored):
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        tuned(path, on_event=stop)
    result = tuned(path, pairs=False)
    assert [one.new_trials for one in result.ended] == [0, 1]


def test_ctrl_c_ends_a_run_and_leaves_python_s_handler(path: Path) -> None:
    def interrupt(event: object) -> None:
        if isinstance(event, tsm2_tune.ProblemStarted):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert before[0] is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        tuned(path, on_event=interrupt)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_script_needs_no_guard(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import tsm2_tune\n"
        "from tests.quick_command import make_quick\n"
        "make_quick(setattr)\n"
        f"result = tsm2_tune.tune('16x1x16', device='cpu', family='tsm2', max_trials=1, db={str(path)!r},\n"
        "    on_event=print)\n"
        "print(len(result.winners))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = python(script, cwd=ROOT, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert [line.startswith("tuning 1 problem on cpu") for line in lines].count(True) == 1
    assert lines[-1] == "1"
