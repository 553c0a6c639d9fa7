"""When a search has come so far that going on is expected to gain too little."""

from __future__ import annotations

from collections import deque
from math import ceil, inf

from tsm2_tune.tuner.search.strategies.strategy import Told

# Chosen by replay on eight spaces, where `model` then missed no more than the gain: docs/decisions/0112.
PER_GAIN, MOST = 5.0, 500  # trials that are looked back at: 100 for 5 %, 250 for 2 %, 500 for 1 % and less


class Gain:
    """Predicts the gain of further trials: that of the last PER_GAIN / least trials, but of at most MOST."""

    def __init__(self, least: float) -> None:
        self._least = least  # the gain below which a search is to end: of the time of the best
        trials = MOST if least == 0 else min(MOST, ceil(PER_GAIN / least))
        self._best_us = deque([inf], maxlen=trials + 1)  # before the first of them, and after each

    def tell(self, told: Told) -> None:
        """Take a trial into account."""
        us = told.us if told.us is not None and told.is_right else inf
        self._best_us.append(min(us, self._best_us[-1]))

    @property
    def is_too_little(self) -> bool:
        """Whether less than the least gain is expected."""
        return self._best_us[0] < (1 + self._least) * self._best_us[-1]
