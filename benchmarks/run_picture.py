"""Draw the picture of a run in docs/tuning.md: the terminal in the middle of a run, from trials on an H200.

python -m benchmarks.run_picture
"""

from __future__ import annotations

import io
import lzma
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

import tsm2_tune
from tsm2_tune.commands.errors import Command
from tsm2_tune.console.run_progress import RunProgress
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.runs.events import Event, ProblemEnded, ProblemStarted, RunStarted, TrialStored
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

ROOT = Path(__file__).parents[1]
DATABASE = ROOT / "benchmarks/results/h200-pack.db.xz"
PICTURE = ROOT / "docs/pictures/run.svg"
COLUMNS = 120
DTYPE, OP = "f32", "nn"  # element type and op of the problems
ENDED, TRIALS = 3, 20  # finished problems before the displayed one, and its trials so far
FINALS_SECONDS = 2.0  # assumed: a database does not contain the time of finals


def events(store: Store, row: tsm2_tune.BestRow, ids: Sequence[int]) -> Iterator[tuple[float, Event]]:
    """Yield the events of a problem's search with the trials of these numbers, each with its duration in seconds.

    `row` is the winner.
    """
    space = tsm2_tune.plan_space(row.problem, device="h200")
    yield 0.0, ProblemStarted(space, 0, 0.0, None)
    for number in ids:
        trial = store.trial(number).trial
        yield trial.total_seconds, TrialStored(trial, number)
    untried = len(space.kept) - len(ids)
    yield FINALS_SECONDS, ProblemEnded(row.problem, len(ids), len(ids), 0, untried, 0, row, Why.BUDGET)


def drawn(store: Store) -> str:
    """Return the picture as SVG."""
    rows = [row for row in store.best(cache=Cache.CLEAN) if (row.dtype, row.op) == (DTYPE, OP)]
    tried = defaultdict[str, list[int]](list)
    for line in store.listing():
        tried[line.problem].append(line.id)
    now = [0.0]
    dumb = {"TERM": "dumb"}  # a terminal that gets no live lines: they are drawn below
    plain = Console(
        file=io.StringIO(), force_terminal=True, color_system=None, width=COLUMNS, height=25, _environ=dumb
    )
    options = Options(budget_seconds=10.0, cache=Cache.CLEAN)
    started = RunStarted(find_target("cpu"), tuple(row.problem for row in rows), options, PhaseTimer())
    screen = Console(file=io.StringIO(), record=True, force_terminal=True, width=COLUMNS)
    with RunProgress(plain, clock=lambda: now[0]) as shown:
        shown.show(started)
        for place, row in enumerate(rows[: ENDED + 1]):
            found = events(store, row, tried[row.problem.text])
            for seconds, event in islice(found, None if place < ENDED else TRIALS):
                now[0] += seconds
                shown.show(event)
        assert isinstance(plain.file, io.StringIO)
        screen.print(Text(plain.file.getvalue().rstrip()), overflow="fold")
        screen.print(shown)
    return screen.export_svg(title="tsm2-tune", unique_id="run")


@click.command(cls=Command)
def main() -> None:
    """Write docs/pictures/run.svg."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.db"
        path.write_bytes(lzma.decompress(DATABASE.read_bytes()))
        with Store.open(path, create=False) as store:
            PICTURE.write_text(drawn(store), encoding="utf-8")


if __name__ == "__main__":
    main()
