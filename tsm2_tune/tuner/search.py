"""The candidates that a run tries of one problem, each new and claimed, and why the search ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.tuner.past import NOTHING_PAST, Claimed, Past
from tsm2_tune.tuner.strategies.gain import Gain
from tsm2_tune.tuner.strategies.strategy import Strategy, Told

Claim = Callable[[Candidate], Claimed]


class Why(StrEnum):
    """Why a search ended."""

    ALL_TRIED = "all tried"  # all candidates of the strategy; others are claimed by another run
    MAX_TRIALS = "max-trials"
    BUDGET = "budget"
    GAIN = "gain"  # less is expected of going on than was asked for


class Search(Iterator[Candidate]):
    """The candidates of one problem that were not tried, each claimed before it is given.

    There may be another one after there was none: what `tell` hears of changes that. Those `first` come before the
    strategy's. `most` is how many are given at the most; None is no limit. It ends once less than a `gain` is
    expected of going on; None is no such end.
    """

    def __init__(
        self,
        strategy: Strategy,
        past: Past = NOTHING_PAST,
        claim: Claim = lambda _: Claimed.YES,
        *,
        first: Iterable[Candidate] = (),
        most: int | None = None,
        gain: float | None = None,
    ) -> None:
        self.past, self.why = past, Why.ALL_TRIED
        self._strategy, self._claim, self._first = strategy, claim, iter(first)
        self._left = most
        self._gain = None if gain is None else Gain(gain)
        self._given = set(past.tried)
        self._back: Candidate | None = None
        self._heard: Told | None = None
        for told in past.told:
            strategy.tell(told)
            if self._gain is not None:
                self._gain.tell(told)
        self._judge()

    @property
    def is_over(self) -> bool:
        """Whether also what was given is tried no more."""
        return self.why in (Why.BUDGET, Why.GAIN)

    def __next__(self) -> Candidate:
        if self._back is not None:
            candidate, self._back = self._back, None
            return candidate
        while self.why is Why.ALL_TRIED and (found := self._new()) is not None:
            answer = Claimed.ENOUGH if self._left == 0 else self._claim(found)
            if answer is Claimed.ENOUGH:
                self.why = Why.MAX_TRIALS
            elif answer is Claimed.YES:
                self._left = None if self._left is None else self._left - 1
                return found
        raise StopIteration

    @property
    def left(self) -> int | None:
        """How many are given at the most from now on; None is no limit."""
        return self._left

    def put_back(self, candidate: Candidate) -> None:
        """Give this one again, the next time."""
        self._back = candidate

    def tell(self, told: Told) -> None:
        """Take the trial of one of them into account."""
        self.hear(told)
        self.learn()

    def hear(self, told: Told) -> None:
        """The same, but tell the strategy when there is time for it, which is before the next one is heard of."""
        self.learn()
        self._heard = told
        if self._gain is not None:
            self._gain.tell(told)
            self._judge()

    def learn(self) -> bool:
        """Tell the strategy of the trial that was heard of last; False if that is done."""
        if self._heard is None:
            return False
        told, self._heard = self._heard, None
        self._strategy.tell(told)
        return True

    def is_behind(self, candidate: Candidate) -> bool:
        """Return whether one that was given is to wait by now until no other is left."""
        return self._strategy.is_behind(candidate)

    def end(self, why: Why) -> None:
        """Give no more."""
        self.why = why

    def _judge(self) -> None:
        if self._gain is not None and self._gain.is_too_little:
            self.why = Why.GAIN

    def _new(self) -> Candidate | None:
        """Return the next that was neither tried nor given; it counts as given now.

        What was heard of may change that.
        """
        while (candidate := next(self._first, None) or self._strategy.ask()) is not None or self.learn():
            if candidate is not None and candidate.config.text not in self._given:
                self._given.add(candidate.config.text)
                return candidate
        return None
