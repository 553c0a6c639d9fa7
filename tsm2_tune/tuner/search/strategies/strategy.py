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
    """How a trial ended, as far as a strategy looks."""

    config: KernelConfig
    us: float | None  # its median; of one that was behind, that of its first launches; None if it has no time
    is_right: bool  # whether it may win


def result_of(trial: Trial) -> TrialResult:
    """Return a trial's result for a strategy."""
    us = None if trial.measurement is None else trial.measurement.median_us
    return TrialResult(trial.config, us, trial.outcome is Outcome.OK and us is not None)


class Strategy(ABC):
    """The order in which the candidates of one problem are tried.

    It is a function of its arguments and of what it is told: the trials of earlier runs first, in the order they
    were stored, then each trial as it ends. It may be asked for several before it is told of one. Whoever asks drops
    a candidate that was tried or given before, and those that another run has.
    """

    @abstractmethod
    def ask(self) -> Candidate | None:
        """Return the next candidate; None if there is none now, though what it is told may change that."""

    def tell(self, result: TrialResult) -> None:
        """Take a trial into account."""
        return

    def is_behind(self, candidate: Candidate) -> bool:
        """Return whether a candidate that was given is to wait by now until no other is left."""
        return False


class InOrder(Strategy):
    """The candidates in the order in which they are given, whatever comes of them."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._queue = iter(candidates)

    def ask(self) -> Candidate | None:
        return next(self._queue, None)
