"""The candidates that a run tries for one problem, and the reason why a search ends."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from math import ceil, inf
from threading import RLock
from typing import Protocol

from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import Strategy, TrialResult

# A gain is predicted from this many trials: 100 for a gain of 5 %, 250 for 2 %, 500 for 1 % and less. The values were
# chosen by replaying stored searches of eight spaces: docs/design/search.md.
PER_GAIN, MOST_TRIALS = 5.0, 500
MOST_LOST = 2  # devices that may be lost during trials of a configuration before it is skipped


class Why(StrEnum):
    """The reason why a search ended."""

    ALL_TRIED = "all tried"
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


class Candidates(Iterator[Candidate], Protocol):
    """The candidates that a device tries: a Search in this process, or those that another process sends.

    After StopIteration the iterator may return more candidates.
    """

    @property
    def is_over(self) -> bool:
        """Whether candidates that were returned, but not tried yet, must be skipped."""

    @property
    def remaining(self) -> int | None:
        """The number of candidates that may still be returned; None: no limit."""

    @property
    def fastest_us(self) -> float | None:
        """The least time of a correct kernel so far; None without one."""

    def put_back(self, candidate: Candidate, *, is_suspect: bool = ...) -> None:
        """Return this candidate again, before others, since it has no trial."""

    def tell(self, result: TrialResult, seconds: float = ...) -> None:
        """Receive the result of a candidate's trial, which took `seconds`."""

    def is_postponed(self, candidate: Candidate) -> bool:
        """Return whether a candidate that was returned should now wait until no other candidate remains."""


class Search(Candidates):
    """Iterator over the untried candidates of one problem. Threads of several devices may share it.

    The candidates `first` are returned before the candidates of the strategy. Candidates for which `is_skipped`
    returns true are not returned. The search ends

    - after `most` candidates,
    - if the trials, those of earlier runs included, have taken `budget_seconds`, but not before `least` new trials,
    - if the predicted gain of more trials is less than `gain`.

    `lost` counts the devices that were lost during trials of a configuration, see `put_back`.

    After the end, and after candidates were put back, the iterator may return more candidates: the strategy may need
    the results of trials to choose the next candidates.
    """

    def __init__(
        self,
        strategy: Strategy,
        prior: PriorTrials = NO_PRIOR_TRIALS,
        is_skipped: Callable[[Candidate], bool] = lambda _: False,
        *,
        first: Iterable[Candidate] = (),
        most: int | None = None,
        budget_seconds: float | None = None,
        least: int = 0,
        gain: float | None = None,
        lost: Counter[str] | None = None,
    ) -> None:
        self.why = Why.ALL_TRIED
        self.skipped = set[str]()  # configurations that were skipped
        self._fastest_us = min((one.median_us for one in prior.contenders), default=None)  # of correct kernels
        self._strategy, self._is_skipped, self._first = strategy, is_skipped, iter(first)
        self._remaining, self._budget_seconds, self._least = most, budget_seconds, least
        self._seconds, self._trials = prior.seconds, 0
        self._gain = None if gain is None else Gain(gain)
        self._returned = set(prior.tried)
        self._put_back = deque[Candidate]()
        self._lost = Counter[str]() if lost is None else lost
        self._lock = RLock()
        for result in prior.results:
            strategy.tell(result)
            if self._gain is not None:
                self._gain.tell(result)
        self._judge()

    @property
    def is_over(self) -> bool:
        return self.why in (Why.BUDGET, Why.GAIN)

    @property
    def fastest_us(self) -> float | None:
        return self._fastest_us

    @property
    def remaining(self) -> int | None:
        return self._remaining

    def __next__(self) -> Candidate:
        with self._lock:
            if self._put_back and not self.is_over:
                return self._put_back.popleft()
            while self.why is Why.ALL_TRIED and (found := self._new()) is not None:
                if self._remaining == 0:
                    self.why = Why.MAX_TRIALS
                elif self._lost[found.config.text] >= MOST_LOST or self._is_skipped(found):
                    self.skipped.add(found.config.text)
                else:
                    self._remaining = None if self._remaining is None else self._remaining - 1
                    return found
            raise StopIteration

    def put_back(self, candidate: Candidate, *, is_suspect: bool = False) -> None:
        """Return this candidate again, before others, since it has no trial.

        `is_suspect` says that its device was lost during its trial. If MOST_LOST devices were lost in this way, the
        candidate is skipped.
        """
        with self._lock:
            self._lost[candidate.config.text] += is_suspect
            if self._lost[candidate.config.text] < MOST_LOST:
                self._put_back.append(candidate)
            else:
                self.skipped.add(candidate.config.text)

    def tell(self, result: TrialResult, seconds: float = 0.0) -> None:
        """Pass the result of a candidate's trial, which took `seconds`, to the strategy."""
        with self._lock:
            self._trials += 1
            self._seconds += seconds
            if result.is_right and result.us is not None:
                self._fastest_us = min(result.us, self._fastest_us or inf)
            self._strategy.tell(result)
            if self._gain is not None:
                self._gain.tell(result)
            self._judge()

    def is_postponed(self, candidate: Candidate) -> bool:
        with self._lock:
            return self._strategy.is_postponed(candidate)

    def _judge(self) -> None:
        """End the search if its budget is spent, or if more trials gain too little."""
        if self._budget_seconds is not None and self._seconds >= self._budget_seconds and self._trials >= self._least:
            self.why = Why.BUDGET
        elif self._gain is not None and self._gain.is_too_little:
            self.why = Why.GAIN

    def _new(self) -> Candidate | None:
        """Return the next candidate that was neither tried nor returned; None if the strategy has none now."""
        while (candidate := next(self._first, None) or self._strategy.ask()) is not None:
            if candidate.config.text not in self._returned:
                self._returned.add(candidate.config.text)
                return candidate
        return None
