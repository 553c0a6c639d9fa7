"""`export --within`: what the terminal shows while it measures, and the table of what kernels buy."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column

from tsm2_tune.display import SILENCE_SECONDS, one_line, print_line, print_table
from tsm2_tune.errors import TuneError
from tsm2_tune.tuner import job
from tsm2_tune.tuner.crossing import Crossed
from tsm2_tune.tuner.export.measuring import Bench, Event, Narrowed, Search
from tsm2_tune.tuner.export.pairs import Selected, Tuned, percent, refuse_stale
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.target import Target, find_target, spec_of
from tsm2_tune.tuner.trial import Cache, Outcome
from tsm2_tune.tuner.tune import FinalFailure, Options


@dataclass(frozen=True, slots=True)
class Fewest:
    """What stands for winners: rows of the fewest kernels that keep their shapes within a share of the best time."""

    store: Store
    within: float
    options: Options
    measures: bool
    console: Console
    wait: Callable[[str], object] | None

    def __call__(self, winners: Sequence[BestRow]) -> list[BestRow]:
        """A row for each winner, in the same order, of the kernel that is chosen for its shape.

        InputError where a winner is stale, and where no kernel serves a shape.
        """
        for row in winners:
            refuse_stale(row, self.store)
        found: list[tuple[Selected, str]] = []  # and why nothing was measured
        ordered = sorted(winners, key=lambda row: (row.device, row.cache, row.dtype, row.op))
        for (device, cache), of_device in groupby(ordered, key=lambda row: (row.device, Cache(row.cache))):
            with self._bench(device, cache) as (bench, why):
                for _, group in groupby(of_device, key=lambda row: (row.dtype, row.op)):
                    found.append(self._selected(device, list(group), bench, why))
        for selected, why in found:
            print_selected(selected, self.console, why)
        rows = {(row.device, row.problem): row for selected, _ in found for row in selected.rows}
        return [rows[row.device, row.problem] for row in winners]

    @contextmanager
    def _bench(self, device: str, cache: Cache) -> Iterator[tuple[Bench | None, str]]:
        """What measures on the device, in this state of its L2, or why nothing does."""
        target = self._target(device) if self.measures else "--no-measure"
        if isinstance(target, str):
            yield None, target
        else:
            with Bench(target, replace(self.options, cache=cache), self.store, self.wait) as bench:
                yield bench, ""

    def _target(self, device: str) -> Target | str:
        try:
            spec = spec_of(device)
            return "the device is not here" if spec is None else find_target(spec)
        except TuneError as error:  # without a compiler, for one
            return str(error)

    def _selected(
        self, device: str, winners: Sequence[BestRow], bench: Bench | None, why: str
    ) -> tuple[Selected, str]:
        problems, cache = [row.problem for row in winners], Cache(winners[0].cache)
        tuned = Tuned(self.store, device, problems, self.within, cache)
        tuned.keep_to(bench.bases(tuned) if bench is not None else None)
        if bench is not None and not tuned.winners_count():
            bench, why = None, "winners are of another compiler or version than is here"
            tuned.keep_to(None)
        if bench is None:
            return tuned.selected(), why
        search = Search(tuned, bench)
        with Measuring(self.console, f"{winners[0].dtype} {winners[0].op}") as shown:
            for event in search.events():
                shown.show(event)
        selected = tuned.selected()
        return replace(selected, is_proven=len({*selected.kernels}) == search.least), why


class Measuring:
    """Shows how far it is with trials that no search of a shape suggests. Use as a context manager.

    `counts` names of what it says how many there were.
    """

    def __init__(self, console: Console, what: str, counts: Sequence[str] = ("trial", "final")) -> None:
        self._what = what
        text = TextColumn("{task.description}", table_column=Column(), markup=False)
        self._progress = Progress(SpinnerColumn(), text, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=None)
        self._counts = dict.fromkeys(counts, 0)
        self._so_far = ""
        self._told = time.monotonic()

    def __enter__(self) -> Measuring:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, event: Event | Crossed) -> None:
        """Bring the screen up to date with the event."""
        if isinstance(event, Narrowed):
            unknown = f", {_counted(event.resting_on, 'pair')} to measure" if event.resting_on else ""
            self._so_far = f"{_counted(event.kernels, 'kernel')} may do{unknown}"
        elif isinstance(event, Crossed):
            self._so_far = f"{event.done} of {event.total}"
        elif isinstance(event, job.TrialStored | job.TrialInterrupted):
            self._count("trial")
            trial = event.trial
            self._failed(f"{trial.problem.text} {trial.config.text}", trial.outcome, trial.detail)
        elif isinstance(event, job.FinalStored):
            self._count("final")
        elif isinstance(event, job.WinnerVerified):
            self._failed(event.config, event.outcome, event.detail)
        elif isinstance(event, FinalFailure):
            self._line(f"{event.problem.text}: not measured in turns: {one_line(event.detail)}")
        elif isinstance(event, job.VendorLeftOut):
            of = f"{event.problem.text}: " if event.problem is not None else ""
            self._line(f"{of}cuBLAS not measured: {one_line(event.detail)}")
        self._update()

    def _count(self, what: str) -> None:
        if what in self._counts:
            self._counts[what] += 1

    def goes_on(self, seconds: float, phase: str) -> None:
        """Say what takes so long."""
        self._line(f"{self._text()}: no news for {seconds:.0f} s, at {phase}")

    def _text(self) -> str:
        done = ", ".join(_counted(count, what) for what, count in self._counts.items() if count)
        return f"{self._what}{self._so_far and f': {self._so_far}'}{done and f'; {done}'}"

    def _update(self) -> None:
        text = self._text()
        self._progress.update(self._task, description=text)
        if self._progress.disable and time.monotonic() - self._told >= SILENCE_SECONDS:
            self._line(text)

    def _failed(self, what: str, outcome: Outcome, detail: str) -> None:
        if outcome is not Outcome.OK:
            self._line(f"{what}: {outcome}: {one_line(detail)}")

    def _line(self, text: str) -> None:
        self._told = time.monotonic()
        print_line(self._progress.console, text)


def print_selected(selected: Selected, console: Console, why: str = "") -> None:
    """Print which kernels were chosen, and what other numbers of them would reach.

    `why` nothing was measured, if so, with the number of pairs that are unknown.
    """
    kernels, shapes = len(set(selected.kernels)), len(selected.rows)
    keeps = f"{_counted(kernels, 'kernel')} keep{'s' if kernels == 1 else ''} {_counted(shapes, 'shape')}"
    proven = "" if selected.is_proven else " (fewer may do: the search for them was cut short)"
    within = f"within {percent(selected.within)} of the best time{proven}"
    print_line(console, f"{selected.device}, {selected.dtype} {selected.op}: {keeps} {within}")
    heads = ("kernels", "shapes served", "worst loss", "mean loss", "")
    cells = [
        (
            str(len(row.kernels)),
            str(row.served),
            percent(row.worst) if row.served == shapes else "-",
            percent(row.mean) if row.served == shapes else "-",
            "chosen" if row.is_chosen else "",
        )
        for row in selected.table
    ]
    print_table(console, heads, cells, right=range(4))
    of_kernel: dict[str, list[float]] = defaultdict(list)
    for kernel, loss in zip(selected.kernels, selected.losses, strict=True):
        of_kernel[kernel].append(loss)
    served = [(kernel, str(len(losses)), percent(max(losses))) for kernel, losses in sorted(of_kernel.items())]
    print_table(console, ("kernel", "shapes", "worst loss"), served, right=(1, 2))
    if why and selected.unmeasured:
        pairs = _counted(selected.unmeasured, "kernel-shape pair")
        text = f"{pairs} not measured or not verified in full, taken as too slow ({one_line(why)})"
        print_line(console, text)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
