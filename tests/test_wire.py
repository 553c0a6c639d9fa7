"""Events of runs as JSON: there and back they are the same, and nothing else becomes an event."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tsm2_tune
from tests.hostile import ODD_MEMBERS
from tsm2_tune.errors import StoreError, TuneError
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.runs.events import Event, ProblemStarted
from tsm2_tune.tuner.runs.json_codec import ChildEnded, EventBatch, Malformed, RunBegan, read, written


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory, session_cache: None, toolchain: object) -> str:
    """Return the events of a run on the host, as JSON."""
    events = list[Event]()
    options: dict[str, Any] = {"device": "cpu", "family": "tsm2", "max_trials": 3, "on_event": events.append}
    tsm2_tune.tune(["64x2x64", "32x2x64"], db=tmp_path_factory.mktemp("wire") / "results.db", **options)
    assert {type(one).__name__ for one in events} >= {"RunStarted", "TrialStored", "FinalStored", "ProblemEnded"}
    return written(EventBatch("worker", events, "search"))


@pytest.mark.host
def test_events_come_back_the_same(heard: str) -> None:
    again: EventBatch = read(heard, (EventBatch,))
    assert written(again) == heard.replace('"Linking"', '"Toolchain"')  # which tests have
    spaces = [one.space for one in again.events if isinstance(one, ProblemStarted)]
    assert [len(list(one.kept)) for one in spaces] == [len(one.kept) for one in spaces]
    assert all(str(one) for one in again.events)


@pytest.mark.host
def test_anything_else_is_refused(heard: str) -> None:
    """Replace each value of each event by odd ones: whatever is accepted has the types of its fields."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
        return [path, *(one for key, each in items for one in places(each, (*path, key)))]

    seen, refused = set[str](), 0
    for event in json.loads(heard)["events"]:
        if event["is"] in seen:
            continue
        seen.add(event["is"])
        for path in places(event):
            for odd in (*ODD_MEMBERS, True, {"is": "Run"}):
                whole = {"is": "EventBatch", "worker": "w", "events": [json.loads(json.dumps(event))], "phase": ""}
                at: Any = whole["events"]
                for key in (0, *path)[:-1]:
                    at = at[key]
                at[(0, *path)[-1]] = odd
                try:
                    for one in read(json.dumps(whole), (EventBatch,)).events:
                        assert str(one)
                except Malformed:
                    refused += 1
    assert refused > 1000


@pytest.mark.host
@pytest.mark.parametrize(("member", "value"), [("config", "tsm2:threads=1"), ("parameters", "[]"), ("k", 0)])
def test_a_winner_that_contradicts_itself_is_refused(heard: str, member: str, value: object) -> None:
    (ended, *_) = (one for one in json.loads(heard)["events"] if one["is"] == "ProblemEnded")
    whole = {"is": "EventBatch", "worker": "w", "events": [ended], "phase": ""}
    assert read(json.dumps(whole), (EventBatch,))
    ended["winner"][member] = value
    with pytest.raises(Malformed):
        read(json.dumps(whole), (EventBatch,))


@pytest.mark.parametrize(
    "text", [None, b"{}", "", "[]", "{}", "[" * 10**5, '{"is": "RunBegan"}', '{"is": "TuneError"}']
)
def test_what_is_no_record_is_refused(text: object) -> None:
    with pytest.raises(Malformed):
        read(text, (RunBegan, EventBatch, ChildEnded))


def test_errors_keep_their_class() -> None:
    error: TuneError = read(written(ChildEnded("worker", Lost("it is away"))), (ChildEnded,)).end
    assert (type(error), str(error)) == (StoreError, "it is away")
