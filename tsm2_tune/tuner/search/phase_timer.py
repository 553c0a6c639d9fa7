"""Measure the seconds of each phase of a run."""

from __future__ import annotations

import time
from collections import defaultdict

from tsm2_tune.tuner.results.storage import outage


class PhaseTimer:
    """A clock that is always in one phase: a phase begins when the previous one ends."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._phase, self._since = "start", time.monotonic()

    def enter(self, name: str) -> None:
        """Begin the phase called `name`."""
        now = time.monotonic()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = name, now

    @property
    def now(self) -> str:
        """The current phase, or the wait for a database server that is down."""
        return outage.WAITING if outage.is_waited_for() else self._phase

    def taken(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call. The current phase goes on."""
        self.enter(self._phase)
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
