"""A run as it goes on: live progress on a terminal, plain lines where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from tsm2_tune.display import one_line, print_line
from tsm2_tune.liveness import Liveness
from tsm2_tune.tuner.events import (
    Event,
    FinalFailure,
    FinalStored,
    ProblemEnded,
    ProblemStarted,
    TrialInterrupted,
    TrialStored,
    VendorLeftOut,
    WinnerVerified,
)
from tsm2_tune.tuner.phases import Phases
from tsm2_tune.tuner.trial import Outcome, Trial
from tsm2_tune.tuner.tune import Options
from tsm2_tune.winners import rate_text, winner_text

SILENCE_SECONDS = 15.0  # after which trials are counted in a line, where no bar does so
LONG_SECONDS = 10.0  # without an event, after which its phase is shown; again after twice as long, and so on
LEAST_BAR_WIDTH = 100  # of a terminal beside whose line of progress there is room for a bar


class Display:
    """Shows the events of a search, and its phase where none comes for long. Use as a context manager."""

    def __init__(self, console: Console, options: Options, problems: int, phases: Phases) -> None:
        self._console, self._options, self._problems = console, options, problems
        self._phases, self._liveness = phases, Liveness(self._goes_on, LONG_SECONDS)
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn(
                "{task.description}  {task.completed:g}/{task.total:g}  {task.fields[left]}  {task.fields[best]}",
                table_column=Column(),  # which folds, so that nothing of it is cut
                markup=False,
            ),
            *([BarColumn(bar_width=None)] if console.width >= LEAST_BAR_WIDTH else []),
            expand=True,
            console=console,
            disable=not self._live,
        )
        self._task: TaskID | None = None
        self._number, self._problem = 0, ""
        self._best_us: float | None = None
        self._others: dict[str, int] = {}
        self._seconds_before, self._started, self._trials, self._expected = 0.0, 0.0, 0, 0
        self._told = time.monotonic()
        self._vendor_told = False  # that it is measured nowhere

    def __enter__(self) -> Display:
        self._progress.start()
        self._liveness.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._liveness.__exit__(kind, error, trace)
        self._progress.stop()

    def _goes_on(self, seconds: float) -> None:
        """Say what takes so long."""
        if self._problem:
            text = f"no news for {seconds:.0f} s, at {self._phases.now}"
            self._line(f"{self._of_problems()}{self._problem}: {text}")

    def show(self, event: Event) -> None:
        """Bring the screen up to date with the event."""
        self._liveness.event()
        if isinstance(event, ProblemStarted):
            self._problem_started(event)
        elif isinstance(event, TrialStored | TrialInterrupted):
            self._trial_stored(event.trial)
        elif isinstance(event, FinalStored):
            self._update(note="finalists measured again")
        elif isinstance(event, FinalFailure):
            self._line(f"{event.problem.text}: finalists not measured again: {one_line(event.detail)}")
        elif isinstance(event, WinnerVerified):
            self._winner_verified(event)
        elif isinstance(event, VendorLeftOut):
            self._vendor_left_out(event)
        elif isinstance(event, ProblemEnded):
            self._problem_ended(event)

    def _problem_started(self, event: ProblemStarted) -> None:
        self._number += 1
        self._problem = event.space.problem.text
        self._best_us, self._others = event.best_before_us, {}
        kept = len(event.space.kept)
        total = min(kept, self._options.max_trials) if self._options.max_trials is not None else kept
        total = max(total, event.tried_before)
        self._seconds_before, self._started = event.seconds_before, time.monotonic()
        self._trials, self._expected = 0, total - event.tried_before
        self._task = self._progress.add_task(
            f"{self._number}/{self._problems} {event.space.problem.text}",
            total=total,
            completed=event.tried_before,
            left="",
            best="",
        )

    def _winner_verified(self, event: WinnerVerified) -> None:
        if event.outcome is Outcome.OK:
            self._update(note="winner verified in full")
        else:
            self._others[event.outcome] = self._others.get(event.outcome, 0) + 1
            self._line(f"{event.config}: {event.outcome}: {one_line(event.detail)}")

    def _vendor_left_out(self, event: VendorLeftOut) -> None:
        if event.problem is not None:
            self._line(f"{event.problem.text}: cuBLAS not measured: {one_line(event.detail)}")
        elif not self._vendor_told:
            self._vendor_told = True
            self._line(f"cuBLAS not measured: {event.detail}, or leave it out with --no-vendor")

    def _left_text(self) -> str:
        """Time left for the problem: by the pace so far, but no more than the budget leaves."""
        elapsed = time.monotonic() - self._started
        seconds = elapsed / max(self._trials, 1) * (self._expected - self._trials)
        if self._options.budget_seconds is not None:
            seconds = min(seconds, self._options.budget_seconds - self._seconds_before - elapsed)
        return f"{max(seconds, 0):.0f} s left"

    def _trial_stored(self, trial: Trial) -> None:
        note = ""
        if trial.outcome is not Outcome.OK:
            self._others[trial.outcome] = self._others.get(trial.outcome, 0) + 1
        if trial.outcome not in (Outcome.OK, Outcome.BEHIND):
            self._line(f"{trial.problem.text} {trial.config.text}: {trial.outcome}: {one_line(trial.detail)}")
        elif trial.outcome is Outcome.OK and trial.measurement is not None:
            self._best_us = min(trial.measurement.median_us, self._best_us or trial.measurement.median_us)
        if self._best_us is not None:
            note = best_text(self._best_us, trial)
        assert self._task is not None
        self._trials += 1
        self._expected = max(self._expected, self._trials)  # which leaves out what is made of the fastest
        self._progress.update(self._task, advance=1, best=note, left=self._left_text())
        if not self._live and time.monotonic() - self._told >= SILENCE_SECONDS:
            so_far = f"{self._trials} of {self._expected} trials, {self._left_text()}"
            self._line(f"{self._of_problems()}{trial.problem.text}: {so_far}{note and f'; best {note}'}")

    def _of_problems(self) -> str:
        """Which problem it is of how many, where no bar tells and there are several."""
        return "" if self._live or self._problems == 1 else f"{self._number}/{self._problems} "

    def _update(self, note: str) -> None:
        assert self._task is not None
        self._progress.update(self._task, best=note, left="")

    def _problem_ended(self, event: ProblemEnded) -> None:
        assert self._task is not None
        self._progress.remove_task(self._task)
        self._problem = ""
        if event.winner is not None:
            text = winner_text(event.winner)
        elif event.tried:
            all_timed_out = event.timed_out == event.tried
            text = f"no configuration {'was done in time' if all_timed_out else 'gave a right result'}"
        else:
            text = "nothing tried"
        failed = "".join(f", {count} {outcome}" for outcome, count in sorted(self._others.items()))
        trials = f"{event.new_trials} new trial{'s' if event.new_trials != 1 else ''}{failed}"
        self._line(f"{self._of_problems()}{event.problem.text}: {text} ({trials}{self._untried_text(event)})")

    def _untried_text(self, event: ProblemEnded) -> str:
        """Why kept configurations were left out, where some were."""
        most = self._options.max_trials
        reason = "--max-trials" if most is not None and event.tried + event.interrupted >= most else "--budget"
        text = f"; {event.untried} untried, stopped by {reason}" if event.untried else ""
        text += f"; {event.elsewhere} with another run" if event.elsewhere else ""
        return text + (f"; {event.given_up} given up, as runs died of them" if event.given_up else "")

    def _line(self, text: str) -> None:
        """A line above the progress bar; brackets in it are no markup."""
        self._told = time.monotonic()
        print_line(self._progress.console, text)


def best_text(best_us: float, trial: Trial) -> str:
    """The best time so far with what it means on this device."""
    rate = rate_text(trial.problem.least_bytes / best_us * 1e-3)
    return f"{best_us:.1f} us, {rate}, {100 * trial.floor_us / best_us:.0f} % of the floor"
