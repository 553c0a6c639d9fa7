"""Terminal output of a tuning run, from its first event to its last. Live lines are shown on a terminal only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from tsm2_tune.console.eta import SILENCE_SECONDS, PairTally, ProblemProgress, Tally, remaining_text
from tsm2_tune.console.heartbeat import FINALS, LONG_SECONDS, Heartbeat, phase_text
from tsm2_tune.console.printable import one_line, tell
from tsm2_tune.console.run_notes import changed_text, load_text, next_steps, noise_text, spent_text
from tsm2_tune.console.tables import print_line, winners_table
from tsm2_tune.generator.device.roofline import rate_text
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.trial import Outcome, count_text
from tsm2_tune.tuner.runs.events import (
    Event,
    FinalFailure,
    Noted,
    OfRun,
    PairsStarted,
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
from tsm2_tune.tuner.runs.run import TuningResult
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

BAR_WIDTH = 20
LEAST_WIDTH = 100  # of a terminal on which bars are shown
GAP = "  "  # between the parts of a line
MOST_TROUBLE = 400  # characters of a line on a failure: a long configuration, and 160 of the detail
WHY = {  # reasons for the end of a search
    Why.ALL_TRIED: "all tried",
    Why.MAX_TRIALS: "--max-trials reached",
    Why.BUDGET: "--budget spent",
    Why.GAIN: "no more --gain expected",
}


@dataclass(slots=True)
class _Line:
    """The line of a device's current problem, or of the kernels that it times at other shapes."""

    task: TaskID
    number: int = 0  # the problem's number, from 1, in the order in which problems began
    failed: Counter[Outcome] = field(default_factory=Counter)  # failed trials of the problem
    pairs: PairTally | None = None  # None while a problem is tuned


class _TextColumn(ProgressColumn):
    """Column of Rich's progress display. Its text is computed at each refresh, and long text is wrapped."""

    def render(self, task: Task) -> Text:
        text: Callable[[], str] = task.fields["text"]
        return Text(text())


class RunProgress:
    """Display of a tuning run on the terminal. Use it as a context manager.

    Each device has a line for its current problem, and later for the pairs of a kernel and a shape that it times. If
    a run has several devices, lines begin with the device's name. If there is no event for `long_seconds`, the
    display names the present phase.

    `opening` returns the lines to print when a run begins. Its arguments are the event RunStarted and the run's name,
    which is "" if there is only one run. `pairs` says that winning kernels will be timed at other shapes after the
    search; the remaining time of the search does not include it.
    """

    def __init__(
        self,
        console: Console,
        database: str = "",
        opening: Callable[[RunStarted, str], Iterable[str]] | None = None,
        *,
        pairs: bool = False,
        clock: Callable[[], float] = time.monotonic,
        long_seconds: float = LONG_SECONDS,
    ) -> None:
        self._database, self._opening, self._has_pairs, self._clock = database, opening, pairs, clock
        self._tally = Tally(Options(), 0, clock)  # replaced when the run starts
        self._phases: dict[str, PhaseTimer] = {}  # by the run's name
        self._searched: dict[str, float] = {}  # seconds of each phase until a single device times pairs
        self._heartbeat = Heartbeat(self._print_phase, long_seconds)
        self._live = console.is_terminal
        self._progress = Progress(
            _TextColumn(table_column=Column(ratio=1)),
            *([progress_bar()] if console.width >= LEAST_WIDTH else []),
            expand=True,
            console=console,
            disable=not self._live,
        )
        self._all: TaskID | None = None  # the line of all problems, if there are several
        self._lines: dict[str, _Line] = {}  # by the run's name
        self._numbers: dict[Problem, int] = {}  # of problems that have begun; several devices may tune one
        self._outcomes = Counter[Outcome]()  # of kernels timed at other shapes
        self._between = 0  # successful trials at shapes between the tuned shapes
        self._printed_at = clock()
        self._is_vendor_note_printed = False  # printed only once for all problems

    def __enter__(self) -> RunProgress:
        self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.__exit__(kind, error, trace)
        if self._phases:  # the display has begun
            self._progress.stop()
        if kind is None and self._outcomes:
            self._print_line(self._pairs_text())
        elif kind is not None and issubclass(kind, KeyboardInterrupt):
            with suppress(OSError):  # the terminal may be closed
                self._print_interrupted()

    def __rich__(self) -> RenderableType:
        """Return the current lines of progress for Rich."""
        return self._progress.get_renderable()

    def show(self, event: Event) -> None:
        """Update the display after an event."""
        if isinstance(event, OfRun):
            self._show(event.event, event.run)
        else:
            self._show(event, event.run if isinstance(event, RunEnded) else "")

    def _show(self, event: Event, run: str) -> None:
        self._heartbeat.event()
        if isinstance(event, RunStarted):
            self._run_started(event, run)
        turn = self._tally.turns.get(run)
        self._tally.update(event, run)
        if isinstance(event, Noted):
            tell(f"{run}: {event.text}" if run else event.text)
        elif isinstance(event, RunEnded | ProblemLeft):
            if isinstance(event, RunEnded) and event.trouble:
                tell(f"{run} ended early: {event.trouble}")
            self._remove_line(run)
        elif isinstance(event, ProblemStarted):
            self._problem_started(event.space.problem, run)
        elif isinstance(event, PairsStarted):
            self._pairs_started(run)
        elif isinstance(event, ProblemEnded) and turn is not None:
            self._problem_ended(event, run)
        elif text := trouble_text(event):
            self._print_trouble(event, text)
        if (line := self._lines.get(run)) is not None:
            self._count(event, line)
            self._print_now_and_then(event, line, run)
        self._update()

    def end(self, result: TuningResult) -> None:
        """Print the table of winners, warnings about noise, and the commands to use next."""
        console = self._progress.console
        if result.changed:
            print_line(console, changed_text(result.changed))
        winners_table(result.winners, console)
        if noise := noise_text(result.winners, self._database):
            print_line(console, noise)
        if (phases := self._phases.get("")) is not None:  # the run has one device
            rest = phases.taken()
            print_line(console, spent_text(self._searched, rest) if self._searched else spent_text(rest, {}))
        if result.winners:
            if result.target.is_host:
                print_line(console, "these times are of emulated kernels, not of a GPU")
            for line in next_steps(self._database):
                print_line(console, line)

    def _run_started(self, event: RunStarted, run: str) -> None:
        lines = [] if self._opening is None else [*self._opening(event, run)]
        if not self._phases:
            self._tally = Tally(event.options, len(event.problems), self._clock)
            lines += [] if self._opening is None else filter(None, [load_text()])
        for line in lines:
            print_line(self._progress.console, line)
        self._phases[run] = event.phases
        self._progress.start()

    def _problem_started(self, problem: Problem, run: str) -> None:
        number = self._numbers.setdefault(problem, len(self._numbers) + 1)
        if self._all is None and self._tally.problems > 1:
            self._all = self._progress.add_task("", total=1.0, text=self._all_text)
        self._lines[run] = _Line(self._progress.add_task("", total=1.0, text=lambda: self._line_text(run)), number)

    def _pairs_started(self, run: str) -> None:
        if not run:
            self._searched = self._phases[run].taken()
        self._remove_line(run)
        task = self._progress.add_task("", total=1.0, text=lambda: self._line_text(run))
        self._lines[run] = _Line(task, pairs=PairTally("pairs", counts=("final",), clock=self._clock))
        self._printed_at = self._clock()

    def _remove_line(self, run: str) -> None:
        if (line := self._lines.pop(run, None)) is not None:
            self._progress.remove_task(line.task)

    def _print_trouble(self, event: Event, text: str) -> None:
        if not isinstance(event, VendorLeftOut) or event.problem is not None:
            self._print_line(text)
        elif not self._is_vendor_note_printed:
            self._is_vendor_note_printed = True
            self._print_line(f"{event}, or leave it out with --no-vendor")

    def _count(self, event: Event, line: _Line) -> None:
        trial = event.trial if isinstance(event, TrialStored | TrialInterrupted) else None
        if line.pairs is not None:
            line.pairs.update(event)
            if trial is not None:
                self._outcomes[trial.outcome] += 1
                self._between += trial.is_between and trial.outcome is Outcome.OK
        elif trial is not None and trial.outcome is not Outcome.OK:
            line.failed[trial.outcome] += 1
        elif isinstance(event, WinnerVerified) and event.outcome is not Outcome.OK:
            line.failed[event.outcome] += 1

    def _print_now_and_then(self, event: Event, line: _Line, run: str) -> None:
        """Print how far the run is, if there are no live lines and nothing was printed for SILENCE_SECONDS."""
        if self._live or self._clock() - self._printed_at < SILENCE_SECONDS:
            return
        turn = self._tally.turns.get(run)
        if line.pairs is not None:
            self._print_line(f"{self._of_problems(run)}{line.pairs.text}")
        elif turn is not None and isinstance(event, TrialStored | TrialInterrupted):
            so_far = ", ".join(filter(None, (f"{turn.tried} of {turn.total} trials", self.remaining)))
            best = best_text(turn)
            self._print_line(f"{self._of_problems(run)}{turn.problem.text}: {so_far}{best and f'; best {best}'}")

    def _problem_ended(self, event: ProblemEnded, run: str) -> None:
        if event.winner is not None:
            text = event.winner.summary
        elif event.tried:
            all_timed_out = event.timed_out == event.tried
            text = f"no configuration {'ended within the time limit' if all_timed_out else 'gave a right result'}"
        else:
            text = "nothing tried"
        failed = "".join(f", {count} {outcome}" for outcome, count in sorted(self._lines[run].failed.items()))
        trials = f"{count_text(event.new_trials, 'new trial')}{failed}"
        why = WHY[event.why]
        why += f", {event.untried} more possible" if event.untried else ""
        why += f"; {event.quarantined} quarantined" if event.quarantined else ""
        self._print_line(f"{self._of_problems(run)}{event.problem.text}: {text} ({trials}; {why})")
        self._remove_line(run)

    def _print_phase(self, seconds: float) -> None:
        """Print the present phase of each run, and how many seconds it has lasted."""
        for run, line in tuple(self._lines.items()):
            turn = self._tally.turns.get(run)
            what = line.pairs.text if line.pairs is not None else turn.problem.text if turn is not None else ""
            if what:
                self._print_line(f"{self._of_problems(run)}{what}: {phase_text(self._phases[run].now, seconds)}")

    def _print_interrupted(self) -> None:
        for run, turn in self._tally.turns.items():
            best = best_text(turn)
            text = f"interrupted, {turn.tried} of {turn.total} tried{best and f'; best {best}'}"
            self._print_line(f"{self._of_problems(run)}{turn.problem.text}: {text}")

    def _update(self) -> None:
        if self._all is not None:
            self._progress.update(self._all, completed=self._tally.share)
        for run, line in self._lines.items():
            turn = self._tally.turns.get(run)
            if line.pairs is not None:
                self._progress.update(line.task, completed=line.pairs.share)
            elif turn is not None:
                self._progress.update(line.task, completed=self._tally.share_of(turn))

    def _all_text(self) -> str:
        tally = self._tally
        x_vendor = tally.mean_x_vendor
        beside_vendor = "" if x_vendor is None else f"{x_vendor:.2f} x cuBLAS"
        done = f"{len(tally.ended)}/{tally.problems} problems"
        return GAP.join(filter(None, (done, self.remaining, beside_vendor)))

    def _line_text(self, run: str) -> str:
        turn, line = self._tally.turns.get(run), self._lines.get(run)
        if line is not None and line.pairs is not None:
            return GAP.join(filter(None, (run, line.pairs.text)))
        if turn is None or line is None:  # the run has just ended
            return ""
        remaining = self.remaining if self._all is None else ""
        phase = self._phases[run].now
        doing = phase_text(phase) if phase.startswith(FINALS) or turn.best_us is None else ""
        parts = (run, turn.problem.text, f"{turn.tried}/{turn.total}", remaining, doing or best_text(turn))
        return GAP.join(filter(None, parts))

    def _pairs_text(self) -> str:
        failed = sorted((outcome, count) for outcome, count in self._outcomes.items() if outcome is not Outcome.OK)
        where = f" ({self._between} at shapes between the tuned ones)" if self._between else ""
        parts = [
            f"{self._outcomes[Outcome.OK]} measured{where}",
            *(f"{count} {outcome}" for outcome, count in failed),
        ]
        return f"cross-checked kernels at shapes that they did not win: {', '.join(parts)}"

    @property
    def remaining(self) -> str:
        """Text with the estimated remaining time, which does not include pairs; "" at the end."""
        seconds = self._tally.remaining_seconds
        if seconds is None or len(self._tally.ended) >= self._tally.problems:
            return ""
        has_pairs = self._has_pairs and self._tally.problems > 1
        if round(seconds) == 0:  # the last final, of unknown length
            return "pairs left" if has_pairs else ""
        return f"{remaining_text(seconds)}{', then pairs' if has_pairs else ''}"

    def _of_problems(self, run: str) -> str:
        """Return a line's prefix: the run's name and, without progress bars, its problem's number, such as "2/7"."""
        name = f"{run}: " if run else ""
        line = self._lines.get(run)
        if line is None or line.pairs is not None or self._live or self._tally.problems == 1:
            return name
        return f"{name}{line.number}/{self._tally.problems} "

    def _print_line(self, text: str) -> None:
        self._printed_at = self._clock()
        print_line(self._progress.console, text)


def trouble_text(event: object) -> str:
    """Return the line to print if the event is a failure, else "". A trial that was too slow is no failure."""
    if isinstance(event, TrialStored | TrialInterrupted):
        is_trouble = event.trial.outcome not in (Outcome.OK, Outcome.BEHIND)
    elif isinstance(event, WinnerVerified):
        is_trouble = event.outcome is not Outcome.OK
    else:
        is_trouble = isinstance(event, FinalFailure | VendorLeftOut)
    return one_line(str(event), MOST_TROUBLE) if is_trouble else ""


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
