"""The interface of a search strategy. It returns the next candidate to try and receives the trials' results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.results.trial import Outcome, Trial


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial, as it is passed to a strategy."""

    config: KernelConfig
    us: float | None  # median, of the first launches only for a slow kernel; None: no time
    is_right: bool  # whether the result is correct, so that the kernel may win


def result_of(trial: Trial) -> TrialResult:
    """Convert a trial to the result that is passed to a strategy."""
    us = None if trial.measurement is None else trial.measurement.median_us
    return TrialResult(trial.config, us, trial.outcome is Outcome.OK and us is not None)


class Strategy(ABC):
    """Base class of search strategies, which choose the order in which the candidates of a problem are tried.

    The order depends only on the strategy's arguments and on the results passed to `tell`: first the results of
    earlier runs, in the order in which they were stored, then the result of each trial. The caller may call `ask`
    several times before it passes a result. The caller skips candidates that were tried or returned before.
    """

    @abstractmethod
    def ask(self) -> Candidate | None:
        """Return the next candidate. Return None if the strategy has no candidate until more results are passed to
        `tell`. In the end every candidate is returned, slow ones last.
        """

    def tell(self, result: TrialResult) -> None:
        """Update the strategy with the result of a trial. The default does nothing."""
        return

    def is_postponed(self, candidate: Candidate) -> bool:
        """Return whether a candidate that `ask` has returned should now wait until no other candidate remains.

        It is asked when the candidate is compiled. Once `ask` returns only candidates that should wait, return False.
        """
        return False


class InOrder(Strategy):
    """A strategy that tries the candidates in the given order and ignores results."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._queue = iter(candidates)

    def ask(self) -> Candidate | None:
        return next(self._queue, None)
