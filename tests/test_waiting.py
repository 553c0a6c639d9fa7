"""Families that are far behind wait until no other candidate is left."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.search import compile_queue
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.compile_queue import CompileQueue
from tsm2_tune.tuner.search.loop import least_ahead
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS
from tsm2_tune.tuner.search.strategies import model as model_module
from tsm2_tune.tuner.search.strategies.model import FAR_BEHIND, Model
from tsm2_tune.tuner.search.strategies.strategy import TrialResult


class Named(NamedTuple):
    """In place of a configuration."""

    family: str
    text: str

    @property
    def tunables(self) -> dict[str, int]:
        return {}


@pytest.fixture(autouse=True)
def expected_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model expects the same time of all."""
    monkeypatch.setattr(model_module, "candidate_times_us", lambda candidates: np.ones(len(candidates)))


def of(family: str, number: int) -> Candidate:
    return cast(Candidate, SimpleNamespace(config=Named(family, f"{family}{number}")))


def model(candidates: Sequence[Candidate]) -> Model:
    return Model(candidates, late=False)


def told(family: str, us: float, number: int = 9) -> TrialResult:
    return TrialResult(cast(Any, Named(family, f"{family}{number}")), us, is_right=True)


def taken(found: Any) -> str:
    assert found is not None
    text: str = found[0].config.text
    return text


def asked(strategy: Model) -> Iterator[str]:
    while (candidate := strategy.ask()) is not None:
        yield candidate.config.text


EIGHT = [of(family, number) for number in range(4) for family in ("slow", "fast")]


def test_who_is_far_behind_comes_last() -> None:
    assert list(asked(model(EIGHT))) == [one.config.text for one in EIGHT]  # without times
    line = model(EIGHT)
    assert list(islice(asked(line), 2)) == ["slow0", "fast0"]
    line.tell(told("slow", 96_000.0))
    assert not line.is_postponed(EIGHT[0])  # behind whom?
    line.tell(told("fast", 650.0))
    assert list(asked(line)) == ["fast1", "fast2", "fast3", "slow1", "slow2", "slow3"]


def test_what_is_many_times_is_told() -> None:
    line = model(EIGHT)
    line.tell(told("fast", 100.0))
    line.tell(told("slow", 100.0 * FAR_BEHIND))
    assert not line.is_postponed(EIGHT[0])
    line.tell(told("fast", 99.0))
    assert line.is_postponed(EIGHT[0])
    line.tell(told("slow", 200.0, 8))  # another configuration of the family
    assert not line.is_postponed(EIGHT[0])


def test_earlier_trials_count() -> None:
    earlier = (told("slow", 900.0), told("fast", 100.0), told("slow", 800.0))
    assert next(Search(model(EIGHT), replace(NO_PRIOR_TRIALS, results=earlier))) is EIGHT[1]


def compiled() -> Any:
    """A binary that is there."""
    future: Future[Any] = Future()
    future.set_result(None)
    return future


def test_what_was_compiled_ahead_waits_too() -> None:
    search, begun = Search(model(EIGHT)), list[str]()

    def begin(candidate: Candidate) -> Any:
        begun.append(candidate.config.text)
        return None, compiled()

    pending = CompileQueue(search, begin, 2)
    assert [taken(pending.take()) for _ in range(2)] == ["slow0", "fast0"]
    assert begun == ["slow0", "fast0", "slow1"]  # two at a time
    while pending.step():
        pass
    assert begun == ["slow0", "fast0", "slow1", "fast1", "slow2", "fast2"]  # and four where there is time
    search.tell(told("slow", 900.0))
    search.tell(told("fast", 100.0))
    assert taken(pending.take()) == "fast1"
    assert len(list(pending.compiling)) == 3  # slow1, which waits, among them
    assert [taken(pending.take()) for _ in range(5)] == ["fast2", "fast3", "slow3", "slow1", "slow2"]
    assert pending.take() is None
    assert list(pending.compiling) == []


def test_what_is_compiled_is_taken_before_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    futures = [Future[Any]() for _ in EIGHT]
    coming = iter(futures)
    pending = CompileQueue(Search(model(EIGHT)), lambda one: cast(Any, (None, next(coming))), 2)
    assert pending.take_compiled() is None

    def waited(among: Sequence[Future[Any]], **_: object) -> None:
        assert list(among) == futures[:4]  # more compilers were started, as none had ended
        futures[2].set_result(None)

    monkeypatch.setattr(compile_queue, "wait", waited)
    assert taken(pending.take()) == "slow1"
    futures[0].set_result(None)
    futures[1].set_result(None)
    assert taken(pending.take_compiled()) == "slow0"


@pytest.mark.parametrize("seed", range(20))
def test_every_candidate_has_its_turn(seed: int) -> None:
    """The order of the results makes no difference."""
    every = [of(f"f{family}", number) for number in range(20) for family in range(5)]
    search = Search(model(every))
    pending = CompileQueue(search, lambda one: cast(Any, (None, compiled())), 2)
    found = list[str]()
    while (one := pending.take()) is not None:
        search.tell(told(one[0].config.family, float(1 + (seed * 7 + len(found) * 13) % 50)))
        found.append(one[0].config.text)
    assert sorted(found) == sorted(candidate.config.text for candidate in every)


def test_runs_that_share_a_machine_leave_each_other_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    assert (least_ahead(1, None), least_ahead(1, 6), least_ahead(2, None), least_ahead(4, None)) == (17, 17, 9, 5)
    assert [2 * least_ahead(2, most) for most in (1000, 12, 3)] == [18, 6, 2]
