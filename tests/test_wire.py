"""Messages between a run and a device's process: they come back the same, nothing else is read or was asked for."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any

import pytest

import tsm2_tune
from tests.fabricated import PROBLEM, configuration, final, measurement, trial, tuning_run, vendor_measurement
from tests.hostile import ODD_MEMBERS
from tests.simulated import RUN, SHAPES, TARGET, stored_trial
from tsm2_tune.errors import StoreError, WorkerError
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.trial import Cache, Final, Outcome, Trial, Verdict
from tsm2_tune.tuner.runs import messages
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.runs.messages import FinalEnded, Malformed, Opened, TrialEnded, decode, encode
from tsm2_tune.tuner.runs.remote_executor import RemoteExecutor
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS, FinalCandidate, PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import InOrder, TrialResult
from tsm2_tune.tuner.worker.protocol import AttemptResult

CONFIG = configuration(128)


def requests() -> Iterator[Any]:
    options = Options(seed=3, retried=frozenset({Outcome.CRASHED}), gain=0.01, cache=Cache.CLEAN)
    prior = PriorTrials(
        frozenset({CONFIG.text}), 2.5, (FinalCandidate(CONFIG, 5.0, 6.0, is_new=False),), frozenset({CONFIG.text}),
        vendor=frozenset({("580.1", "cuBLAS", 130100)}), results=(TrialResult(CONFIG, None, is_right=False),),
    )  # fmt: skip
    yield messages.OpenDevice(None, options, wait=True)
    yield messages.OpenDevice("cpu", options, wait=False)
    yield messages.OpenDevice(find_target("cpu"), options, wait=False)
    yield messages.Expect(PROBLEM)
    yield messages.BeginSearch(PROBLEM, options, 5.5)
    yield messages.Try(CONFIG, Guidelines(), None)
    yield messages.EndSearch()
    yield messages.RunFinal(PROBLEM, options, prior, (CONFIG.text,), repeat=True)
    yield messages.VerifyInFull(PROBLEM, CONFIG)


def answers() -> Iterator[Any]:
    ceilings = tuning_run().ceilings
    yield messages.Opened(find_target("cpu"), ceilings, 34)
    yield messages.Note("another run uses the device")
    yield messages.Phase("timing")
    yield messages.TrialEnded(trial(5.0))
    yield messages.TrialEnded(trial(outcome=Outcome.CRASHED, verdict=None, measurement=None))
    yield messages.SearchEnded()
    yield messages.FinalEnded(final((CONFIG, 5.0), vendor=(vendor_measurement(6.0),)), None)
    yield messages.FinalEnded(FinalFailure(PROBLEM, "it failed", interrupted=True), VendorLeftOut(None, "no library"))
    yield AttemptResult(Outcome.OK, "", verdict=Verdict(True, 0.5, "right"), verified_code="0" * 64)
    yield messages.Failed(StoreError("it is away"))


both_ways = pytest.mark.parametrize(
    ("made", "kinds"), [(requests, messages.REQUESTS), (answers, messages.ANSWERS)], ids=["requests", "answers"]
)


@pytest.mark.slow
@both_ways
def test_messages_come_back_the_same(made: Any, kinds: tuple[type, ...]) -> None:
    every = list(made())
    assert {type(one) for one in every} == set(kinds)
    for message in every:
        text, again = encode(message), decode(encode(message), kinds)
        assert type(again) is type(message)
        assert encode(again) == text.replace('"Linking"', '"Toolchain"')  # which tests have
        if not isinstance(message, messages.Failed) and "Linking" not in text:
            assert again == message


@pytest.mark.slow
@both_ways
def test_anything_else_is_refused(made: Any, kinds: tuple[type, ...]) -> None:
    """Replace each value of each message by odd ones: whatever is accepted has the types of its fields."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
        return [path, *(one for key, each in items for one in places(each, (*path, key)))]

    refused = 0
    for text in map(encode, made()):
        for *path, last in places(json.loads(text))[1:]:
            for odd in (*ODD_MEMBERS, True, {"is": "Try"}):
                whole = json.loads(text)
                reduce(getitem, path, whole)[last] = odd
                try:
                    encode(decode(json.dumps(whole), kinds))
                except Malformed:
                    refused += 1
    assert refused > 500


@pytest.mark.parametrize(("member", "value"), [("config", "tsm2:threads=1"), ("tunables", "[]")])
def test_a_configuration_that_contradicts_itself_is_refused(member: str, value: object) -> None:
    whole = json.loads(encode(messages.Try(CONFIG, Guidelines(), None)))
    assert decode(json.dumps(whole), messages.REQUESTS) == messages.Try(CONFIG, Guidelines(), None)
    whole["config"][member] = value
    with pytest.raises(Malformed):
        decode(json.dumps(whole), messages.REQUESTS)


@pytest.mark.parametrize(
    "text", [None, b"{}", "", "[]", "{}", "[" * 10**5, '{"is": "Phase"}', '{"is": "TuneError"}', '{"is": "Trial"}']
)
def test_what_is_no_message_is_refused(text: object) -> None:
    for kinds in (messages.REQUESTS, messages.ANSWERS):
        with pytest.raises(Malformed):
            decode(text, kinds)


def test_errors_keep_their_class() -> None:
    error = decode(encode(messages.Failed(Lost("it is away"))), messages.ANSWERS).error
    assert (type(error), str(error)) == (StoreError, "it is away")
    assert isinstance(error, tsm2_tune.TuneError)


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
