"""Whole runs on one database: together they try everything once, whoever dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.claims import C128, C256, dead, take
from tests.fabricated import BASIS, GPU, PROBLEM, plain_sql, trial
from tests.simulated import RUN, TARGET, Replay, stored_trial
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Final, Outcome, Trial
from tsm2_tune.tuner.runs import problem_order
from tsm2_tune.tuner.runs.leases import configurations as claims
from tsm2_tune.tuner.runs.leases.configurations import MOST_ATTEMPTS
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Options
from tsm2_tune.tuner.search.resume import ClaimResult
from tsm2_tune.tuner.search.strategies import exhaustive


class Fabricating(Replay):
    """Tries each candidate in no time; its first final meets whoever else stores a trial meanwhile."""

    def __init__(self, store: Store, seed: int, **options: Any) -> None:
        super().__init__(store)
        self.options = Options(seed=seed, **options)
        self.meanwhile: Callable[[], object] | None = None

    def tune(self, search: Search, *_: Any) -> Iterator[Trial]:
        for one in search:
            threads, columns = (int(one.config.tunables[name]) for name in ("threads", "columns"))
            yield stored_trial(one.config, PROBLEM, 100.0 + threads / 1000 + columns, full_verdict="right")

    def final(self, *arguments: Any) -> Any:
        found = super().final(*arguments)
        if self.meanwhile is not None and isinstance(found, Final):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return found


def space_of(configurations: int) -> Any:
    space = search_space(PROBLEM, PROFILES["h200"], families=["tsm2"])
    return replace(space, kept=tuple(space.kept[number] for number in range(configurations)))


@pytest.mark.slow
def test_two_runs_that_take_turns_try_everything_once(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LATEST_SECONDS", 0.0)  # each is told at once
    space = space_of(7)
    with Store.open(path, create=True) as other:
        runs = [
            session.run([space], Fabricating(one, seed), one, make_strategy=exhaustive, families=("tsm2",))
            for seed, one in ((1, store), (2, other))
        ]
        tried: list[list[str]] = [[], []]
        ended: list[session.ProblemEnded] = []

        def step(number: int) -> bool:
            """Advance the run, and return whether it goes on."""
            event = next(runs[number], None)
            if isinstance(event, session.TrialStored):
                tried[number].append(event.trial.config.text)
            elif isinstance(event, session.ProblemEnded):
                ended.append(event)
            return event is not None

        monkeypatch.setattr(
            problem_order, "time", SimpleNamespace(sleep=lambda _: step(0), monotonic=time.monotonic)
        )  # the second waits
        left = [0, 1]
        while left:
            left = [number for number in left if step(number)]
    assert sorted(tried[0] + tried[1]) == sorted(candidate.config.text for candidate in space.kept)
    assert all(tried)
    assert sorted(event.new_trials for event in ended) == sorted(map(len, tried))  # each counts its own trials
    assert plain_sql(path, "SELECT count(*), count(DISTINCT config), count(DISTINCT run_id) FROM trial") == [
        (7, 7, 2)
    ]
    assert plain_sql(path, "SELECT * FROM claim") == []


def test_trial_stored_during_a_final_enters_the_next_final(store: Store) -> None:
    space = space_of(3)
    tuner = Fabricating(store, 1, max_trials=2)
    late = stored_trial(space.kept[2].config, PROBLEM, 1.0, full_verdict="right")
    tuner.meanwhile = lambda: store.add_trial(RUN, late)
    *_, ended = session.run([space], tuner, store, make_strategy=exhaustive, families=("tsm2",))
    assert len(tuner.rounds) == 2
    assert late.config in tuner.rounds[1]
    assert isinstance(ended, session.ProblemEnded)
    assert ended.winner is not None
    assert (ended.winner.config, ended.winner.round, ended.new_trials) == (late.config.text, 2, 2)


def test_what_another_run_is_at_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_order, "AWAITED_SECONDS", 0.0)
    space = space_of(3)
    today = TARGET.basis(Cache.CLEAN)
    with store.claims(GPU) as other:
        take(other, space.kept[0].config.text, basis=today)
        *_, ended = session.run([space], Fabricating(store, 1), store, make_strategy=exhaustive, families=("tsm2",))
    assert isinstance(ended, session.ProblemEnded)
    assert (ended.new_trials, ended.untried, ended.elsewhere) == (2, 0, 1)


def test_failed_trials_are_not_retried_when_the_problem_returns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that failed in an earlier run are retried once."""

    class Failing(Fabricating):
        def tune(self, search: Search, *_: Any) -> Iterator[Trial]:
            for one in super().tune(search):
                tries.append(one.config.text)
                seconds = len(tries) / 8  # by which one is told from the one before
                yield replace(one, outcome=Outcome.CRASHED, verdict=None, measurement=None, total_seconds=seconds)

    class Twice(tuple[int, ...]):
        ended_elsewhere = 0

    space, tries = space_of(3), list[str]()
    monkeypatch.setattr(session, "ProblemOrder", lambda *_: Twice((0, 0)))
    for _ in range(2):
        tuner = Failing(store, 1, retried=frozenset({Outcome.CRASHED}))
        list(session.run([space], tuner, store, make_strategy=exhaustive, families=("tsm2",)))
    configs = [one.config.text for one in space.kept]
    assert sorted(tries) == sorted(2 * configs)


@pytest.mark.slow
def test_a_configuration_of_which_run_after_run_dies_is_given_up(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.01)
    for death in range(1, MOST_ATTEMPTS + 1):
        with store.claims(GPU) as dying:
            assert (take(dying), take(dying, C256)) == (ClaimResult.OURS, ClaimResult.OURS)
            dying.record_current(PROBLEM, C128, BASIS)
            wait_for(path, "SELECT attempts FROM claim ORDER BY attempts", [(0,), (death,)])
            plain_sql(path, f"UPDATE claim SET owner = '{dead(dying.owner)}'")
    with store.claims(GPU) as ours:
        assert take(ours) is ClaimResult.GIVEN_UP
        assert take(ours, C256) is ClaimResult.OURS  # which was merely claimed ahead
        assert ours.given_up(PROBLEM) == (C128,)
        assert take(ours, given_up=True) is ClaimResult.OURS
        store.add_trial(RUN, trial())
        assert ours.given_up(PROBLEM) == ()


@pytest.mark.slow
def test_what_a_run_survives_does_not_count(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.01)
    plain_sql(path, f"INSERT INTO claim VALUES ('{GPU}', '{PROBLEM.text}', '{C128}', '{BASIS}', 'dead', 0, 1)")
    with store.claims(GPU) as ours:
        for config, other in ((C128, C256), (C256, C128)):
            assert take(ours, config) is ClaimResult.OURS
            before = 1 if config == C128 else 0
            ours.record_current(PROBLEM, config, BASIS)
            wait_for(path, f"SELECT attempts FROM claim WHERE config = '{config}'", [(before + 1,)])
            ours.record_current(PROBLEM, other, BASIS)
            wait_for(path, f"SELECT attempts FROM claim WHERE config = '{config}'", [(before,)])
        ours.record_current(PROBLEM, C256, BASIS)
        wait_for(path, f"SELECT attempts FROM claim WHERE config = '{C256}'", [(1,)])
    assert plain_sql(path, "SELECT config, owner, attempts FROM claim") == [(C128, "", 1)]  # of before


def wait_for(path: Path, query: str, expected: list[tuple[object, ...]]) -> None:
    end = time.monotonic() + 30
    while (found := plain_sql(path, query)) != expected:
        assert time.monotonic() < end, found
