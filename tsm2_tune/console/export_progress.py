"""Terminal output of `export --within`: the progress, and a table of the loss of time per number of kernels."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack

import click
from rich.console import Console

from tsm2_tune.console.cross_timing import PairProgress, counted
from tsm2_tune.console.printable import one_line
from tsm2_tune.console.tables import columns, print_line, print_table
from tsm2_tune.tuner.export.kernel_sets.losses import Selected, percent
from tsm2_tune.tuner.export.kernel_sets.smallest_set import ChoiceStarted, ExportEvent, KernelsChosen
from tsm2_tune.tuner.runs.events import Noted


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
