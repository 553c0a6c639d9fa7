"""When a search has come so far that going on is expected to gain too little."""

from __future__ import annotations

from math import inf

from tsm2_tune.tuner.strategies.strategy import Told

LEAST = 100  # trials that are looked back at, at the least
SHARE = 0.5  # of all trials so far that are looked back at


class Gain:
    """What going on is expected to gain: as much as the last trials did, half of all and at least LEAST of them."""

    def __init__(self, least: float) -> None:
        self._least = least  # the gain below which a search is to end: of the time of the best
        self._best_us = [inf]  # after each trial

    def tell(self, told: Told) -> None:
        """Take a trial into account."""
        us = told.us if told.us is not None and told.is_right else inf
        self._best_us.append(min(us, self._best_us[-1]))

    @property
    def is_too_little(self) -> bool:
        """Whether less than the least gain is expected."""
        trials = len(self._best_us) - 1
        before = trials - max(LEAST, round(SHARE * trials))
        return before > 0 and self._best_us[before] < (1 + self._least) * self._best_us[-1]
