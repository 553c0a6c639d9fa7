"""Progress of a running search: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from tsm2_tune.console.eta import ProblemProgress, Tally, remaining_text
from tsm2_tune.console.heartbeat import FINALS, LONG_SECONDS, Heartbeat, phase_text
from tsm2_tune.console.printable import one_line
from tsm2_tune.console.tables import print_line
from tsm2_tune.generator.device.roofline import rate_text
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome, Trial
from tsm2_tune.tuner.runs.events import (
    Event,
    FinalFailure,
    ProblemEnded,
    ProblemLeft,
    ProblemStarted,
    RunEnded,
    RunStarted,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
    WinnerVerified,
)
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

SILENCE_SECONDS = 15.0  # least time between two lines with the number of trials, if there is no bar
BAR_WIDTH = 20
LEAST_WIDTH = 100  # of a terminal on which bars are shown
GAP = "  "  # between the parts of a line
WHY = {  # reasons for the end of a search
    Why.ALL_TRIED: "all tried",
    Why.MAX_TRIALS: "--max-trials reached",
    Why.BUDGET: "--budget spent",
    Why.GAIN: "no more --gain expected",
}


@dataclass(slots=True)
class _Shown:
    """The displayed state of a run's current problem."""

    number: int  # the problem's number, from 1, in the order in which problems began
    task: TaskID  # the line of progress
    failed: dict[str, int] = field(default_factory=dict)  # outcome -> number of failed trials


class _Line(ProgressColumn):
    """Column of Rich's progress display. Its text is computed at each refresh, and long text is wrapped."""

    def render(self, task: Task) -> Text:
        text: Callable[[], str] = task.fields["text"]
        return Text(text())


class SearchProgress:
    """Display of the progress of a search. Use it as a context manager.

    It shows the run's phase if there is no event for `long_seconds`. If several devices share the problems, each has
    a name and a line. `next_phase` names what follows the search; the remaining time does not include it.
    """

    def __init__(
        self,
        console: Console,
        options: Options,
        problems: int,
        phases: PhaseTimer,
        clock: Callable[[], float] = time.monotonic,
        next_phase: str = "",
        long_seconds: float = LONG_SECONDS,
    ) -> None:
        self._options, self._next_phase = options, next_phase
        self._tally, self._clock = Tally(options, problems, clock), clock
        self._phases = {"": phases}  # by the run's name
        self._heartbeat = Heartbeat(self._print_phase, long_seconds)
        self._live = console.is_terminal
        self._progress = Progress(
            _Line(table_column=Column(ratio=1)),
            *([progress_bar()] if console.width >= LEAST_WIDTH else []),
            expand=True,
            console=console,
            disable=not self._live,
        )
        self._all: TaskID | None = None  # the line of all problems, if there are several
        self._shown: dict[str, _Shown] = {}  # by the run's name
        self._numbers: dict[Problem, int] = {}  # of problems that have begun; several devices may tune one
        self._printed_at = clock()
        self._is_vendor_note_printed = False  # printed only once for all problems

    def __enter__(self) -> SearchProgress:
        self._progress.start()
        self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.__exit__(kind, error, trace)
        self._progress.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            with suppress(OSError):  # the terminal may be closed
                self._print_interrupted()

    def __rich__(self) -> RenderableType:
        """Return the current lines of progress for Rich."""
        return self._progress.get_renderable()

    def show(self, event: Event, run: str = "") -> None:
        """Update the display after an event of the run with this name."""
        self._heartbeat.event()
        turn = self._tally.turns.get(run)
        self._tally.update(event, run)
        if isinstance(event, RunStarted):
            self._phases[run] = event.phases
        elif isinstance(event, RunEnded | ProblemLeft):
            self._remove_line(run)
        elif isinstance(event, ProblemStarted):
            self._problem_started(event.space.problem, run)
        elif isinstance(event, TrialStored | TrialInterrupted):
            self._trial_ended(event.trial, run)
        elif isinstance(event, FinalFailure):
            self._print_line(f"{event.problem.text}: finalists not measured again: {one_line(event.detail)}")
        elif isinstance(event, WinnerVerified):
            self._winner_verified(event, run)
        elif isinstance(event, VendorLeftOut):
            self._vendor_left_out(event)
        elif isinstance(event, ProblemEnded) and turn is not None:
            self._problem_ended(event, run)
        self._update()

    def _print_phase(self, seconds: float) -> None:
        """Print the present phase of each run, and how many seconds it has lasted."""
        for run, turn in tuple(self._tally.turns.items()):
            phase = phase_text(self._phases[run].now, seconds)
            self._print_line(f"{self._of_problems(run)}{turn.problem.text}: {phase}")

    def _problem_started(self, problem: Problem, run: str) -> None:
        number = self._numbers.setdefault(problem, len(self._numbers) + 1)
        if self._all is None and self._tally.problems > 1:
            self._all = self._progress.add_task("", total=1.0, text=self._all_text)
        task = self._progress.add_task("", total=1.0, text=lambda: self._run_text(run))
        self._shown[run] = _Shown(number, task)

    def _remove_line(self, run: str) -> None:
        if (shown := self._shown.pop(run, None)) is not None:
            self._progress.remove_task(shown.task)

    def _winner_verified(self, event: WinnerVerified, run: str) -> None:
        if event.outcome is not Outcome.OK:
            self._count_failed(run, event.outcome)
            self._print_line(f"{event.config}: {event.outcome}: {one_line(event.detail)}")

    def _vendor_left_out(self, event: VendorLeftOut) -> None:
        if event.problem is not None:
            self._print_line(f"{event.problem.text}: cuBLAS not measured: {one_line(event.detail)}")
        elif not self._is_vendor_note_printed:
            self._is_vendor_note_printed = True
            self._print_line(f"cuBLAS not measured: {event.detail}, or leave it out with --no-vendor")

    def _trial_ended(self, trial: Trial, run: str) -> None:
        if trial.outcome is not Outcome.OK:
            self._count_failed(run, trial.outcome)
        if trial.outcome not in (Outcome.OK, Outcome.BEHIND):
            self._print_line(f"{trial.problem.text} {trial.config.text}: {trial.outcome}: {one_line(trial.detail)}")
        turn = self._tally.turns.get(run)
        if turn is not None and not self._live and self._clock() - self._printed_at >= SILENCE_SECONDS:
            so_far = ", ".join(filter(None, (f"{turn.tried} of {turn.total} trials", self.remaining)))
            best = best_text(turn)
            self._print_line(f"{self._of_problems(run)}{trial.problem.text}: {so_far}{best and f'; best {best}'}")

    def _problem_ended(self, event: ProblemEnded, run: str) -> None:
        if event.winner is not None:
            text = event.winner.summary
        elif event.tried:
            all_timed_out = event.timed_out == event.tried
            text = f"no configuration {'ended within the time limit' if all_timed_out else 'gave a right result'}"
        else:
            text = "nothing tried"
        failed = "".join(f", {count} {outcome}" for outcome, count in sorted(self._shown[run].failed.items()))
        trials = f"{event.new_trials} new trial{'s' if event.new_trials != 1 else ''}{failed}"
        self._print_line(f"{self._of_problems(run)}{event.problem.text}: {text} ({trials}; {self._why(event)})")
        self._progress.remove_task(self._shown.pop(run).task)

    def _why(self, event: ProblemEnded) -> str:
        """Return a text that says why the search ended, and how many configurations were not tried."""
        text = WHY[event.why]
        text += f", {event.untried} more possible" if event.untried else ""
        return text + (f"; {event.quarantined} quarantined" if event.quarantined else "")

    def _print_interrupted(self) -> None:
        for run, turn in self._tally.turns.items():
            best = best_text(turn)
            text = f"interrupted, {turn.tried} of {turn.total} tried{best and f'; best {best}'}"
            self._print_line(f"{self._of_problems(run)}{turn.problem.text}: {text}")

    def _count_failed(self, run: str, outcome: Outcome) -> None:
        if (shown := self._shown.get(run)) is not None:
            shown.failed[outcome] = shown.failed.get(outcome, 0) + 1

    def _update(self) -> None:
        if self._all is not None:
            self._progress.update(self._all, completed=self._tally.share)
        for run, turn in self._tally.turns.items():
            self._progress.update(self._shown[run].task, completed=self._tally.share_of(turn))

    def _all_text(self) -> str:
        tally = self._tally
        x_vendor = tally.mean_x_vendor
        beside_vendor = "" if x_vendor is None else f"{x_vendor:.2f} x cuBLAS"
        done = f"{len(tally.ended)}/{tally.problems} problems"
        return GAP.join(filter(None, (done, self.remaining, beside_vendor)))

    def _run_text(self, run: str) -> str:
        turn, shown = self._tally.turns.get(run), self._shown.get(run)
        if turn is None or shown is None:  # the run has just ended
            return ""
        remaining = self.remaining if self._all is None else ""
        phase = self._phases[run].now if run in self._phases else ""
        doing = phase_text(phase) if phase.startswith(FINALS) or turn.best_us is None else ""
        parts = (run, turn.problem.text, f"{turn.tried}/{turn.total}", remaining, doing or best_text(turn))
        return GAP.join(filter(None, parts))

    @property
    def remaining(self) -> str:
        """Text with the estimated remaining time and the phases that this time does not include; "" at the end."""
        tally = self._tally
        if tally.remaining_seconds is None or len(tally.ended) >= tally.problems:
            return ""
        later = list(filter(None, ("" if tally.has_finals else "finals", self._next_phase)))
        if round(tally.remaining_seconds) == 0:  # a phase of unknown length
            return f"{' and '.join(later)} left" if later else ""
        what = "" if tally.has_finals else " of search"
        return ", then ".join([remaining_text(tally.remaining_seconds, what), *later])

    def _of_problems(self, run: str) -> str:
        """Return a line's prefix: the run's name and, without progress bars, its problem's number, such as "2/7"."""
        name = f"{run}: " if run else ""
        if (shown := self._shown.get(run)) is None or self._live or self._tally.problems == 1:
            return name
        return f"{name}{shown.number}/{self._tally.problems} "

    def _print_line(self, text: str) -> None:
        self._printed_at = self._clock()
        print_line(self._progress.console, text)


def progress_bar() -> BarColumn:
    return BarColumn(bar_width=BAR_WIDTH, style="bright_black", complete_style="cyan", finished_style="green")


def best_text(turn: ProblemProgress) -> str:
    """Return a text with the best time so far, and with cuBLAS's time relative to it.

    If cuBLAS's time is unknown, the text has the floor in percent of the best time. The floor is the least time that
    the device's measured rates allow.
    """
    if turn.best_us is None:
        return ""
    beside = ""
    if turn.x_vendor is not None:
        beside = f", {turn.x_vendor:.2f} x cuBLAS"
    elif turn.percent_of_floor is not None:
        beside = f", {turn.percent_of_floor:.0f} % of the floor"
    return f"{turn.best_us:.1f} us, {rate_text(turn.problem.least_bytes / turn.best_us * 1e-3)}{beside}"
