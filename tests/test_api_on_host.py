"""The Python API tunes on this host: events, results, ends that come early, and a script as a user writes it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.on_host import ON_HOST
from tests.processes import python
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import find_target

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


def test_a_device_in_use_is_refused_or_waited_for(path: Path) -> None:
    target = find_target("cpu")
    events, waits = list[Any](), threading.Event()

    def note(event: object) -> None:
        events.append(event)
        waits.set()

    with device_lock(target):
        with pytest.raises(tsm2_tune.DeviceError, match="is in use by a run of process"):
            tuned(path)
        waiting = threading.Thread(target=tuned, args=(path,), kwargs={"wait": True, "on_event": note})
        waiting.start()
        assert waits.wait(30)
        assert [type(event) for event in events] == [tsm2_tune.Noted]
        assert str(events[0]).endswith("waiting for its end")
    waiting.join()
    assert len(tsm2_tune.best(path)) == len(SHAPES)


def test_an_export_measures_what_the_fewest_kernels_rest_on(path: Path) -> None:
    for shape, family in zip(SHAPES, ("tsm2", "stream_a_fma"), strict=True):
        tsm2_tune.tune(shape, device="cpu", db=path, family=family, max_trials=1, pairs=False)
    events = list[Any]()
    exported = tsm2_tune.export(path, format="json", within="1000%", on_event=events.append)
    assert exported.text is not None
    names = [type(event).__name__ for event in events]
    assert (names[0], names[-1]) == ("ChoiceStarted", "KernelsChosen")
    assert {"Narrowed", "TrialStored"} <= set(names)
    assert all("\n" not in str(event) and not str(event).startswith(type(event).__name__) for event in events)
    assert len({row.config for row in events[-1].selected.rows}) == 1
    assert events[-1].unmeasured_because == ""


def test_a_problem_without_a_winner_is_no_error(path: Path) -> None:
    result = tuned(path, run_limit=0.0001, pairs=False)
    assert [one.text for one in result.unsolved] == [f"{shape}:f32" for shape in SHAPES]
    assert [one.timed_out for one in result.ended] == [1, 1]
    assert result.winners == ()
    assert tuned(path, retry="failed", pairs=False).unsolved == ()


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
