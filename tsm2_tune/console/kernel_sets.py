"""Terminal output of `export --within`: its progress, and the table of what each number of kernels reaches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column

from tsm2_tune.console.eta import left_text
from tsm2_tune.console.heartbeat import phase_text
from tsm2_tune.console.live import SILENCE_SECONDS
from tsm2_tune.console.printable import one_line
from tsm2_tune.console.tables import print_line, print_table
from tsm2_tune.tuner.export.kernel_sets.fewest import ChoiceStarted, ExportEvent, KernelsChosen
from tsm2_tune.tuner.export.kernel_sets.measured_pairs import Narrowed
from tsm2_tune.tuner.export.kernel_sets.pairs import Selected, percent
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import (
    Crossed,
    Event,
    FinalFailure,
    FinalStored,
    Noted,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
    WinnerVerified,
)


class Choosing:
    """Shows the search for the fewest kernels. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._measuring = ExitStack()
        self._shown: Measuring | None = None

    def __enter__(self) -> Choosing:
        return self

    def __exit__(self, *error: object) -> None:
        self._measuring.close()

    def show(self, event: ExportEvent) -> None:
        """Update the screen for the event."""
        if isinstance(event, Noted):
            click.echo(str(event), err=True)
        elif isinstance(event, ChoiceStarted):
            self._measuring.close()
            self._shown = self._measuring.enter_context(Measuring(self._console, f"{event.dtype} {event.op}"))
        elif isinstance(event, KernelsChosen):
            self._measuring.close()
            print_selected(event.selected, self._console, event.unmeasured_because)
        elif self._shown is not None:
            self._shown.show(event)


class Measuring:
    """Shows the progress of trials that no search suggests. Use as a context manager.

    `counts` names the kinds of events to count.
    """

    def __init__(self, console: Console, what: str, counts: Sequence[str] = ("trial", "final")) -> None:
        self._what = what
        text = TextColumn("{task.description}", table_column=Column(), markup=False)
        self._progress = Progress(SpinnerColumn(), text, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=None)
        self._counts = dict.fromkeys(counts, 0)
        self._so_far = ""
        self._started = self._told = time.monotonic()

    def __enter__(self) -> Measuring:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, event: Event | ExportEvent) -> None:
        """Update the screen for the event."""
        if isinstance(event, Narrowed):
            unknown = f", {_counted(event.resting_on, 'pair')} to measure" if event.resting_on else ""
            self._so_far = f"{_counted(event.kernels, 'kernel')} may do{unknown}"
        elif isinstance(event, Crossed):
            self._so_far = f"{event.done} of {event.total}{self._left(event)}"
        elif isinstance(event, TrialStored | TrialInterrupted):
            self._count("trial")
            trial = event.trial
            self._failed(f"{trial.problem.text} {trial.config.text}", trial.outcome, trial.detail)
        elif isinstance(event, FinalStored):
            self._count("final")
        elif isinstance(event, WinnerVerified):
            self._failed(event.config, event.outcome, event.detail)
        elif isinstance(event, FinalFailure):
            self._line(f"{event.problem.text}: not measured in turns: {one_line(event.detail)}")
        elif isinstance(event, VendorLeftOut):
            of = f"{event.problem.text}: " if event.problem is not None else ""
            self._line(f"{of}cuBLAS not measured: {one_line(event.detail)}")
        self._update()

    def _left(self, event: Crossed) -> str:
        """Return the time left at the pace so far; empty before the first pair and after the last."""
        if not 0 < event.done < event.total:
            return ""
        seconds = (time.monotonic() - self._started) / event.done * (event.total - event.done)
        return f", {left_text(seconds)}"

    def _count(self, what: str) -> None:
        if what in self._counts:
            self._counts[what] += 1

    def goes_on(self, seconds: float, phase: str) -> None:
        """Print the phase that takes so long."""
        self._line(f"{self._text()}: {phase_text(phase, seconds)}")

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
    """Print the chosen kernels, and the losses with other numbers of them.

    `why` is the reason if nothing was measured, with the number of unknown pairs.
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
