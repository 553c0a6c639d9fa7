"""Terminal output while kernels are measured at shapes that they did not win."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from rich.console import Console

from tsm2_tune.console.heartbeat import LONG_SECONDS, Liveness
from tsm2_tune.console.kernel_sets import Measuring
from tsm2_tune.console.tables import print_line
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.events import Event, TrialInterrupted, TrialStored
from tsm2_tune.tuner.search.stopwatch import Phases


class Pairs:
    """Shows the events of a Crossing, and at the end the number of trials. Use as a context manager."""

    def __init__(self, console: Console, phases: Phases) -> None:
        self._console = console
        self._measuring = Measuring(console, "pairs", counts=("final",))
        self._liveness = Liveness(lambda seconds: self._measuring.goes_on(seconds, phases.now), LONG_SECONDS)
        self._outcomes = Counter[Outcome]()
        self._between = 0  # trials that were right at shapes that nobody tuned

    def __enter__(self) -> Pairs:
        self._measuring.__enter__()
        self._liveness.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._liveness.__exit__(kind, error, trace)
        self._measuring.__exit__(kind, error, trace)
        if kind is None and self._outcomes:
            print_line(self._console, self._text())

    def show(self, event: Event) -> None:
        """Update the screen for the event."""
        self._liveness.event()
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
