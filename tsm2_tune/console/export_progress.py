"""Terminal output while `export --within` measures and chooses the fewest kernels."""

from __future__ import annotations

import time
from collections import defaultdict

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column

from tsm2_tune.console.eta import SILENCE_SECONDS, PairTally
from tsm2_tune.console.printable import one_line
from tsm2_tune.console.run_progress import trouble_text
from tsm2_tune.console.tables import columns, print_line, print_table
from tsm2_tune.tuner.export.kernel_sets.losses import Selected, percent
from tsm2_tune.tuner.export.kernel_sets.pair_timing import Narrowed
from tsm2_tune.tuner.export.kernel_sets.smallest_set import ChoiceStarted, ExportEvent, KernelsChosen
from tsm2_tune.tuner.results.trial import count_text
from tsm2_tune.tuner.runs.events import Noted


class ExportProgress:
    """Display of the progress while `export --within` chooses the fewest kernels. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        text = TextColumn("{task.description}", table_column=Column(), markup=False)
        self._progress = Progress(SpinnerColumn(), text, console=console, disable=not console.is_terminal)
        self._tally: PairTally | None = None  # of the present element type and op
        self._task = TaskID(0)
        self._printed_at = time.monotonic()

    def __enter__(self) -> ExportProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def show(self, event: ExportEvent) -> None:
        """Update the display after an event."""
        if isinstance(event, Noted):
            click.echo(str(event), err=True)
        elif isinstance(event, ChoiceStarted):
            self._tally, self._printed_at = PairTally(f"{event.dtype} {event.op}"), time.monotonic()
            self._task = self._progress.add_task(self._tally.text, total=None)
            self._progress.start()
        elif isinstance(event, KernelsChosen):
            self._end()
            print_selected(event.selected, self._progress.console, event.unmeasured_because)
        elif self._tally is not None:
            self._measured(event, self._tally)

    def _measured(self, event: ExportEvent, tally: PairTally) -> None:
        tally.update(event)
        if isinstance(event, Narrowed):
            unknown = f", {count_text(event.resting_on, 'pair')} to measure" if event.resting_on else ""
            tally.so_far = f"{count_text(event.kernels, 'candidate kernel')}{unknown}"
        if text := trouble_text(event):
            self._print_line(text)
        self._progress.update(self._task, description=tally.text)
        if self._progress.disable and time.monotonic() - self._printed_at >= SILENCE_SECONDS:
            self._print_line(tally.text)

    def _print_line(self, text: str) -> None:
        self._printed_at = time.monotonic()
        print_line(self._progress.console, text)

    def _end(self) -> None:
        if self._tally is not None:
            self._tally = None
            self._progress.stop()
            self._progress.remove_task(self._task)


def print_selected(selected: Selected, console: Console, why: str = "") -> None:
    """Print the chosen kernels, and the losses of time with fewer and with more kernels.

    If some times of kernels are unknown because they were not measured, `why` is the reason.
    """
    kernels, shapes = len(set(selected.kernels)), len(selected.rows)
    keeps = f"{count_text(kernels, 'kernel')} keep{'s' if kernels == 1 else ''} {count_text(shapes, 'shape')}"
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
        pairs = count_text(selected.unmeasured, "kernel-shape pair")
        text = f"{pairs} not measured or not verified in full, counted as too slow ({one_line(why)})"
        print_line(console, text)
