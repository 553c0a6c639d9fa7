"""The default strategy: first seeds (fast kernels of similar problems), then the candidates with the least predicted
time.

Predictions combine an analytic model and the measured times of earlier trials.
"""

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
from tsm2_tune.generator.space.candidate import Candidate, Floats
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.search.strategies.grid import Grid
from tsm2_tune.tuner.search.strategies.strategy import Strategy, TrialResult

FAR_BEHIND = 4.0  # a family waits if its best time exceeds the best time of all by this factor
# Not tuned: this many trials cover the seeds of all families once.
FIRST = 8  # trials before predictions are used, and timed trials before variants are tried
LEADING = 3  # number of fastest candidates whose variants are tried
MOST = 20_000  # number of candidates with predicted times; the rest keep their order
# Chosen by replaying stored searches of eight spaces: `python -m benchmarks.regret`, docs/design/search.md.
NEAR = 0.5  # distance at which a trial has the weight exp(-1/2); coordinates are from 0 to 1
PRIOR = 0.3  # weight of the family's mean, compared with 1 for one trial
HOPE = 1.0  # logarithm of the speedup assumed for candidates without trials nearby


class Expectation:
    """Predictor of each candidate's time: an analytic model's time, times a correction factor from measured times.

    The logarithm of the factor is a weighted mean of log(measured / model time) over the trials of the family. A
    trial at distance d has the weight exp(-(d / NEAR)^2 / 2). The family's mean has the weight PRIOR. To explore, the
    predicted time of a candidate is divided by exp(HOPE * sqrt(PRIOR / (PRIOR + sum of weights))). This divisor is
    large if few trials are near the candidate.
    """

    def __init__(self, first: Sequence[Candidate], others: Sequence[Candidate]) -> None:
        """Predict the times of the candidates in `first` and `others`. `fastest` returns only members of `others`."""
        self.candidates = candidates = [*first, *others]
        self._place = {one.config: place for place, one in enumerate(candidates)}
        self._is_remaining = np.arange(len(candidates)) >= len(first)
        self._model: Floats = np.log(candidate_times_us(candidates))
        self._weights, self._sums = np.zeros(len(candidates)), np.zeros(len(candidates))
        self._grids = Grid.of_families(candidates)
        self._means = dict.fromkeys(self._grids, (0, 0.0))  # family -> (trials, sum of their log ratios)

    def tell(self, result: TrialResult) -> None:
        """Update the predictions with the result of a trial."""
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
        """Remove and return the candidate with the least predicted time; None if none remains."""
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
    """The default strategy: first seeds (fast kernels of similar problems), then the candidates with the least
    predicted time.

    If there are fewer than FIRST seeds, other candidates are tried before predictions are used.

    If the best time of a family is far longer than the best time of all families, candidates of this family wait
    until no other candidate remains. If `late` is true, variants of the LEADING fastest candidates are tried as soon
    as FIRST candidates have a time, or when no other candidate remains.
    """

    def __init__(self, first: Sequence[Candidate], others: Sequence[Candidate] = (), *, late: bool = True) -> None:
        more = max(0, FIRST - len(first))
        first = [*first, *others[:more]]
        self._queue = iter(first)
        self._expected = Expectation(first, others[more:MOST])
        self._last = islice(others, MOST, None)
        self._waiting = deque[Candidate]()
        self._is_waiting_over = False  # whether no candidate remains but those that wait
        self._template = (
            next(chain(first, others), None) if late else None
        )  # any candidate of the problem; its config is replaced
        self._created = set[KernelConfig]()  # variants that were returned, and tried configurations
        self._times_us = dict[KernelConfig, float]()  # times of correct configurations
        self._in_order = list[tuple[float, str, KernelConfig]]()  # correct ones, no variants, fastest first
        self._used = list[tuple[float, str, KernelConfig]]()  # fastest ones whose variants were all returned
        self._least_us = dict[str, float]()  # family -> least time

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

    def is_postponed(self, candidate: Candidate) -> bool:
        own = self._least_us.get(candidate.config.family)
        is_behind = own is not None and own > FAR_BEHIND * min(self._least_us.values())
        return is_behind and not self._is_waiting_over

    def _take(self, config: KernelConfig, us: float) -> None:
        """Store the time of a correct configuration. It replaces an earlier time."""
        before = self._times_us.get(config)
        self._times_us[config] = us
        if self._template is not None and config == config.early:
            if before is not None:
                self._in_order.remove((before, config.text, config))
            insort(self._in_order, (us, config.text, config), key=lambda one: one[:2])

    def _in_line(self) -> Candidate | None:
        """Return the next candidate that need not wait, else the first waiting one; None if no candidate remains."""
        while (candidate := self._next()) is not None:
            if not self.is_postponed(candidate):
                return candidate
            self._waiting.append(candidate)
        self._is_waiting_over = True
        return self._waiting.popleft() if self._waiting else None

    def _next(self) -> Candidate | None:
        """Return the next candidate, whether or not it should wait; None if no candidate remains."""
        return next(self._queue, None) or self._expected.fastest() or next(self._last, None)

    def _late(self) -> Candidate | None:
        """Return an untried variant of one of the LEADING fastest candidates; None if there is none."""
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
