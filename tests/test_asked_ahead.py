"""A worker that is asked for the next trial while it is at one answers each request once, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import replace

import pytest

from tests.conftest import ONCE, compiled
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search.candidates import Search, Why
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.strategy import InOrder
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.worker import client as workers
from tsm2_tune.tuner.worker.client import Worker
from tsm2_tune.tuner.worker.protocol import Attempt

pytestmark = pytest.mark.host

PROBLEM = Problem(64, 2, 64, "f32")
CONFIGS = [Tsm2Config("v2", 32, columns, 4) for columns in (1, 2, 3, 4)]
RIGHT, WRONG, FAULTY, ENDLESS = "", "alpha = 2;", "*(volatile int *)8 = 1;", "for (volatile int i = 0;; ++i) {}"
BODY = "const index_t row ="


@pytest.fixture
def hasty(support_path: str) -> Iterator[Worker]:
    """With a limit that an endless kernel passes soon."""
    worker = Worker("cpu", lambda: support_path, limit_seconds=2.0)
    yield worker
    worker.close()


@pytest.fixture
def request_for(quickest: Toolchain) -> Callable[[str], Attempt]:
    """A request for a kernel with something planted."""

    def made(planted: str) -> Attempt:
        source = render(PROBLEM, CONFIGS[0])
        assert BODY in source.text
        text = source.text.replace(BODY, f"{planted} {BODY}", 1)
        binary = compiled(text, source.kernel, quickest, source.defines)
        return Attempt(PROBLEM, Entry(binary.path, source.kernel, source.launch), (), seed=1, effort=ONCE)

    return made


def asked_all(worker: Worker, *requests: Attempt) -> list[Outcome]:
    """The outcomes of requests that are all sent before the first is answered."""
    for request in requests:
        worker.send_ahead(request)
    return [worker.attempt(request).outcome for request in requests]


@pytest.mark.parametrize(
    ("planted", "outcome"),
    [
        (RIGHT, Outcome.OK),
        (WRONG, Outcome.WRONG_RESULT),
        (FAULTY, Outcome.CRASHED),
        (ENDLESS, Outcome.TIMED_OUT),
    ],
    ids=["right", "wrong", "faulty", "endless"],
)
def test_each_request_has_its_own_answer(
    hasty: Worker, request_for: Callable[[str], Attempt], planted: str, outcome: Outcome
) -> None:
    one, other = request_for(planted), request_for(RIGHT)
    assert hasty.attempt(other).outcome is Outcome.OK  # a process runs
    assert asked_all(hasty, one, other) == [outcome, Outcome.OK]
    assert asked_all(hasty, other, one, request_for(RIGHT)) == [Outcome.OK, outcome, Outcome.OK]
    assert not hasty._sent


def test_answer_to_a_dropped_request_is_discarded(hasty: Worker, request_for: Callable[[str], Attempt]) -> None:
    right, wrong = request_for(RIGHT), request_for(WRONG)
    assert hasty.attempt(right).outcome is Outcome.OK
    hasty.send_ahead(wrong)
    assert isinstance(hasty.ceilings(), Ceilings)
    hasty.send_ahead(wrong)
    hasty.send_ahead(right)
    assert hasty.attempt(request_for(RIGHT)).outcome is Outcome.OK
    assert hasty.attempt(wrong).outcome is Outcome.WRONG_RESULT


def test_a_worker_that_is_killed_is_asked_again(hasty: Worker, request_for: Callable[[str], Attempt]) -> None:
    right, wrong = request_for(RIGHT), request_for(WRONG)
    assert hasty.attempt(right).outcome is Outcome.OK
    hasty.send_ahead(wrong)
    hasty.send_ahead(right)
    os.kill(hasty._process.pid, signal.SIGKILL)
    assert [hasty.attempt(one).outcome for one in (wrong, right)] == [Outcome.WRONG_RESULT, Outcome.OK]


def test_a_process_on_the_host_ends_after_some_requests(
    hasty: Worker, request_for: Callable[[str], Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "REQUESTS_PER_PROCESS", 4)
    right, processes = request_for(RIGHT), set()
    for _ in range(8):
        assert hasty.attempt(right).outcome is Outcome.OK
        processes.add(hasty._process.pid)
    assert len(processes) == 3


@pytest.fixture
def pretended(quick: Toolchain) -> Iterator[Tuner]:
    """A tuner that takes the host for a GPU."""
    target = replace(find_target("cpu"), toolchain=quick)
    with Tuner(target, Options(reach=None)) as tuner:
        _ = tuner.ceilings
        tuner.target = replace(tuner.target, spec="0")
        yield tuner


def candidates_of(tuner: Tuner) -> list[Candidate]:
    found = [Candidate(family_named("tsm2"), one, PROBLEM, tuner.target.limits, Guidelines()) for one in CONFIGS]
    wait(tuner.compile_ahead(found))
    return found


def test_trials_on_a_gpu_are_asked_for_ahead_and_come_in_their_order(pretended: Tuner) -> None:
    """Nobody listens meanwhile: that time is a phase of its own, as the worker does not wait."""
    pretended.phases.taken()
    trials, asked = [], 0
    for trial in pretended.tune(Search(InOrder(candidates_of(pretended)))):
        trials.append(trial)
        asked += bool(pretended.worker._sent)
        time.sleep(0.05)
    assert [trial.config for trial in trials] == CONFIGS
    assert {trial.outcome for trial in trials} == {Outcome.OK}
    assert asked == len(CONFIGS) - 1
    assert pretended.worker._requests == len(CONFIGS) + 1  # with the ceilings
    assert pretended.phases.taken()[workers.SENT_AHEAD] >= 0.05 * (asked - 1)  # of which the last was


def test_what_was_asked_for_is_tried_where_a_search_ends(pretended: Tuner) -> None:
    search = Search(InOrder(candidates_of(pretended)), budget_seconds=0.0, least=1)
    trials = list(pretended.tune(search))
    assert [trial.config for trial in trials] == CONFIGS[:2]  # the worker had the second when the first ended
    assert search.why is Why.BUDGET
    assert not pretended.worker._sent


def test_a_search_that_is_left_leaves_no_answer(pretended: Tuner) -> None:
    candidates = candidates_of(pretended)
    for _ in pretended.tune(Search(InOrder(candidates))):
        break
    again = list(pretended.tune(Search(InOrder(candidates))))
    assert [(trial.config, trial.outcome) for trial in again] == [(config, Outcome.OK) for config in CONFIGS]
