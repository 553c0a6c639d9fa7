"""A timer for the phases of a run."""

from __future__ import annotations

import time
from collections import defaultdict

from tsm2_tune.tuner.results.storage import outage

START, LOCK = "start", "the device's lock"  # phases: of what comes first; of the wait for another run's end


class PhaseTimer:
    """A timer of a run's phases, of which exactly one is current at any time."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._phase, self._since = START, time.monotonic()

    def enter(self, name: str) -> None:
        """End the current phase and begin the phase `name`."""
        now = time.monotonic()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = name, now

    @property
    def now(self) -> str:
        """The name of the current phase, or outage.WAITING while the run waits for the database server."""
        return outage.WAITING if outage.is_waited_for() else self._phase

    def taken(self) -> dict[str, float]:
        """Return the seconds spent in each phase since the last call. The current phase continues."""
        self.enter(self._phase)
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
