"""Runs on one database spread problems: each takes the first that no other one is at, and joins others at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select

import tsm2_tune
from tests.claims import C128, C256, dead, elsewhere, take
from tests.fabricated import GPU, PROBLEM, configuration, plain_sql, trial, tuning_run
from tsm2_tune.generator.families.published import Ism2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs import problem_order
from tsm2_tune.tuner.runs.events import ProblemEnded
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.runs.leases.owners import STALE_SECONDS
from tsm2_tune.tuner.runs.problem_order import ProblemOrder, search_key
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.candidates import Why
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import ClaimResult, Retries

PROBLEMS = tuple(replace(PROBLEM, m=PROBLEM.m + step) for step in range(4))


@pytest.fixture
def runs(path: Path, store: Store) -> Iterator[list[Claims]]:
    """Three runs' claims, each of a database that it opened itself."""
    with (
        store.claims(GPU) as first,
        Store.open(path, create=True) as other,
        other.claims(GPU) as second,
        other.claims(GPU) as third,
    ):
        yield [first, second, third]


def spread(claims: Claims, problems: Sequence[Problem] = PROBLEMS, search: str = "s") -> ProblemOrder:
    return ProblemOrder(claims, problems, search)


def joined(runs: list[Claims]) -> tuple[ProblemOrder, Iterator[int], Iterator[int]]:
    """Start a search of one problem that a second run joins and works on; return it and both runs' places."""
    one = spread(runs[0], PROBLEMS[:1])
    first, second = iter(one), iter(spread(runs[1], PROBLEMS[:1]))
    assert (next(first), next(second)) == (0, 0)
    assert take(runs[1]) is ClaimResult.OURS
    return one, first, second


class Waits(Exception):
    """In place of the time that a run waits for another one, which in a test is in the same thread."""


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        raise Waits

    monkeypatch.setattr(problem_order, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))


def test_a_run_on_its_own_takes_problems_in_their_order(runs: list[Claims]) -> None:
    assert list(spread(runs[0])) == [0, 1, 2, 3]
    assert list(spread(runs[1])) == [0, 1, 2, 3]  # the same again: what ended before it began is no reason


def test_each_takes_the_first_that_no_other_is_at(runs: list[Claims]) -> None:
    one, two = spread(runs[0]), spread(runs[1])
    first, second = iter(one), iter(two)
    assert [next(first), next(second), next(first), next(second)] == [0, 1, 2, 3]
    assert next(first) == 3  # joined: it has no other
    assert (next(second, None), next(first, None)) == (None, None)
    assert (one.ended_elsewhere, two.ended_elsewhere) == (1, 2)


def test_runs_that_have_no_problem_left_join_different_ones(store: Store, runs: list[Claims]) -> None:
    firsts = [iter(spread(claims, PROBLEMS[:2])) for claims in runs[:2]]
    assert [next(first) for first in firsts] == [0, 1]
    joined = set[int]()
    for number in range(4):
        late = Claims(store.database, GPU)
        late.owner = f"run {number}"  # by which it chooses
        joined.add(next(iter(spread(late, PROBLEMS[:2]))))
    assert joined == {0, 1}


def test_what_a_run_that_died_was_at_is_the_next(runs: list[Claims], path: Path) -> None:
    first, second = iter(spread(runs[0])), iter(spread(runs[1]))
    assert [next(first), next(second)] == [0, 1]
    die(path, runs[0])
    assert list(second) == [0, 2, 3]


def die(path: Path, claims: Claims) -> None:
    owner, now = claims.owner, dead(claims.owner)
    changed = f"owner = '{now}', basis = replace(basis, '{owner}', '{now}')"
    plain_sql(path, f"UPDATE claim SET {changed} WHERE owner = '{owner}'")


def test_who_has_joined_waits_and_takes_over_what_is_left(runs: list[Claims], path: Path) -> None:
    first, second = [iter(spread(claims, PROBLEMS[:1])) for claims in runs[:2]]
    assert (next(first), next(second)) == (0, 0)
    with pytest.raises(Waits):
        next(second)
    third = iter(spread(runs[1], PROBLEMS[:1]))
    assert next(third) == 0
    die(path, runs[0])
    assert list(third) == [0]


def test_a_search_is_taken_over_once_all_that_its_run_claimed_can_be(runs: list[Claims], path: Path) -> None:
    first, second = [iter(spread(claims, PROBLEMS[:1])) for claims in runs[:2]]
    assert (next(first), next(second)) == (0, 0)
    assert take(runs[0]) is ClaimResult.OURS  # after its last beat
    now, owner = time.time(), elsewhere(runs[0].owner)
    plain_sql(path, f"UPDATE claim SET owner = '{owner}', beat_at = {now - STALE_SECONDS - 3}")
    plain_sql(path, f"UPDATE claim SET beat_at = {now - STALE_SECONDS + 20} WHERE config = '{C128}'")
    with pytest.raises(Waits):
        next(second)
    assert take(runs[1]) is ClaimResult.ELSEWHERE
    plain_sql(path, f"UPDATE claim SET beat_at = beat_at - 25 WHERE config = '{C128}'")
    assert next(iter(spread(runs[1], PROBLEMS[:1]))) == 0
    assert take(runs[1]) is ClaimResult.OURS


def test_a_search_has_not_ended_while_who_has_joined_is_at_some_of_it(runs: list[Claims]) -> None:
    one, first, second = joined(runs)
    with pytest.raises(Waits):
        next(first)
    runs[1].give_back()
    assert list(one) == [0]
    assert (next(second, None), one.ended_elsewhere) == (None, 0)


def test_who_has_joined_and_stands_still_is_not_waited_for_without_end(
    runs: list[Claims], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, first, _ = joined(runs)
    with pytest.raises(Waits):
        next(first)
    later = time.monotonic() + problem_order.AWAITED_SECONDS
    monkeypatch.setattr(problem_order.time, "monotonic", lambda: later)
    assert list(one) == [0]


def test_a_run_goes_on_with_other_problems_while_who_has_joined_is_at_one(runs: list[Claims]) -> None:
    first, second = iter(spread(runs[0], PROBLEMS[:2])), iter(spread(runs[1], PROBLEMS[:1]))
    assert (next(first), next(second)) == (0, 0)
    assert take(runs[1]) is ClaimResult.OURS
    assert next(first) == 1
    runs[1].give_back()
    assert (next(first), next(first, None)) == (0, None)


@pytest.mark.parametrize("is_seen", [True, False])
def test_what_a_run_that_had_joined_died_at_comes_again_once(runs: list[Claims], path: Path, is_seen: bool) -> None:
    """The run dies before the others are done with the rest, or after."""
    one, first, _ = joined(runs)
    assert take(runs[0]) is ClaimResult.ELSEWHERE
    if is_seen:
        with pytest.raises(Waits):
            next(first)
        first = iter(one)
    die(path, runs[1])
    assert next(first) == 0
    assert take(runs[0]) is ClaimResult.OURS
    runs[0].give_back()
    assert next(first, None) is None


@pytest.mark.parametrize("is_asked", [True, False])
def test_claims_of_a_dead_run_return_after_a_third_run_removes_them(
    runs: list[Claims], path: Path, is_asked: bool
) -> None:
    """And what nobody asked for does not."""
    _, first, _ = joined(runs)
    if is_asked:
        assert take(runs[0]) is ClaimResult.ELSEWHERE
    die(path, runs[1])
    runs[2].remove_dead()
    if is_asked:
        assert next(first) == 0
    assert next(first, None) is None


def test_enough_with_what_a_run_died_at_is_not_enough(runs: list[Claims], path: Path) -> None:
    _, first, _ = joined(runs)
    assert take(runs[0], C256, most=1, families=["tsm2"]) is ClaimResult.LIMIT_REACHED
    die(path, runs[1])
    assert next(first) == 0
    assert take(runs[0], C256, most=1, families=["tsm2"]) is ClaimResult.OURS
    runs[0].give_back()
    assert next(first, None) is None


@pytest.mark.parametrize("ends", ["tried", "dead", "gives back"])
@pytest.mark.parametrize("is_enough", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_run_with_other_options_is_waited_for(
    runs: list[Claims], store: Store, path: Path, ends: str, is_enough: bool, is_first: bool
) -> None:
    """Then the problem comes again: its finals may be due."""
    searches = {"s": runs[0], "with another": runs[1]}
    spreads = {name: spread(claims, PROBLEMS[:1], search=name) for name, claims in searches.items()}
    order = list(spreads) if is_first else list(spreads)[::-1]
    places = {name: iter(spreads[name]) for name in order}
    assert [next(places[name]) for name in order] == [0, 0]  # the second run has joined both
    assert take(runs[1]) is ClaimResult.OURS
    asked = {"config": C256, "most": 1, "families": ["tsm2"]} if is_enough else {}
    assert take(runs[0], **asked) is (ClaimResult.LIMIT_REACHED if is_enough else ClaimResult.ELSEWHERE)
    with pytest.raises(Waits):
        next(places["s"])
    if ends == "tried":
        store.add_trial(tuning_run(), trial())  # of C128
    elif ends == "dead":
        die(path, runs[1])
    else:
        runs[1].give_back()
    assert list(spreads["s"]) == [0]


@pytest.mark.parametrize("is_enough", [True, False])
def test_who_tries_on_is_not_waited_for_once_there_are_enough(
    runs: list[Claims], store: Store, is_enough: bool
) -> None:
    """Or where what it has claimed is of another family."""
    first, second = iter(spread(runs[0], PROBLEMS[:1])), iter(spread(runs[1], PROBLEMS[:1], search="with another"))
    assert (next(first), next(second)) == (0, 0)
    store.add_trial(tuning_run(), trial(config=configuration(512)))
    theirs = C128 if is_enough else Ism2Config(1, 128, 4, 4, 2).text
    assert take(runs[1], theirs) is ClaimResult.OURS
    assert take(runs[0], C256, most=2 if is_enough else 1, families=["tsm2"]) is ClaimResult.LIMIT_REACHED
    if is_enough:
        store.add_trial(tuning_run(), trial())  # of C128
        assert take(runs[1], configuration(1024).text) is ClaimResult.OURS  # and so on, for hours
    assert next(first, None) is None


@pytest.mark.parametrize("has_ended", [True, False])
def test_claims_of_a_dead_third_run_return(runs: list[Claims], path: Path, has_ended: bool) -> None:
    """Also where that one, which did not ask for it, has ended the search."""
    first, second = [iter(spread(claims, PROBLEMS[:1])) for claims in runs[:2]]
    third = iter(spread(runs[2], PROBLEMS[:1], search="with another"))
    assert (next(first), next(second), next(third)) == (0, 0, 0)
    assert take(runs[2]) is ClaimResult.OURS
    assert take(runs[1]) is ClaimResult.ELSEWHERE
    assert take(runs[2], problem=PROBLEMS[1]) is ClaimResult.OURS
    assert take(runs[1], problem=PROBLEMS[1]) is ClaimResult.ELSEWHERE
    if has_ended:
        assert next(first, None) is None
    die(path, runs[2])
    assert next(second) == 0
    assert take(runs[1]) is ClaimResult.OURS
    assert take(runs[1], problem=PROBLEMS[1]) is ClaimResult.OURS


def test_what_is_left_is_of_one_device_and_one_problem_and_others(store: Store, runs: list[Claims]) -> None:
    ours, theirs = runs[:2]
    with store.claims("another GPU") as elsewhere:
        for one in (PROBLEMS[0], PROBLEMS[1]):
            assert take(elsewhere, problem=one) is ClaimResult.OURS
        assert take(theirs) is ClaimResult.OURS
        assert take(theirs, C256) is ClaimResult.OURS
        for config in (C128, C256):
            assert take(ours, config) is ClaimResult.ELSEWHERE
        assert ours.contested.state(PROBLEM) == ({theirs.owner}, False)
        theirs.give_back()
        assert take(ours) is ClaimResult.OURS
        assert ours.contested.state(PROBLEM) == (set(), True)  # C256
        assert take(theirs, C256) is ClaimResult.OURS
        assert ours.contested.state(PROBLEM) == ({theirs.owner}, False)
        failed = trial(config=configuration(256), outcome=Outcome.CRASHED, verdict=None, measurement=None)
        number = store.add_trial(tuning_run(), failed)
        assert ours.contested.state(PROBLEM) == (set(), False)
        retries = Retries(None, frozenset({(number, failed.total_seconds)}))
        assert take(theirs, C256, retries=retries) is ClaimResult.OURS
        assert take(ours, C256, retries=retries) is ClaimResult.ELSEWHERE
        theirs.give_back()
        assert ours.contested.state(PROBLEM) == (set(), True)
        assert ours.contested.state(PROBLEMS[1]) == (set(), False)
        ours.contested.forget_all(PROBLEMS[1])
        assert ours.contested.state(PROBLEM) == (set(), True)
        ours.contested.forget_all(PROBLEM)
        assert ours.contested.state(PROBLEM) == (set(), False)


def test_who_has_joined_to_search_otherwise_is_not_waited_for(runs: list[Claims]) -> None:
    first, second = iter(spread(runs[0], PROBLEMS[:1])), iter(spread(runs[1], PROBLEMS[:1], search="with another"))
    assert (next(first), next(second)) == (0, 0)
    assert take(runs[1]) is ClaimResult.OURS
    assert next(first, None) is None


def test_who_searches_otherwise_is_not_waited_for(runs: list[Claims]) -> None:
    first, second = iter(spread(runs[0])), iter(spread(runs[1], PROBLEMS[:1], search="with another budget"))
    assert (next(first), next(second)) == (0, 0)
    assert list(second) == []


def test_what_has_ended_is_nobodys_though_its_run_lives(runs: list[Claims]) -> None:
    first = iter(spread(runs[0]))
    assert (next(first), next(first)) == (0, 1)
    other = spread(runs[1], PROBLEMS[:2], search="with another budget")
    assert list(other) == [0, 1]  # it has joined the second one


@pytest.mark.slow
def test_problems_are_spread_on_a_server_too(address: str) -> None:
    with Store.open(address, create=True) as store, store.claims(GPU) as one, store.claims(GPU) as other:
        first, second = iter(spread(one)), iter(spread(other))
        assert [next(first), next(second), next(first), next(second)] == [0, 1, 2, 3]
        assert next(first) == 3
        assert (next(second, None), next(first, None)) == (None, None)
    with Store.open(address, create=False) as store, store.database.transaction() as connection:
        assert connection.execute(select(schema.claim)).all() == []


@pytest.mark.host
@pytest.mark.usefixtures("toolchain", "known_ceilings")
def test_a_winner_that_another_run_has_found_since_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem that comes twice is told once."""

    def run(_: object, tuner: Tuner, store: Store) -> Iterator[ProblemEnded]:
        ended = ProblemEnded(PROBLEM, 1, 1, 0, 0, 0, 5, None, Why.MAX_TRIALS)
        yield ended
        yield replace(ended, new_trials=2)
        store.add_trial(session.tuning_run(tuner, "2026-01-02T03:04:05+00:00"), trial(500.0, basis=tuner.basis))

    monkeypatch.setattr(session, "run", run)
    found = tsm2_tune.tune(PROBLEM, device="cpu", db=path, pairs=False)
    assert [(one.new_trials, one.winner) for one in found.ended] == [(3, found.winners[0])]
    assert found.is_complete


def test_another_search_of_a_problem_has_its_own_end(runs: list[Claims]) -> None:
    other = spread(runs[1], search="with another budget")
    assert list(spread(runs[0])) == list(other) == [0, 1, 2, 3]


def test_a_search_is_told_by_all_that_it_may_find() -> None:
    options = Options(max_trials=3, retried=frozenset({Outcome.CRASHED, Outcome.TIMED_OUT}))
    retries = replace(options, retried=frozenset({Outcome.TIMED_OUT, Outcome.CRASHED}), seed=1, sharing=2)
    assert search_key("basis", options) == search_key("basis", retries)
    others = (
        search_key("another", options),
        search_key("basis", replace(options, max_trials=4)),
        search_key("basis", options, ("tsm2",)),
    )
    assert len({search_key("basis", options), *others}) == 4


def test_ends_are_forgotten_when_no_run_lives(store: Store, path: Path) -> None:
    with store.claims(GPU) as claims:
        assert list(spread(claims)) == [0, 1, 2, 3]
        with store.claims(GPU):
            ended = "SELECT count(*) FROM claim WHERE config = 'searched'"
            assert plain_sql(path, ended) == [(4,)]  # claims of a live run
    assert plain_sql(path, "SELECT * FROM claim") == []
