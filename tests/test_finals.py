"""Tests of the finals, by fabricated times: which kernels are measured again, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fabricated import PROBLEM
from tests.simulated import MANY, RUN, TARGET, A, B, C, D, E, F, G, Replay, tried
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.published import Tsm2Config
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import SearchSpace, search_space
from tsm2_tune.tuner import export
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.runs.events import FinalFailure, ProblemEnded, ProblemEvent, ProblemStarted, WinnerVerified
from tsm2_tune.tuner.runs.problem_queue import tune_problems
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.fixed_list import problem_session
from tsm2_tune.tuner.search.strategies import exhaustive
from tsm2_tune.tuner.search.strategies.strategy import InOrder
from tsm2_tune.tuner.worker.client import AttemptResult


def test_what_won_under_an_older_basis_is_tried_first() -> None:
    space = search_space(PROBLEM, PROFILES["h200"], families=["tsm2", "ism2"])
    candidates = ordered(space, 0, candidate_times_us)
    last, before = candidates[len(candidates) - 1], candidates[len(candidates) - 2]
    first = session.candidates_for((last.config.text, "tsm2-of-another-time", before.config.text), space)
    found = list(Search(InOrder(candidates), first=first))
    assert [candidate.config for candidate in found[:2]] == [last.config, before.config]
    assert [candidate.config for candidate in found[2:]] == [candidate.config for candidate in candidates][:-2]


def turn(store: Store, replay: Replay) -> list[ProblemEvent]:
    space = cast(SearchSpace, SimpleNamespace(problem=PROBLEM, kept=(), families=("tsm2",)))
    return list(tune_problems([space], replay, store, make_strategy=exhaustive, families=("tsm2",)))


def winner_of(store: Store, replay: Replay) -> Any:
    *_, ended = turn(store, replay)
    assert isinstance(ended, ProblemEnded)
    assert ended.winner is not None
    return ended.winner


def finals(store: Store, again: Mapping[Tsm2Config, float] | None = None, change: float = 1.0) -> Any:
    """The configurations of each round that a run measures, and the winner after them."""
    replay = Replay(store, again, change)
    return replay.rounds, winner_of(store, replay)


def test_what_was_behind_is_tried_again_where_it_may_win_by_now(store: Store) -> None:
    tried(store, {A: 100, B: 104})
    tried(store, {C: 111, D: 120}, outcome=Outcome.BEHIND, verdict=None)
    tuner = Replay(store)

    def untried(reach: float | None, *contenders: Tsm2Config) -> set[str]:
        tuner.options = replace(tuner.options, reach=reach)
        turn = problem_session(PROBLEM, ("tsm2",), tuner, store, "")
        prior = turn.history.prior(turn.retries, ("tsm2",))
        assert tuple(one.config for one in prior.contenders) == contenders
        return {one.text for one in (A, B, C, D)} - prior.tried

    assert untried(1.1, A, B) == set()
    assert untried(None, A, B) == {C.text, D.text}  # where every trial is to be in full
    fastest = store.history(RUN.identity.name, PROBLEM, ("tsm2",), TARGET.basis(Cache.CLEAN)).tried()[0]
    assert fastest.config == A
    store.refute(fastest.id, Outcome.WRONG_RESULT, "C[0, 0] = 1")
    assert untried(1.1, B) == {C.text}


def test_who_was_sixth_wins_only_by_a_time_of_the_last_round(store: Store) -> None:
    tried(store, {A: 100, B: 101, C: 102, D: 103, E: 104, F: 104.5, G: 200})
    rounds, winner = finals(store, {A: 108, B: 109, C: 110, D: 111, E: 112, F: 115})
    assert rounds == [(A, B, C, D, E), (F, A, B)]
    assert (winner.config, winner.median_us, winner.round) == (A.text, 108, 2)
    assert finals(store)[0] == []  # the same again has nothing to do


def test_who_is_alone_is_timed_beside_the_second(store: Store) -> None:
    tried(store, {A: 100, B: 150, C: 160})
    rounds, winner = finals(store, {A: 155, B: 151})
    assert rounds == [(A, B)]
    assert (winner.config, winner.round) == (B.text, 1)


def test_new_trials_near_the_winner_are_measured_beside_it(store: Store) -> None:
    tried(store, {A: 100, B: 101})
    assert finals(store)[0] == [(A, B)]
    tried(store, {C: 120})
    assert finals(store)[0] == []
    tried(store, {D: 104})
    rounds, winner = finals(store, {D: 99})
    assert rounds == [(A, B, D)]
    assert (winner.config, winner.round) == (D.text, 2)


@pytest.mark.slow
def test_rounds_end_also_where_every_one_is_slower_than_the_last(store: Store) -> None:
    tried(store, {config: 100 + i / 10 for i, config in enumerate(MANY)})
    rounds, winner = finals(store, change=1.1)
    assert rounds == [tuple(MANY[:5]), tuple(MANY[5:10]), tuple(MANY[10:15])]
    assert winner.config == MANY[15].text


def test_a_round_that_fails_is_the_last_and_a_winner_is_verified_once(store: Store) -> None:
    tried(store, {A: 100, B: 101})
    replay = Replay(store)
    replay.failure = AttemptResult(Outcome.LAUNCH_FAILED, "it does not start")
    events = turn(store, replay)
    assert [type(event) for event in events] == [ProblemStarted, FinalFailure, WinnerVerified, ProblemEnded]
    replay.failure = None
    turn(store, replay)
    turn(store, replay)
    assert replay.in_full == [A.text]


@pytest.mark.parametrize("outcome", [Outcome.WRONG_RESULT, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_what_is_wrong_in_the_full_verification_does_not_win(store: Store, outcome: Outcome) -> None:
    tried(store, {A: 100, B: 101, C: 150})
    replay = Replay(store)
    replay.refuted = {A: outcome}
    winner = winner_of(store, replay)
    assert (winner.config, winner.verified_in_full) == (B.text, 1)
    assert replay.in_full == [A.text, B.text]
    (refuted,) = (one for one in store.listing() if one.config == A.text)
    assert (refuted.outcome, refuted.detail) == (outcome, "full verification: C[3, 1] = 2")
    assert store.trial(refuted.id).trial.outcome is outcome  # its row contradicts nothing


def test_what_the_machine_ended_is_verified_by_the_next_run(store: Store) -> None:
    tried(store, {A: 100, B: 101})
    replay = Replay(store)
    replay.refuted = {A: Outcome.INTERRUPTED}
    winner = winner_of(store, replay)
    assert (winner.config, winner.verified_in_full) == (A.text, 0)
    with pytest.raises(StoreError) as caught:
        export.export(store, "module")
    assert str(caught.value) == (
        f"{store.path} has a winner on NVIDIA H200 that was not verified in full, {A.text} for {PROBLEM.text}:"
        f" to verify it, run `tsm2-tune --db {store.path} --cache clean --shapes {PROBLEM.text}` on that device, then"
        " this again; or export only another device with --device"
    )
    assert "in part" in export.export(store, "markdown")[0]
    replay.refuted = {}
    turn(store, replay)
    assert A.text in export.export(store, "module")[0]
