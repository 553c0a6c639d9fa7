"""The interface of a search strategy: ask it for the next candidate, tell it the result of each trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.results.trial import Outcome, Trial


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial for a strategy."""

    config: KernelConfig
    us: float | None  # median; of the first launches if the kernel was behind; None without a time
    is_right: bool  # whether it may win


def result_of(trial: Trial) -> TrialResult:
    """Return a trial's result for a strategy."""
    us = None if trial.measurement is None else trial.measurement.median_us
    return TrialResult(trial.config, us, trial.outcome is Outcome.OK and us is not None)


class Strategy(ABC):
    """The order in which the candidates of one problem are tried.

    The order depends only on the strategy's arguments and on the results: first those of earlier runs, in the order
    they were stored, then each as its trial ends. A strategy may be asked for several candidates before it gets a
    result. The caller drops candidates that were tried, were returned before, or are claimed by another run.
    """

    @abstractmethod
    def ask(self) -> Candidate | None:
        """Return the next candidate; None if there is none now, which a result may change."""

    def tell(self, result: TrialResult) -> None:
        """Take a trial into account."""
        return

    def is_behind(self, candidate: Candidate) -> bool:
        """Return whether a candidate that was returned is now to wait until no other remains."""
        return False


class InOrder(Strategy):
    """The candidates in the given order, whatever the results."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._queue = iter(candidates)

    def ask(self) -> Candidate | None:
        return next(self._queue, None)
