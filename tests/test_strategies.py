"""Tests of strategies: each gives every candidate once, in the same order for a seed, and learns from trials."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from tsm2_tune.api.parse import STRATEGIES
from tsm2_tune.errors import ToolMissing
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.search.candidates import MOST_TRIALS, Gain, Search, Why
from tsm2_tune.tuner.search.compile_queue import CompileQueue
from tsm2_tune.tuner.search.resume import NO_PRIOR_TRIALS
from tsm2_tune.tuner.search.strategies import OPTUNA, OWN, strategy_named
from tsm2_tune.tuner.search.strategies.model import FIRST, Model
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


def test_what_has_no_time_teaches_nothing() -> None:
    def failed(candidates: list[Candidate]) -> list[str]:
        search, found = Search(Model((), candidates, late=False)), []
        for candidate in search:
            found.append(candidate.config.text)
            search.tell(TrialResult(candidate.config, None, is_right=False))
        return found

    candidates = sorted(SPACE.kept, key=lambda one: float(candidate_times_us([one])[0]))[:40]
    assert failed(candidates)[:FIRST] == [one.config.text for one in candidates[:FIRST]]
    assert sorted(failed(candidates)) == sorted(one.config.text for one in candidates)


def test_candidates_of_a_far_slower_family_wait_without_being_compiled() -> None:
    """Few of them are compiled before one is tried, once no other candidate remains."""
    slow = {one.config.text for one in SPACE.kept if one.config.family == "tsm2"}
    search, compiled = Search(made("model")), set[str]()

    def start_compiler(candidate: Candidate) -> tuple[Any, Any]:
        compiled.add(candidate.config.text)
        compiling = Future[object]()
        compiling.set_result(None)
        return None, compiling

    queue, tried = CompileQueue(search, start_compiler, 3), list[str]()
    while (taken := queue.take()) is not None:
        tried.append(taken[0].config.text)
        assert len(compiled) - len(tried) <= 12
        us = time_us(taken[0].config) * (100 if tried[-1] in slow else 1)
        search.tell(TrialResult(taken[0].config, us, is_right=True))
    assert sorted(tried) == sorted(one.config.text for one in SPACE.kept)
    assert slow.issuperset(tried[-len(slow) + FIRST :])


@pytest.mark.parametrize("name", [*OWN, pytest.param("optuna:tpe", marks=pytest.mark.slow)])
def test_a_resumed_search_goes_on_and_tries_nothing_twice(name: str) -> None:
    whole = searched(Search(made(name)), most=60)
    told = tuple(TrialResult(config, time_us(config), is_right=True) for config in whole[:30])
    prior = replace(NO_PRIOR_TRIALS, tried=frozenset(one.config.text for one in told), results=told)
    resumed = searched(Search(made(name), prior), most=30)
    assert not set(resumed) & set(whole[:30])
    if not name.startswith("optuna:"):  # Optuna's sampler draws other numbers then
        assert resumed == whole[30:]


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
    ("gain", "trials"),
    [(1.0, 5), (0.05, 100), (0.03, 167), (0.02, 250), (0.015, 334), (0.01, 500), (1e-9, MOST_TRIALS)],
)
def test_the_smaller_the_gain_the_more_trials_are_looked_back_at(gain: float, trials: int) -> None:
    assert ended_by_gain(gain, [100.0] * 1000) == 1 + trials
    assert ended_by_gain(gain, [100.0] * trials) is None


@pytest.mark.parametrize(
    ("gain", "times_us", "ended"),
    [
        (0.05, [*[100.0] * 60, 90.0, *[100.0] * 300], 161),
        (0.05, [*[100.0] * 60, 96.0, *[100.0] * 300], 101),  # a gain of 4.2 % is too little
        (0.05, [None] * 1000, None),  # nothing is right yet
        (0.0, [100.0] * 1000, None),
        (0.05, [100.0, *[95.3] * 300], 101),  # 100 is 4.9 % more than the best time of now
        (0.05, [100.0, *[95.2] * 300], 102),  # and 5.04 % more than that
        (0.05, [100.0, *[None] * 300], 101),
    ],
)
def test_the_last_trials_tell_what_is_expected_of_going_on(
    gain: float, times_us: list[float | None], ended: int | None
) -> None:
    assert ended_by_gain(gain, times_us) == ended


def test_gain_counts_behind_trials_without_their_times() -> None:
    judged = Gain(0.05)
    # Had the 1 us counted, the 96 us were a gain.
    for number, (us, is_right) in enumerate(((100.0, True), *[(1.0, False)] * 99, (96.0, True), (90.0, True))):
        judged.tell(TrialResult(SPACE.kept[0].config, us, is_right=is_right))
        assert judged.is_too_little == (number == 100)


def test_gain_ends_a_search_before_max_trials() -> None:
    search = Search(InOrder(SPACE.kept), most=110, gain=0.05)
    given = list(search)
    assert (len(given), search.why, search.is_over) == (110, Why.MAX_TRIALS, False)
    for number, candidate in enumerate(given[:101]):
        search.tell(TrialResult(candidate.config, 100.0, is_right=True))
        assert search.is_over == (number == 100)
    assert search.why is Why.GAIN


def test_a_search_that_ended_by_the_gain_ends_at_once_the_next_time() -> None:
    search = Search(InOrder(SPACE.kept), gain=0.05)
    tried = searched(search, lambda _: 100.0)
    assert (len(tried), search.why, search.is_over) == (101, Why.GAIN, True)
    told = tuple(TrialResult(config, 100.0, is_right=True) for config in tried)
    prior = replace(NO_PRIOR_TRIALS, tried=frozenset(one.text for one in tried), results=told)
    again = Search(InOrder(SPACE.kept), prior, gain=0.05)
    assert (searched(again), again.why) == ([], Why.GAIN)


def test_what_is_put_back_comes_first() -> None:
    search = Search(InOrder(SPACE.kept), most=3)
    first, second = next(search), next(search)
    search.put_back(first)
    assert list(search) == [first, SPACE.kept[2]]
    search.put_back(second)
    assert list(search) == [second]  # though there are as many as asked for


def test_what_loses_two_devices_is_skipped() -> None:
    search = Search(InOrder(SPACE.kept[:2]))
    for _ in range(2):
        deadly = next(search)
        assert deadly == SPACE.kept[0]
        search.put_back(deadly, is_suspect=True)
    assert list(search) == [SPACE.kept[1]]
    assert search.skipped == {SPACE.kept[0].config.text}


def test_a_budget_counts_the_seconds_of_all_trials() -> None:
    prior = replace(NO_PRIOR_TRIALS, seconds=2.0)
    search = Search(InOrder(SPACE.kept), prior, budget_seconds=3.5, least=3)
    for number, candidate in enumerate(search, start=1):
        search.tell(TrialResult(candidate.config, 5.0, is_right=True), 1.0)
        assert search.is_over == (number == 3)
    assert (number, search.why) == (3, Why.BUDGET)
    assert Search(InOrder(SPACE.kept), prior, budget_seconds=2.0).why is Why.BUDGET
