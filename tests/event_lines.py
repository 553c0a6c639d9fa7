"""Lines of `--json`: their reader, their description in docs/json.md, and those of every event."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tsm2_tune
from tests.fabricated import PROBLEM, configuration, final, trial, tuning_run, vendor_measurement
from tsm2_tune.console.json_events import EventLines
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs import events
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

PAGE = (Path(__file__).parents[1] / "docs/json.md").read_text(encoding="utf-8")
TRANSCRIPT = Path(__file__).parent / "printed" / "events.jsonl"
OF_EVERY_LINE = {"event", "time"}
HOSTILE = "C[3, 1] = \x1b[31m2\n\u2028\ud800"

Line = dict[str, Any]


def documented() -> dict[str, set[str]]:
    """Heading of a line or an object -> the fields in its table."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, rest = part.partition("\n")
        cells = re.findall(r"^\| ([^|]*`[^|]*) \|", rest.partition("\n## ")[0], re.MULTILINE)
        found[heading] = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    return found


FIELDS = documented()


def lines_of(text: str) -> list[Line]:
    """Each line is one object; nothing else is there."""
    assert text == "" or text.endswith("\n")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    assert all(isinstance(line, dict) for line in lines)
    return lines


def assert_documented(line: Line) -> None:
    """The line has the fields that its heading names, and no other ones but the name of its run."""
    name = line["event"]
    expected = FIELDS["trial"] - {"trial_id"} if name == "trial_interrupted" else FIELDS[name]
    assert set(line) - {"run"} == OF_EVERY_LINE | expected - {"run"}, name


# Every event


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
    yield events.OfRun("GPU 1", events.Noted("it waits"))
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


def show_every_event(winner: BestRow) -> None:
    """Print the lines of a run in which every event happens, and of its result."""
    target: Any = None
    told = list(every_event(winner))
    with EventLines("results.db") as shown:
        for event in told:
            shown.show(event)
    ended = tuple(one for one in told if isinstance(one, events.ProblemEnded))
    shown.end(tsm2_tune.TuningResult(target, ended, (winner,), 1))


def without_times(printed: str) -> str:
    """Return the lines without what differs from run to run."""
    printed = re.sub(r'"time": "[^"]+"', '"time": "NOW"', printed)
    printed = re.sub(r'"remaining_seconds": [0-9.]+', '"remaining_seconds": "SOME"', printed)
    return printed.replace(f'"version": "{tsm2_tune.__version__}"', '"version": "OWN"')


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "results.db"), create=True) as store:
        store.add_trial(tuning_run(), trial(500.0))
        with redirect_stdout(io.StringIO()) as out:
            show_every_event(store.best()[0])
    TRANSCRIPT.write_text(without_times(out.getvalue()), encoding="utf-8")
