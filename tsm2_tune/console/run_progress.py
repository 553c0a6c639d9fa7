"""Terminal output of a tuning run, from its first event to its last."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

from tsm2_tune.console.printable import tell
from tsm2_tune.console.search_progress import SearchProgress
from tsm2_tune.console.tables import print_line, winners_table
from tsm2_tune.console.winner_columns import spread_percent
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.pool import cores
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.runs.events import Event, Noted, OfRun, PairMeasured, PairsStarted, RunEnded, RunStarted
from tsm2_tune.tuner.runs.run import TuningResult
from tsm2_tune.tuner.search.options import Options

if TYPE_CHECKING:  # slow to import, and needed after the search
    from tsm2_tune.console.cross_timing import CrossTimingProgress

MOST_CHANGED = 5  # most problems with a new winner that are named
MOST_SPREAD_PERCENT = 5.0  # larger half widths of a median's 95 % interval are called noisy
NAME = "tsm2-tune"  # name of the command
DeviceEvent = tuple[str, Event]  # the name of the device, and one of its events


class RunProgress:
    """Display of a tuning run on the terminal. Use it as a context manager.

    `opening` returns the lines to print when a run begins. Its arguments are the event RunStarted and the run's name,
    which is "" if there is only one run. `pairs` says that winning kernels will be timed at other shapes after the
    search.
    """

    def __init__(
        self,
        console: Console,
        database: str,
        opening: Callable[[RunStarted, str], Iterable[str]],
        *,
        pairs: bool = False,
    ) -> None:
        self._console, self._database, self._opening, self._has_pairs = console, database, opening, pairs
        self._stack = ExitStack()
        self._merged = MergedEvents()
        self._started: RunStarted | None = None
        self._shown: SearchProgress | CrossTimingProgress | None = None
        self._is_alone = True  # whether the run has one device
        self._searched: dict[str, float] | None = None  # seconds of each phase until other shapes are timed

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        """Update the display after an event."""
        if isinstance(event, OfRun | RunEnded):
            for run, inner in self._merged.merged(event):
                self._show(inner, run)
        else:
            self._show(event, "")

    def _show(self, event: Event, run: str) -> None:
        if isinstance(event, Noted):
            tell(f"{run}: {event.text}" if run else event.text)
        elif isinstance(event, RunEnded) and event.trouble:
            tell(f"{run} ended early: {event.trouble}")
        elif isinstance(event, RunStarted):
            for line in self._opening(event, run):
                print_line(self._console, line)
            self._is_alone = not run
            if self._started is None:
                self._started = event
                if load := load_text():
                    print_line(self._console, load)
                has_pairs = self._has_pairs and len(event.problems) > 1
                shown = SearchProgress(
                    self._console,
                    event.options,
                    len(event.problems),
                    event.phases,
                    next_phase="pairs" if has_pairs else "",
                )
                self._shown = self._stack.enter_context(shown)
        elif isinstance(event, PairsStarted):
            from tsm2_tune.console.cross_timing import CrossTimingProgress

            self._stack.close()
            assert self._started is not None
            self._searched = self._started.phases.taken()
            self._shown = self._stack.enter_context(CrossTimingProgress(self._console, self._started.phases))
        if isinstance(self._shown, SearchProgress):
            self._shown.show(event, run)
        elif self._shown is not None:
            self._shown.show(event)

    def end(self, result: TuningResult) -> None:
        """Print the table of winners, warnings about noise, and the commands to use next."""
        if result.changed:
            print_line(self._console, changed_text(result.changed))
        winners_table(result.winners, self._console)
        if noise := noise_text(result.winners, self._database):
            print_line(self._console, noise)
        if self._started is not None and self._is_alone:
            rest = self._started.phases.taken()
            searched, pairs = (rest, {}) if self._searched is None else (self._searched, rest)
            print_line(self._console, spent_text(searched, pairs))
        if result.winners:
            if result.target.is_host:
                print_line(self._console, "these times are of emulated kernels, not of a GPU")
            for line in next_steps(self._database):
                print_line(self._console, line)


class MergedEvents:
    """Merger of the events of several devices into one sequence for a display.

    After the search, devices time kernels at other shapes, in pairs of a kernel and a shape. The events of pairs are
    held back until all active devices have finished their search.
    """

    def __init__(self) -> None:
        self._in_pairs = dict[str, bool]()  # whether the device times pairs, by active device
        self._held: list[DeviceEvent] = []  # events of pairs that are held back
        self._most_done = -1  # the largest number of pairs done on any device

    def merged(self, event: OfRun | RunEnded) -> Iterator[DeviceEvent]:
        """Add an event, and yield the events to show now, each with its device's name."""
        name, inner = event.run, event.event if isinstance(event, OfRun) else event
        if isinstance(inner, RunStarted):
            self._in_pairs[name] = False
        elif isinstance(inner, PairsStarted):
            self._in_pairs[name] = True
        elif isinstance(inner, RunEnded):
            self._in_pairs.pop(name, None)
        if self._in_pairs.get(name) and not isinstance(inner, PairsStarted):
            self._held.append((name, inner))
        elif not isinstance(inner, PairsStarted):
            yield name, inner
        yield from self._pairs()

    def _pairs(self) -> Iterator[DeviceEvent]:
        if not self._in_pairs or not all(self._in_pairs.values()):
            return
        if self._most_done < 0:
            self._most_done = 0
            yield "", PairsStarted()
        held, self._held = self._held, []
        for name, event in held:
            if isinstance(event, PairMeasured):
                if event.done < self._most_done:
                    continue
                self._most_done = event.done
            yield name, event


def l2_state_text(target: Target, options: Options, *, is_asked: bool) -> str:
    """Return a text with the state of the L2 cache in which kernels are timed.

    On the CPU, which ignores that state, return a note if the user named a state (`is_asked`), else "".
    """
    cache = target.cache(options.cache)
    if not target.is_host:
        return f", timed with the L2 {cache}"
    if is_asked and options.cache is not cache:
        return f"; --cache {options.cache} has no effect here: the host does not emulate a GPU's L2"
    return ""


def spent_text(searched: Mapping[str, float], pairs: Mapping[str, float]) -> str:
    """Return how the seconds of a run were spent, from the seconds of its phases.

    `pairs` has the phases in which kernels are timed at other shapes.
    """
    seconds = dict.fromkeys(("starting", "searching", "in finals", "verifying winners in full"), 0.0)
    for phase, each in searched.items():
        seconds[_PURPOSES.get(phase.partition(":")[0], "searching")] += each
    seconds["timing kernels at other shapes"] = sum(pairs.values())
    parts = ", ".join(f"{each:.0f} {purpose}" for purpose, each in seconds.items() if each >= 0.5)
    return f"{sum(seconds.values()):.0f} seconds{f': {parts}' if parts else ''}"


_PURPOSES = {  # phases of a run, but for those of a search
    "start": "starting",
    "start of the worker": "starting",
    "ceilings": "starting",
    "the final round": "in finals",
    "the vendor's libraries": "in finals",
    "the vendor's routines": "in finals",
    "full verification": "verifying winners in full",
}


def print_interrupted(count: int) -> None:
    """Print how many trials the machine interrupted, if any. Whether their kernels are correct is unknown."""
    if count:
        tell(f"{count} interrupted by the machine, not by their kernels: run the same command to try them again")


def changed_text(changed: Sequence[Problem]) -> str:
    """Return a line that names the problems for which a kernel tuned for another problem was faster."""
    shown = ", ".join(problem.text for problem in changed[:MOST_CHANGED])
    number = f"{len(changed)} problem{'s' if len(changed) != 1 else ''}"
    return f"{number} got a faster kernel from another shape: {shown}{', ...' if len(changed) > MOST_CHANGED else ''}"


def load_text() -> str:
    """Return a warning if the system's load is larger than the number of usable cores, else ""."""
    load, here = os.getloadavg()[0], cores()
    return f"note: the load is {load:.1f} on {here} cores: times will be noisy" if load > here else ""


def noise_text(winners: Sequence[BestRow], database: str) -> str:
    """Return a warning that counts the winners whose times have wide 95 % confidence intervals; "" without any."""
    noisy = sum(spread_percent(row) > MOST_SPREAD_PERCENT for row in winners)
    if not noisy:
        return ""
    return (
        f"note: {noisy} of {len(winners)} times are noisy (+- over {MOST_SPREAD_PERCENT:g} %):"
        f" `{command_on('confirm', database)}` repeats them on an idle machine"
    )


def next_steps(database: str) -> Iterator[str]:
    """Yield two lines with the commands to use next: show the winners, and export them."""
    for word, command in (("next:", "best"), ("     ", "export -o best_kernels.py")):
        yield f"{word} {command_on(command, database, program())}"


def program() -> str:
    """Return the name by which the user can call this program: with its folder if it is not on PATH."""
    typed = sys.argv[0]
    is_off_path = os.path.basename(typed) == NAME and shutil.which(NAME) is None
    return typed if is_off_path else NAME
