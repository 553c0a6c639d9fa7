"""The candidates that a run tries for one problem, and the reason why a search ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from math import ceil, inf

from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, ClaimResult, PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import Strategy, TrialResult

# A gain is predicted from this many trials: 100 for a gain of 5 %, 250 for 2 %, 500 for 1 % and less. The values were
# chosen by replaying stored searches of eight spaces: docs/design/search.md.
PER_GAIN, MOST_TRIALS = 5.0, 500

Claim = Callable[[Candidate], ClaimResult]


class Why(StrEnum):
    """The reason why a search ended."""

    ALL_TRIED = "all tried"  # all candidates, except those claimed by another run
    MAX_TRIALS = "max-trials"
    BUDGET = "budget"
    GAIN = "gain"  # the predicted gain of more trials is below the option `gain`


class Gain:
    """Predictor of how much faster the best kernel becomes by more trials: as much as by the latest trials.

    The latest PER_GAIN / `least` trials count, but at most MOST_TRIALS. `least` is the smallest gain for which a
    search continues: 0.01 means 1 % faster.
    """

    def __init__(self, least: float) -> None:
        self._least = least  # relative gain below which a search ends
        trials = MOST_TRIALS if least == 0 else min(MOST_TRIALS, ceil(PER_GAIN / least))
        self._best_us = deque([inf], maxlen=trials + 1)  # best time before the trials, and after each

    def tell(self, result: TrialResult) -> None:
        """Update the best time with the result of a trial."""
        us = result.us if result.us is not None and result.is_right else inf
        self._best_us.append(min(us, self._best_us[-1]))

    @property
    def is_too_little(self) -> bool:
        """Whether the predicted gain is below `least`."""
        return self._best_us[0] < (1 + self._least) * self._best_us[-1]


class Search(Iterator[Candidate]):
    """Iterator over the untried candidates of one problem.

    Before a candidate is returned, it is claimed, so that no concurrent run tries it. The candidates `first` are
    returned before the candidates of the strategy. If `most` is not None, at most this number of candidates is
    returned. If `gain` is not None, the search ends when the predicted gain of more trials is less than `gain`. After
    the end, the iterator may return more candidates if new results are passed to `tell`.
    """

    def __init__(
        self,
        strategy: Strategy,
        prior: PriorTrials = NO_PRIOR_TRIALS,
        claim: Claim = lambda _: ClaimResult.OURS,
        *,
        first: Iterable[Candidate] = (),
        most: int | None = None,
        gain: float | None = None,
    ) -> None:
        self.prior, self.why = prior, Why.ALL_TRIED
        self._strategy, self._claim, self._first = strategy, claim, iter(first)
        self._remaining = most
        self._gain = None if gain is None else Gain(gain)
        self._returned = set(prior.tried)
        self._put_back: Candidate | None = None
        self._noted: TrialResult | None = None
        for result in prior.results:
            strategy.tell(result)
            if self._gain is not None:
                self._gain.tell(result)
        self._judge()

    @property
    def is_over(self) -> bool:
        """Whether candidates that were returned, but not tried yet, must be skipped."""
        return self.why in (Why.BUDGET, Why.GAIN)

    def __next__(self) -> Candidate:
        if self._put_back is not None:
            candidate, self._put_back = self._put_back, None
            return candidate
        while self.why is Why.ALL_TRIED and (found := self._new()) is not None:
            answer = ClaimResult.LIMIT_REACHED if self._remaining == 0 else self._claim(found)
            if answer is ClaimResult.LIMIT_REACHED:
                self.why = Why.MAX_TRIALS
            elif answer is ClaimResult.OURS:
                self._remaining = None if self._remaining is None else self._remaining - 1
                return found
        raise StopIteration

    @property
    def remaining(self) -> int | None:
        """The number of candidates that may still be returned; None: no limit."""
        return self._remaining

    def put_back(self, candidate: Candidate) -> None:
        """Make the next call of `__next__` return this candidate."""
        self._put_back = candidate

    def tell(self, result: TrialResult) -> None:
        """Pass the result of a candidate's trial to the strategy now."""
        self.note(result)
        self.update_strategy()

    def note(self, result: TrialResult) -> None:
        """Store the result of a trial. `update_strategy`, or the next call of `note`, passes it to the strategy."""
        self.update_strategy()
        self._noted = result
        if self._gain is not None:
            self._gain.tell(result)
            self._judge()

    def update_strategy(self) -> bool:
        """Pass the result stored by `note` to the strategy. Return False if no result is stored."""
        if self._noted is None:
            return False
        result, self._noted = self._noted, None
        self._strategy.tell(result)
        return True

    def is_behind(self, candidate: Candidate) -> bool:
        """Return whether a candidate that was returned should now wait until no other candidate remains."""
        return self._strategy.is_behind(candidate)

    def end(self, why: Why) -> None:
        """End the search for the reason `why`."""
        self.why = why

    def _judge(self) -> None:
        if self._gain is not None and self._gain.is_too_little:
            self.why = Why.GAIN

    def _new(self) -> Candidate | None:
        """Return the next candidate that was neither tried nor returned, and mark it as returned. Return None if none
        remains.

        If the strategy has no candidate, pass it the result stored by `note` and try again.
        """
        while (candidate := next(self._first, None) or self._strategy.ask()) is not None or self.update_strategy():
            if candidate is not None and candidate.config.text not in self._returned:
                self._returned.add(candidate.config.text)
                return candidate
        return None
