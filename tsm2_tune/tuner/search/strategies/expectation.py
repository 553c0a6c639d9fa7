"""How long candidates are expected to take, by the model and by the trials so far of those that are like them."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.order import Floats, expected_times_us
from tsm2_tune.tuner.search.strategies.grid import Grid
from tsm2_tune.tuner.search.strategies.strategy import Told

# Chosen by replay on eight spaces: `python -m benchmarks.regret`; docs/decisions/0112 says what others did.
NEAR = 0.4  # distance, where a tunable's values are from 0 to 1, at which a trial counts exp(-1/2)
PRIOR = 0.3  # trials that the mean of a family counts as much as
HOPE = 1.0  # logarithm of how many times as fast a candidate may be of which nothing is known


class Expectation:
    """Predicts each candidate's time: the model's time, corrected by the ratios of measured to predicted times of
    trials.

    The logarithm of the correction is a weighted mean over the trials of the family: a trial at the distance d has
    the weight exp(-(d / NEAR)^2 / 2), and the family's own mean has the weight PRIOR. A candidate with few trials
    near it gets a bonus: it is taken for exp(HOPE * sqrt(PRIOR / (PRIOR + weights))) times as fast.
    """

    def __init__(self, first: Sequence[Candidate], others: Sequence[Candidate]) -> None:
        """Start with these candidates. Trials of `first` count too, but only `others` are returned."""
        self.candidates = candidates = [*first, *others]
        self._place = {one.config: place for place, one in enumerate(candidates)}
        self._is_left = np.arange(len(candidates)) >= len(first)
        self._model: Floats = np.log(expected_times_us(candidates))
        self._weights, self._sums = np.zeros(len(candidates)), np.zeros(len(candidates))
        self._grids = Grid.of_families(candidates)
        self._means = dict.fromkeys(self._grids, (0, 0.0))  # trials, and the sum of their ratios

    def tell(self, told: Told) -> None:
        """Take a trial into account."""
        place = self._place.get(told.config)
        if place is None:
            return
        self._is_left[place] = False
        if told.us is None:
            return
        ratio = log(told.us) - self._model[place]
        grid = self._grids[told.config.family]
        weights = np.exp(-grid.squares(place) / (2 * NEAR**2))
        self._weights[grid.places] += weights
        self._sums[grid.places] += weights * ratio
        trials, total = self._means[told.config.family]
        self._means[told.config.family] = (trials + 1, total + ratio)

    def fastest(self) -> Candidate | None:
        """Return the remaining candidate with the least predicted time, and remove it; None if none remains."""
        if not self._is_left.any():
            return None
        trials, total = map(sum, zip(*self._means.values(), strict=True))
        overall = total / max(trials, 1)
        of_family = np.empty(len(self.candidates))
        for name, (count, ratios) in self._means.items():
            of_family[self._grids[name].places] = (ratios + overall) / (count + 1)
        counted = self._weights + PRIOR
        expected = self._model + (self._sums + PRIOR * of_family) / counted - HOPE * np.sqrt(PRIOR / counted)
        place = int(np.where(self._is_left, expected, np.inf).argmin())
        self._is_left[place] = False
        return self.candidates[place]
