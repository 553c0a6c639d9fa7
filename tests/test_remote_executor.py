"""Answers of a device's process that the run did not ask for."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from tests.fabricated import PROBLEM, measurement
from tests.simulated import RUN, SHAPES, TARGET, stored_trial
from tsm2_tune.errors import WorkerError
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.results.trial import Final, Trial
from tsm2_tune.tuner.runs.messages import FinalEnded, Opened, TrialEnded
from tsm2_tune.tuner.runs.remote_executor import RemoteExecutor
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate
from tsm2_tune.tuner.search.strategies.strategy import InOrder

FIRST, SECOND, THIRD = list(search_space(PROBLEM, TARGET.limits, families=["tsm2"]).kept)[:3]


class Answers:
    """A channel from which these answers are received."""

    def __init__(self, *answers: object) -> None:
        self._answers = deque[object]([Opened(TARGET, RUN.ceilings, 2), *answers])

    def send(self, message: Any) -> None: ...

    def recv(self) -> Any:
        return self._answers.popleft()

    def poll(self, timeout: float = 0.0) -> bool:
        return bool(self._answers)


def opened(*answers: object) -> RemoteExecutor:
    executor = RemoteExecutor(Answers(*answers), TARGET, Options(), wait=False)
    executor.open(print)
    return executor


def ended(candidate: Candidate, **changes: Any) -> TrialEnded:
    return TrialEnded(replace(stored_trial(candidate.config, candidate.problem, 100.0), **changes))


@pytest.mark.parametrize("answers", [[ended(FIRST), ended(FIRST)], [ended(THIRD)], [ended(FIRST, problem=SHAPES[1])]])
def test_a_trial_that_was_not_asked_for_is_an_error(answers: list[TrialEnded]) -> None:
    search, found = Search(InOrder([FIRST, SECOND])), list[Trial]()
    with pytest.raises(WorkerError, match=r"its process sent a trial of tsm2:.* that it was not asked for"):
        found.extend(opened(*answers).tune(search))
    assert len(list(search)) == 3 - len(answers)  # the others are put back


@pytest.mark.parametrize(("candidate", "problem"), [(FIRST, SHAPES[1]), (THIRD, PROBLEM)])
def test_a_final_that_was_not_asked_for_is_an_error(candidate: Candidate, problem: Any) -> None:
    asked = replace(NO_PRIOR_TRIALS, contenders=tuple(FinalCandidate(one.config, 1.0) for one in (FIRST, SECOND)))
    final = Final(problem, ((candidate.config, measurement(1.0)),))
    with pytest.raises(WorkerError, match=r"its process sent a final of .* that it was not asked for"):
        opened(FinalEnded(final, None)).final(PROBLEM, asked)
