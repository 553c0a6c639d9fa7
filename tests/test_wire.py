"""Messages between a run and a device's process, as JSON: they come back the same, and nothing else is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import tsm2_tune
from tests.fabricated import PROBLEM, configuration, final, trial, tuning_run, vendor_measurement
from tests.hostile import ODD_MEMBERS
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.trial import Cache, Outcome, Verdict
from tsm2_tune.tuner.runs import messages
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.runs.json_codec import Malformed, decode, encode
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import FinalCandidate, PriorTrials
from tsm2_tune.tuner.search.strategies.strategy import TrialResult
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


@pytest.mark.host
@pytest.mark.parametrize(
    ("made", "kinds"), [(requests, messages.REQUESTS), (answers, messages.ANSWERS)], ids=["requests", "answers"]
)
def test_messages_come_back_the_same(made: Any, kinds: tuple[type, ...]) -> None:
    every = list(made())
    assert {type(one) for one in every} == set(kinds)
    for message in every:
        text, again = encode(message), decode(encode(message), kinds)
        assert type(again) is type(message)
        assert encode(again) == text.replace('"Linking"', '"Toolchain"')  # which tests have
        if not isinstance(message, messages.Failed) and "Linking" not in text:
            assert again == message


@pytest.mark.host
@pytest.mark.parametrize(
    ("made", "kinds"), [(requests, messages.REQUESTS), (answers, messages.ANSWERS)], ids=["requests", "answers"]
)
def test_anything_else_is_refused(made: Any, kinds: tuple[type, ...]) -> None:
    """Replace each value of each message by odd ones: whatever is accepted has the types of its fields."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
        return [path, *(one for key, each in items for one in places(each, (*path, key)))]

    refused = 0
    for message in made():
        text = encode(message)
        for path in places(json.loads(text))[1:]:
            for odd in (*ODD_MEMBERS, True, {"is": "Try"}):
                whole = json.loads(text)
                at: Any = whole
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = odd
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
