"""Terminal output while kernels are timed at shapes for which another kernel was the fastest, and of `export`."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column

from tsm2_tune.console.eta import remaining_text
from tsm2_tune.console.heartbeat import LONG_SECONDS, Heartbeat, phase_text
from tsm2_tune.console.printable import one_line
from tsm2_tune.console.search_progress import SILENCE_SECONDS
from tsm2_tune.console.tables import columns, print_line, print_table
from tsm2_tune.tuner.export.kernel_sets.losses import Selected, percent
from tsm2_tune.tuner.export.kernel_sets.pair_timing import Narrowed
from tsm2_tune.tuner.export.kernel_sets.smallest_set import ChoiceStarted, ExportEvent, KernelsChosen
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import (
    Event,
    FinalFailure,
    FinalStored,
    Noted,
    PairMeasured,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
    WinnerVerified,
)
from tsm2_tune.tuner.search.phase_timer import PhaseTimer


class CrossTimingProgress:
    """Display of the progress while winning kernels are timed at other shapes. Use it as a context manager.

    At the end it prints the number of measurements and failures.
    """

    def __init__(self, console: Console, phases: PhaseTimer) -> None:
        self._console = console
        self._measuring = PairProgress(console, "pairs", counts=("final",))
        self._heartbeat = Heartbeat(lambda seconds: self._measuring.print_phase(seconds, phases.now), LONG_SECONDS)
        self._outcomes = Counter[Outcome]()
        self._between = 0  # successful trials at shapes between the tuned shapes

    def __enter__(self) -> CrossTimingProgress:
        self._measuring.__enter__()
        self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.__exit__(kind, error, trace)
        self._measuring.__exit__(kind, error, trace)
        if kind is None and self._outcomes:
            print_line(self._console, self._text())

    def show(self, event: Event) -> None:
        """Update the display after an event."""
        self._heartbeat.event()
        self._measuring.show(event)
        if isinstance(event, TrialStored | TrialInterrupted):
            self._outcomes[event.trial.outcome] += 1
            self._between += event.trial.is_between and event.trial.outcome is Outcome.OK

    def _text(self) -> str:
        failed = sorted((outcome, count) for outcome, count in self._outcomes.items() if outcome is not Outcome.OK)
        where = f" ({self._between} at shapes between the tuned ones)" if self._between else ""
        parts = [
            f"{self._outcomes[Outcome.OK]} measured{where}",
            *(f"{count} {outcome}" for outcome, count in failed),
        ]
        return f"cross-checked kernels at shapes that they did not win: {', '.join(parts)}"


class PairProgress:
    """Display of the progress while kernels are timed outside of a search. Use it as a context manager.

    `what` names the activity. `counts` are the events to count: "trial", "final" or both.
    """

    def __init__(
        self,
        console: Console,
        what: str,
        counts: Sequence[str] = ("trial", "final"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._clock = what, clock
        text = TextColumn("{task.description}", table_column=Column(), markup=False)
        self._progress = Progress(SpinnerColumn(), text, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=None)
        self._counts = dict.fromkeys(counts, 0)
        self._so_far = ""
        self._started = self._printed_at = clock()

    def __enter__(self) -> PairProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, event: Event | ExportEvent) -> None:
        """Update the display after an event."""
        if isinstance(event, Narrowed):
            unknown = f", {counted(event.resting_on, 'pair')} to measure" if event.resting_on else ""
            self._so_far = f"{counted(event.kernels, 'candidate kernel')}{unknown}"
        elif isinstance(event, PairMeasured):
            self._so_far = f"{event.done} of {event.total}{self._remaining_text(event)}"
        elif isinstance(event, TrialStored | TrialInterrupted):
            self._count("trial")
            trial = event.trial
            self._failed(f"{trial.problem.text} {trial.config.text}", trial.outcome, trial.detail)
        elif isinstance(event, FinalStored):
            self._count("final")
        elif isinstance(event, WinnerVerified):
            self._failed(event.config, event.outcome, event.detail)
        elif isinstance(event, FinalFailure):
            self._print_line(f"{event.problem.text}: the final failed: {one_line(event.detail)}")
        elif isinstance(event, VendorLeftOut):
            of = f"{event.problem.text}: " if event.problem is not None else ""
            self._print_line(f"{of}cuBLAS not measured: {one_line(event.detail)}")
        self._update()

    def _remaining_text(self, event: PairMeasured) -> str:
        """Return a text with the estimated remaining time; "" before the first measurement and after the last."""
        if not 0 < event.done < event.total:
            return ""
        seconds = (self._clock() - self._started) / event.done * (event.total - event.done)
        return f", {remaining_text(seconds)}"

    def _count(self, what: str) -> None:
        if what in self._counts:
            self._counts[what] += 1

    def print_phase(self, seconds: float, phase: str) -> None:
        """Print the run's present phase, and how many seconds it has lasted."""
        self._print_line(f"{self._text()}: {phase_text(phase, seconds)}")

    def _text(self) -> str:
        done = ", ".join(counted(count, what) for what, count in self._counts.items() if count)
        return f"{self._what}{self._so_far and f': {self._so_far}'}{done and f'; {done}'}"

    def _update(self) -> None:
        text = self._text()
        self._progress.update(self._task, description=text)
        if self._progress.disable and self._clock() - self._printed_at >= SILENCE_SECONDS:
            self._print_line(text)

    def _failed(self, what: str, outcome: Outcome, detail: str) -> None:
        if outcome is not Outcome.OK:
            self._print_line(f"{what}: {outcome}: {one_line(detail)}")

    def _print_line(self, text: str) -> None:
        self._printed_at = self._clock()
        print_line(self._progress.console, text)


class ExportProgress:
    """Display of the progress while `export --within` chooses the fewest kernels. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._measuring = ExitStack()
        self._shown: PairProgress | None = None

    def __enter__(self) -> ExportProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._measuring.close()

    def show(self, event: ExportEvent) -> None:
        """Update the display after an event."""
        if isinstance(event, Noted):
            click.echo(str(event), err=True)
        elif isinstance(event, ChoiceStarted):
            self._measuring.close()
            self._shown = self._measuring.enter_context(PairProgress(self._console, f"{event.dtype} {event.op}"))
        elif isinstance(event, KernelsChosen):
            self._measuring.close()
            print_selected(event.selected, self._console, event.unmeasured_because)
        elif self._shown is not None:
            self._shown.show(event)


def print_selected(selected: Selected, console: Console, why: str = "") -> None:
    """Print the chosen kernels, and the losses of time with fewer and with more kernels.

    If some times of kernels are unknown because they were not measured, `why` is the reason.
    """
    kernels, shapes = len(set(selected.kernels)), len(selected.rows)
    keeps = f"{counted(kernels, 'kernel')} keep{'s' if kernels == 1 else ''} {counted(shapes, 'shape')}"
    proven = "" if selected.is_proven else " (fewer may suffice: the search stopped early)"
    within = f"within {percent(selected.within)} of the best time{proven}"
    print_line(console, f"{selected.device}, {selected.dtype} {selected.op}: {keeps} {within}")
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
    print_table(console, columns("kernels", "shapes served", "worst loss", "mean loss", ""), cells)
    of_kernel: dict[str, list[float]] = defaultdict(list)
    for kernel, loss in zip(selected.kernels, selected.losses, strict=True):
        of_kernel[kernel].append(loss)
    served = [(kernel, str(len(losses)), percent(max(losses))) for kernel, losses in sorted(of_kernel.items())]
    print_table(console, columns("kernel", "shapes", "worst loss"), served)
    if why and selected.unmeasured:
        pairs = counted(selected.unmeasured, "kernel-shape pair")
        text = f"{pairs} not measured or not verified in full, counted as too slow ({one_line(why)})"
        print_line(console, text)


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
