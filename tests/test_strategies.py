"""Tests of strategies: each gives every candidate once, in the same order for a seed, and learns from trials."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsm2_tune.api.parse import STRATEGIES
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.search import compile_queue
from tsm2_tune.tuner.search.candidates import MOST_TRIALS, Gain, Search, Why
from tsm2_tune.tuner.search.compile_queue import CompileQueue
from tsm2_tune.tuner.search.loop import least_ahead
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS
from tsm2_tune.tuner.search.strategies import OPTUNA, OWN, strategy_named
from tsm2_tune.tuner.search.strategies import model as model_module
from tsm2_tune.tuner.search.strategies.model import FAR_BEHIND, Model
from tsm2_tune.tuner.search.strategies.sampled import SAMPLERS
from tsm2_tune.tuner.search.strategies.strategy import InOrder, Strategy, TrialResult

SPACE = search_space(Problem(1000, 8, 8, "f64"), PROFILES["h100"], families=["tsm2", "ism2"])
Time = Callable[[KernelConfig], float]


def time_us(config: KernelConfig) -> float:
    """Least for 256 threads and 8 columns, which the model does not expect."""
    tunables = {name: float(value) for name, value in config.tunables.items() if isinstance(value, int)}
    away = abs(math.log2(tunables["threads"] / 256)) + abs(math.log2(tunables["columns"] / 8))
    return 10.0 * (1 + away) + len(config.text) / 1000


def searched(
    search: Search, time: Time = time_us, *, most: int | None = None, right: bool = True
) -> list[KernelConfig]:
    """The configurations in the order in which they are tried, each told before the next."""
    found = []
    for candidate in islice(search, most):
        found.append(candidate.config)
        search.tell(TrialResult(candidate.config, time(candidate.config), is_right=right))
    return found


def made(name: str, seed: int = 0, space: SearchSpace = SPACE) -> Strategy:
    if name.startswith("optuna:"):
        pytest.importorskip("optuna")
    return strategy_named(name)(space, seed, ())


def test_strategies_have_their_names_and_orders() -> None:
    assert (*OWN, *(f"{OPTUNA}{name}" for name in SAMPLERS)) == STRATEGIES
    page = Path(__file__).parents[1].joinpath("docs/tuning.md").read_text(encoding="utf-8")
    table = page.partition("| `--strategy` | tries next |\n")[2].partition("\n\n")[0]
    assert tuple(re.findall("`([a-z:]+)`", " ".join(row.split(" | ")[0] for row in table.splitlines()))) == STRATEGIES
    assert searched(Search(made("exhaustive"))) == [one.config for one in SPACE.kept]
    orders = [searched(Search(made("random", seed)), most=20) for seed in (1, 2)]
    assert not set(orders[0]) <= set(orders[1])
    empty: SearchSpace = replace(SPACE, kept=())
    assert [made(name, space=empty).ask() for name in OWN] == [None] * len(OWN)


@pytest.mark.parametrize(
    "name", [*OWN, *(pytest.param(name, marks=pytest.mark.slow) for name in STRATEGIES[len(OWN) :])]
)
def test_strategy_gives_each_candidate_once_and_repeats_by_seed(name: str) -> None:
    few = replace(SPACE, kept=SPACE.kept[::6])
    orders = [searched(Search(made(name, 1, few))) for _ in range(2)]
    assert orders[0] == orders[1]
    assert sorted(one.text for one in orders[0]) == sorted(one.config.text for one in few.kept)


def test_the_model_begins_with_first_choices_and_learns_of_trials() -> None:
    """A fast kernel that the model expects to be slow comes sooner than in the model's order."""
    order = [one.config for one in ordered(SPACE, 0, candidate_times_us)]
    best = order[250]

    def away_us(config: KernelConfig) -> float:
        pairs = zip(config.tunables.values(), best.tunables.values(), strict=False)
        numbers = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
        away = sum(abs(math.log2(a / b)) for a, b in numbers)
        return 10.0 * (1 + away) * (1 if config.family == best.family else 3)

    found = searched(Search(made("model")), away_us)
    assert found[0] == order[0]
    assert found.index(best) < 125


@pytest.mark.parametrize("name", [*OWN, pytest.param("optuna:tpe", marks=pytest.mark.slow)])
def test_a_resumed_search_goes_on_and_tries_nothing_twice(name: str) -> None:
    whole = searched(Search(made(name)), most=60)
    results = tuple(TrialResult(config, time_us(config), is_right=True) for config in whole[:30])
    prior = replace(NO_PRIOR_TRIALS, tried=frozenset(one.config.text for one in results), results=results)
    resumed = searched(Search(made(name), prior), most=30)
    assert not set(resumed) & set(whole[:30])
    if not name.startswith("optuna:"):  # Optuna's sampler draws other numbers then
        assert resumed == whole[30:]


@pytest.mark.slow
def test_a_sampler_learns_of_results_that_it_did_not_ask_for() -> None:
    strategy = made("optuna:tpe")
    for config, us in zip((one.config for one in SPACE.kept), (30.0, None), strict=False):
        strategy.tell(TrialResult(config, us, is_right=us is not None))
    trials = strategy._study.trials  # type: ignore[attr-defined]
    assert [(one.value, one.state.name) for one in trials] == [(30.0, "COMPLETE"), (None, "FAIL")]


def test_without_optuna_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = r"Optuna is not installed: .*pip install optuna, or name another --strategy"
    with pytest.raises(ToolMissing, match=said):
        strategy_named("optuna:tpe")


def test_why_a_search_ends() -> None:
    few = SPACE.kept[:10]

    def why(**named: Any) -> Why:
        search = Search(InOrder(few), **named)
        searched(search, lambda _: 5.0)
        return search.why

    assert why() is Why.ALL_TRIED
    assert why(most=10) is Why.ALL_TRIED
    assert why(most=9) is Why.MAX_TRIALS
    assert why(is_skipped=lambda _: True) is Why.ALL_TRIED


def ended_by_gain(gain: float, times_us: list[float | None]) -> int | None:
    """After how many of the trials a search ends by the gain; None where it does not."""
    judged = Gain(gain)
    for number, us in enumerate(times_us, start=1):
        judged.tell(TrialResult(SPACE.kept[0].config, us, is_right=us is not None))
        if judged.is_too_little:
            return number
    return None


@pytest.mark.parametrize(
    ("gain", "times_us", "ended"),
    [
        *((gain, [100.0] * 1000, 1 + trials) for gain, trials in ((1.0, 5), (0.02, 250), (1e-9, MOST_TRIALS))),
        (0.0, [100.0] * 1000, None),
        (0.05, [100.0] * 100, None),
        (0.05, [*[100.0] * 60, 90.0, *[100.0] * 300], 161),
        (0.05, [*[100.0] * 60, 96.0, *[100.0] * 300], 101),  # a gain of 4.2 % is too little
        (0.05, [None] * 1000, None),  # nothing is right yet
        (0.05, [100.0, *[95.3] * 300], 101),  # 100 is 4.9 % more than the best time of now
        (0.05, [100.0, *[95.2] * 300], 102),  # and 5.04 % more than that
        (0.05, [100.0, *[None] * 300], 101),
    ],
)
def test_the_smaller_the_gain_the_more_trials_are_looked_back_at(
    gain: float, times_us: list[float | None], ended: int | None
) -> None:
    assert ended_by_gain(gain, times_us) == ended


def test_gain_counts_behind_trials_without_their_times() -> None:
    judged = Gain(0.05)
    # Had the 1 us counted, the 96 us were a gain.
    for number, (us, is_right) in enumerate(((100.0, True), *[(1.0, False)] * 99, (96.0, True), (90.0, True))):
        judged.tell(TrialResult(SPACE.kept[0].config, us, is_right=is_right))
        assert judged.is_too_little == (number == 100)


def test_gain_ends_a_search_before_max_trials_and_at_once_the_next_time() -> None:
    search = Search(InOrder(SPACE.kept), most=110, gain=0.05)
    given = list(search)
    assert (len(given), search.why, search.is_over) == (110, Why.MAX_TRIALS, False)
    results = tuple(TrialResult(one.config, 100.0, is_right=True) for one in given[:101])
    for number, result in enumerate(results):
        search.tell(result)
        assert search.is_over == (number == 100)
    assert search.why is Why.GAIN
    prior = replace(NO_PRIOR_TRIALS, tried=frozenset(one.config.text for one in results), results=results)
    again = Search(InOrder(SPACE.kept), prior, gain=0.05)
    assert (searched(again), again.why) == ([], Why.GAIN)


def test_what_is_put_back_comes_first_until_it_has_lost_two_devices() -> None:
    search = Search(InOrder(SPACE.kept), most=3)
    first, second = next(search), next(search)
    search.put_back(first)
    assert list(search) == [first, SPACE.kept[2]]
    search.put_back(second, is_suspect=True)
    assert list(search) == [second]  # though there are as many as asked for
    search.put_back(second, is_suspect=True)
    assert list(search) == []
    assert search.skipped == {second.config.text}


def test_a_budget_counts_the_seconds_of_all_trials() -> None:
    prior = replace(NO_PRIOR_TRIALS, seconds=2.0)
    search = Search(InOrder(SPACE.kept), prior, budget_seconds=3.5, least=3)
    for number, candidate in enumerate(search, start=1):
        search.tell(TrialResult(candidate.config, 5.0, is_right=True), 1.0)
        assert search.is_over == (number == 3)
    assert (number, search.why) == (3, Why.BUDGET)
    assert Search(InOrder(SPACE.kept), prior, budget_seconds=2.0).why is Why.BUDGET


# Families that are far behind wait until no other candidate is left


class Named(NamedTuple):
    """In place of a configuration."""

    family: str
    text: str

    @property
    def tunables(self) -> dict[str, int]:
        return {}


def of(family: str, number: int) -> Candidate:
    return cast(Candidate, SimpleNamespace(config=Named(family, f"{family}{number}")))


def told(family: str, us: float, number: int = 9) -> TrialResult:
    return TrialResult(cast(Any, Named(family, f"{family}{number}")), us, is_right=True)


def compiled() -> Any:
    """A binary that is there."""
    future: Future[Any] = Future()
    future.set_result(None)
    return future


def taken(found: Any) -> str:
    assert found is not None
    text: str = found[0].config.text
    return text


EIGHT = [of(family, number) for number in range(4) for family in ("slow", "fast")]


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A strategy of EIGHT, of which its model expects the same time."""
    monkeypatch.setattr(model_module, "candidate_times_us", lambda candidates: np.ones(len(candidates)))
    return Model(EIGHT, late=False)


def test_who_is_far_behind_comes_last(eight: Model) -> None:
    assert [one.config.text for one in (eight.ask(), eight.ask()) if one] == ["slow0", "fast0"]
    eight.tell(told("slow", 96_000.0))
    assert not eight.is_postponed(EIGHT[0])  # behind whom?
    eight.tell(told("fast", 650.0))
    rest = [one.config.text for one in iter(eight.ask, None)]
    assert rest == ["fast1", "fast2", "fast3", "slow1", "slow2", "slow3"]


def test_a_family_is_far_behind_by_its_best_time(eight: Model) -> None:
    results = (("fast", 100.0), ("slow", 100.0 * FAR_BEHIND), ("fast", 99.0), ("slow", 200.0))
    for number, ((family, us), is_postponed) in enumerate(zip(results, (False, False, True, False), strict=True)):
        eight.tell(told(family, us, number))
        assert eight.is_postponed(EIGHT[0]) is is_postponed


def test_earlier_trials_count(eight: Model) -> None:
    earlier = (told("slow", 900.0), told("fast", 100.0), told("slow", 800.0))
    assert next(Search(eight, replace(NO_PRIOR_TRIALS, results=earlier))) is EIGHT[1]


def test_what_was_compiled_ahead_waits_too(eight: Model) -> None:
    search, begun = Search(eight), list[str]()

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


def test_what_is_compiled_is_taken_before_what_is_not(eight: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    futures = [Future[Any]() for _ in EIGHT]
    coming = iter(futures)
    pending = CompileQueue(Search(eight), lambda one: cast(Any, (None, next(coming))), 2)
    assert pending.take_compiled() is None

    def waited(among: Sequence[Future[Any]], **_: object) -> None:
        assert list(among) == futures[:4]  # more compilers were started, as none had ended
        futures[2].set_result(None)

    monkeypatch.setattr(compile_queue, "wait", waited)
    assert taken(pending.take()) == "slow1"
    futures[0].set_result(None)
    futures[1].set_result(None)
    assert taken(pending.take_compiled()) == "slow0"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.none() | st.floats(1.0, 1e4), min_size=40, max_size=40))
def test_every_candidate_has_its_turn(times_us: list[float | None]) -> None:
    """Few of a far slower family are compiled before one is tried, once no other candidate remains."""
    every = replace(SPACE, kept=SPACE.kept[::6])
    search, begun, found = Search(made("model", space=every)), list[str](), list[str]()

    def begin(candidate: Candidate) -> Any:
        begun.append(candidate.config.text)
        return None, compiled()

    pending, us = CompileQueue(search, begin, 3), cycle(times_us)
    while (one := pending.take()) is not None:
        search.tell(TrialResult(one[0].config, time := next(us), is_right=time is not None))
        found.append(one[0].config.text)
        assert len(begun) - len(found) <= 12
    assert sorted(found) == sorted(candidate.config.text for candidate in every.kept)


def test_runs_that_share_a_machine_leave_each_other_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    assert (least_ahead(1, None), least_ahead(1, 6), least_ahead(2, None), least_ahead(4, None)) == (17, 17, 9, 5)
    assert [2 * least_ahead(2, most) for most in (1000, 12, 3)] == [18, 6, 2]
