"""What a search tries next: the candidates in their order, and what is made of the fastest few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import family_named
from tsm2_tune.tuner.past import Claimed, Past
from tsm2_tune.tuner.trial import Outcome, Trial

Claim = Callable[[Candidate], Claimed]
# A judgement, which nothing was measured for: by then the first choices of the families were tried once.
FIRST = 8  # candidates are right and timed before anything is made of them
LEADING = 3  # the fastest of them, of which others are made


class Leading(Iterator[Candidate]):
    """The candidates of one problem that were not tried, each claimed before it is given.

    There may be another one after there was none: what `tell` hears of changes that.

    What a search tries late is made of the fastest candidates: once FIRST have a time, or no other is left, and again
    whenever one becomes as fast. `most` is how many are given at the most; None is no limit. Without
    `late` nothing is made of any.
    """

    def __init__(
        self, candidates: Iterable[Candidate], past: Past, claim: Claim, most: int | None, *, late: bool = True
    ) -> None:
        self._candidates: Iterator[Candidate] = iter(candidates)
        self._claim, self._left, self._makes = claim, most, late
        self._given = set(past.tried)
        self._times_us = {one.config: one.median_us for one in past.contenders}
        self._back: Candidate | None = None
        self._like: Candidate | None = None  # any candidate: of the problem, the device and the guidelines

    def __next__(self) -> Candidate:
        if self._back is not None:
            candidate, self._back = self._back, None
            return candidate
        while self._left != 0 and (found := self._untried()) is not None:
            answer = self._claim(found)
            if answer is Claimed.ENOUGH:
                self._left = 0
            elif answer is Claimed.YES:
                self._left = None if self._left is None else self._left - 1
                return found
        raise StopIteration

    def put_back(self, candidate: Candidate) -> None:
        """Give this one again, the next time."""
        self._back = candidate

    def tell(self, trial: Trial) -> None:
        """Take the trial of one of them into account."""
        if trial.outcome is Outcome.OK and trial.measurement is not None:
            self._times_us[trial.config] = trial.measurement.median_us

    def _untried(self) -> Candidate | None:
        if len(self._times_us) >= FIRST and (late := self._late()) is not None:
            return late
        for candidate in self._candidates:
            self._like = candidate
            if self._is_new(candidate.config):
                return candidate
        return self._late()

    def _late(self) -> Candidate | None:
        """What is made of a leading candidate, and was not given yet."""
        if self._like is None or not self._makes:
            return None
        own = (config for config in self._times_us if config == config.early)
        for leader in sorted(own, key=lambda config: (self._times_us[config], config.text))[:LEADING]:
            family = family_named(leader.family)
            for config in family.later(leader):
                if self._is_new(config):
                    return replace(self._like, family=family, config=config)
        return None

    def _is_new(self, config: KernelConfig) -> bool:
        """Whether it was neither tried nor given; it counts as given now."""
        if config.text in self._given:
            return False
        self._given.add(config.text)
        return True
