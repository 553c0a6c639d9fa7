"""Where a run's time goes: seconds by phase."""

from __future__ import annotations

import time
from collections import defaultdict

from tsm2_tune.tuner.results.storage import outage


class PhaseTimer:
    """A clock that is always in one phase: each begins where the one before ends."""

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
        """The phase that it is in; that a server is waited for, where one is."""
        return outage.WAITING if outage.is_waited_for() else self._phase

    def taken(self) -> dict[str, float]:
        """Return the seconds of each phase since this was last asked; the clock goes on in the same one."""
        self.enter(self._phase)
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds
