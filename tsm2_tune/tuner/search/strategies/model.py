"""The default strategy: seeds first, then the candidate with the least time predicted from the model and trials."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from math import log

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.order import Floats, expected_times_us
from tsm2_tune.tuner.search.strategies.grid import Grid
from tsm2_tune.tuner.search.strategies.strategy import Strategy, TrialResult

FAR_BEHIND = 4.0  # a family waits if its fastest candidate takes this many times the fastest of all
# Chosen without a measurement: so many trials cover the seeds of all families once.
FIRST = 8  # candidates tried before predictions are used, and timed before variants are made
LEADING = 3  # variants are made of so many of the fastest candidates
MOST = 20_000  # candidates with predicted times; later ones keep their order
# Chosen by replay on eight spaces: `python -m benchmarks.regret`; docs/design/search.md has other values.
NEAR = 0.4  # distance at which a trial has the weight exp(-1/2); a tunable's values range from 0 to 1
PRIOR = 0.3  # weight of a family's mean, in trials
HOPE = 1.0  # logarithm of the speedup that an unexplored candidate may have


class Expectation:
    """Predicts each candidate's time: the model's time, corrected by the ratios of measured to predicted times.

    The logarithm of the correction is a weighted mean over the trials of the family. A trial at the distance d has
    the weight exp(-(d / NEAR)^2 / 2), and the family's own mean has the weight PRIOR. A candidate with few trials
    nearby counts as exp(HOPE * sqrt(PRIOR / (PRIOR + weights))) times as fast.
    """

    def __init__(self, first: Sequence[Candidate], others: Sequence[Candidate]) -> None:
        """Start with these candidates. Trials of `first` count too, but only `others` are returned."""
        self.candidates = candidates = [*first, *others]
        self._place = {one.config: place for place, one in enumerate(candidates)}
        self._is_remaining = np.arange(len(candidates)) >= len(first)
        self._model: Floats = np.log(expected_times_us(candidates))
        self._weights, self._sums = np.zeros(len(candidates)), np.zeros(len(candidates))
        self._grids = Grid.of_families(candidates)
        self._means = dict.fromkeys(self._grids, (0, 0.0))  # trials, and the sum of their ratios

    def tell(self, result: TrialResult) -> None:
        """Take a trial into account."""
        place = self._place.get(result.config)
        if place is None:
            return
        self._is_remaining[place] = False
        if result.us is None:
            return
        ratio = log(result.us) - self._model[place]
        grid = self._grids[result.config.family]
        weights = np.exp(-grid.squares(place) / (2 * NEAR**2))
        self._weights[grid.places] += weights
        self._sums[grid.places] += weights * ratio
        trials, total = self._means[result.config.family]
        self._means[result.config.family] = (trials + 1, total + ratio)

    def fastest(self) -> Candidate | None:
        """Return the remaining candidate with the least predicted time, and remove it; None if none remains."""
        if not self._is_remaining.any():
            return None
        trials, total = map(sum, zip(*self._means.values(), strict=True))
        overall = total / max(trials, 1)
        of_family = np.empty(len(self.candidates))
        for name, (count, ratios) in self._means.items():
            of_family[self._grids[name].places] = (ratios + overall) / (count + 1)
        counted = self._weights + PRIOR
        expected = self._model + (self._sums + PRIOR * of_family) / counted - HOPE * np.sqrt(PRIOR / counted)
        place = int(np.where(self._is_remaining, expected, np.inf).argmin())
        self._is_remaining[place] = False
        return self.candidates[place]


class Model(Strategy):
    """Seeds, and other candidates up to FIRST, in their order; then the one with the least predicted time.

    Candidates of a family that is far behind wait. With `late` variants of the LEADING fastest candidates are tried,
    as soon as FIRST have a time or no other candidate remains.
    """

    def __init__(self, first: Sequence[Candidate], others: Sequence[Candidate] = (), *, late: bool = True) -> None:
        more = max(0, FIRST - len(first))
        first = [*first, *others[:more]]
        self._queue = iter(first)
        self._expected = Expectation(first, others[more:MOST])
        self._last = islice(others, MOST, None)
        self._waiting = deque[Candidate]()
        self._template = (
            next(chain(first, others), None) if late else None
        )  # any: of the problem, device and guidelines
        self._created = set[KernelConfig]()  # variants that were returned, and tried configurations
        self._times_us = dict[KernelConfig, float]()  # of right configurations
        self._in_order = list[tuple[float, str, KernelConfig]]()  # right ones that are no variants, the fastest first
        self._used = list[tuple[float, str, KernelConfig]]()  # leaders whose variants were all returned
        self._least_us = dict[str, float]()  # least time by family

    def ask(self) -> Candidate | None:
        late = self._late() if len(self._times_us) >= FIRST else None
        return late or self._in_line() or self._late()

    def tell(self, result: TrialResult) -> None:
        self._expected.tell(result)
        self._created.add(result.config)
        if result.us is not None:
            family = result.config.family
            self._least_us[family] = min(self._least_us.get(family, result.us), result.us)
            if result.is_right:
                self._take(result.config, result.us)

    def is_behind(self, candidate: Candidate) -> bool:
        own = self._least_us.get(candidate.config.family)
        return own is not None and own > FAR_BEHIND * min(self._least_us.values())

    def _take(self, config: KernelConfig, us: float) -> None:
        """Record the time of a right configuration, in place of its previous one."""
        before = self._times_us.get(config)
        self._times_us[config] = us
        if self._template is not None and config == config.early:
            if before is not None:
                self._in_order.remove((before, config.text, config))
            insort(self._in_order, (us, config.text, config), key=lambda one: one[:2])

    def _in_line(self) -> Candidate | None:
        """Return the next candidate that need not wait, or else the first that waits."""
        for candidate in self._queue:
            if not self.is_behind(candidate):
                return candidate
            self._waiting.append(candidate)
        found = self._expected.fastest() or next(self._last, None)
        return found or (self._waiting.popleft() if self._waiting else None)

    def _late(self) -> Candidate | None:
        """Return a variant of a leading candidate that was not returned yet."""
        leading = self._in_order[:LEADING]
        if self._template is None or leading == self._used:
            return None
        for _, _, leader in leading:
            family = family_named(leader.family)
            for config in family.later(leader):
                if config not in self._created:
                    self._created.add(config)
                    return replace(self._template, family=family, config=config)
        self._used = leading
        return None
