"""Runs on one database divide the work: what one has claimed, and lives, the others leave."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.claims import C128, C256, C512, LIMITS, dead, elsewhere, take
from tests.fabricated import BASIS, GPU, PROBLEM, configuration, plain_sql, trial, tuning_run
from tsm2_tune.generator.families.published import Ism2Config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits
from tsm2_tune.tuner.runs.leases import configurations
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.runs.leases.owners import STALE_SECONDS
from tsm2_tune.tuner.search.resume import ClaimResult, Retries

RUN = tuning_run()


def test_what_one_has_claimed_the_other_leaves(ours: Claims, theirs: Claims) -> None:
    assert take(ours) is ClaimResult.OURS
    assert take(ours) is ClaimResult.OURS
    assert take(theirs) is ClaimResult.ELSEWHERE
    assert take(theirs, C256) is ClaimResult.OURS
    assert (ours.others(PROBLEM), theirs.others(PROBLEM)) == (1, 1)
    assert ours.others(Problem(1, 1, 1, "f32")) == 0


@pytest.mark.parametrize("change", [{"problem": Problem(1, 1, 1, "f64")}, {"basis": "tomorrow"}])
def test_a_claim_is_of_a_problem_and_a_basis(change: dict[str, Any], ours: Claims, theirs: Claims) -> None:
    assert take(ours) is ClaimResult.OURS
    assert take(theirs, **change) is ClaimResult.OURS


def test_a_claim_is_of_a_device(store: Store, ours: Claims) -> None:
    assert take(ours) is ClaimResult.OURS
    with store.claims("Tesla K40c") as others:
        assert take(others) is ClaimResult.OURS


def test_what_is_tried_is_not_claimed(store: Store, ours: Claims, theirs: Claims, path: Path) -> None:
    assert take(ours) is ClaimResult.OURS
    store.add_trial(RUN, trial())
    assert plain_sql(path, "SELECT * FROM claim") == []
    assert take(ours) is ClaimResult.ELSEWHERE
    assert take(theirs) is ClaimResult.ELSEWHERE


def test_what_counts_as_untried_is_claimed(store: Store, ours: Claims) -> None:
    late = trial(outcome=Outcome.TIMED_OUT, verdict=None, measurement=None, limits=LIMITS)
    number = store.add_trial(RUN, late)
    assert take(ours) is ClaimResult.ELSEWHERE
    assert take(ours, retries=Retries(TimeLimits(120.0, 61.0))) is ClaimResult.OURS
    assert take(ours, retries=Retries(LIMITS, frozenset({(number, late.total_seconds)}))) is ClaimResult.OURS
    assert (
        take(ours, retries=Retries(LIMITS, frozenset({(number, 1.0)}))) is ClaimResult.ELSEWHERE
    )  # another's by now


def test_there_are_no_more_trials_than_asked_for(store: Store, ours: Claims, theirs: Claims) -> None:
    most = {"families": ("tsm2",), "most": 3}
    store.add_trial(RUN, trial())
    store.add_trial(RUN, trial(basis="yesterday"))
    assert take(ours, C256, **most) is ClaimResult.OURS
    assert take(theirs, C512, **most) is ClaimResult.OURS
    assert take(ours, configuration(1024).text, **most) is ClaimResult.LIMIT_REACHED


def test_trials_of_other_families_are_none_of_those_asked_for(store: Store, ours: Claims) -> None:
    most = {"families": ("tsm2",), "most": 1}
    store.add_trial(RUN, trial(config=Ism2Config(1, 128, 4, 4, 2)))
    assert take(ours, **most) is ClaimResult.OURS
    assert take(ours, C256, **most) is ClaimResult.LIMIT_REACHED


def test_claims_of_other_families_are_none_of_those_asked_for(ours: Claims, theirs: Claims) -> None:
    assert take(theirs, Ism2Config(1, 128, 4, 4, 2).text, families=("ism2",), most=1) is ClaimResult.OURS
    assert take(theirs, C512, basis="another", families=("tsm2",), most=1) is ClaimResult.OURS
    assert take(ours, C128, families=("tsm2",), most=1) is ClaimResult.OURS
    assert take(ours, C256, families=("tsm2",), most=1) is ClaimResult.LIMIT_REACHED


def test_claims_that_are_taken_together_are_no_more_than_asked_for(ours: Claims) -> None:
    most = {"families": ("tsm2",), "most": 2}
    with ours.in_one_transaction():
        answers = [take(ours, config, **most) for config in (C128, C256, C512)]
    assert answers == [ClaimResult.OURS, ClaimResult.OURS, ClaimResult.LIMIT_REACHED]


def test_what_another_run_claims_counts_to_what_is_taken_together_after_it(ours: Claims, theirs: Claims) -> None:
    most = {"families": ("tsm2",), "most": 2}
    with ours.in_one_transaction():
        assert take(ours, **most) is ClaimResult.OURS
    assert take(theirs, C256, **most) is ClaimResult.OURS
    with ours.in_one_transaction():
        assert take(ours, C512, **most) is ClaimResult.LIMIT_REACHED


def test_claims_of_a_run_that_was_killed_meanwhile_are_no_trials(ours: Claims, theirs: Claims, path: Path) -> None:
    most = {"families": ("tsm2",), "most": 2}
    assert take(theirs, C256, **most) is ClaimResult.OURS
    assert take(theirs, C512, **most) is ClaimResult.OURS
    assert take(ours, **most) is ClaimResult.LIMIT_REACHED
    plain_sql(path, f"UPDATE claim SET owner = '{dead(theirs.owner)}'")
    assert take(ours, **most) is ClaimResult.OURS


@pytest.mark.parametrize(
    ("owner", "age", "is_alive"),
    [
        (str, 0.0, True),
        (str, STALE_SECONDS + 1, False),
        (str, -STALE_SECONDS - 10, False),  # a clock that was set back, or a file that lies
        (dead, 0.0, False),
        (elsewhere, 0.0, True),
        (elsewhere, STALE_SECONDS + 1, False),
        (lambda _: "somebody", 0.0, False),
        (lambda owner: owner.replace(f" {os.getpid()} ", f" {10**30} "), 0.0, False),
    ],
)
def test_a_claim_of_the_dead_is_anybodys(
    owner: Callable[[str], str], age: float, is_alive: bool, ours: Claims, theirs: Claims, path: Path
) -> None:
    assert take(theirs) is ClaimResult.OURS
    plain_sql(path, f"UPDATE claim SET owner = '{owner(theirs.owner)}', beat_at = {time.time() - age}")
    assert ours.others(PROBLEM) == is_alive
    assert take(ours) is (ClaimResult.ELSEWHERE if is_alive else ClaimResult.OURS)


@pytest.mark.parametrize("value", ["'x'", "x'00'", "9e999", "NULL"])
def test_a_beat_that_is_none(value: str, ours: Claims, theirs: Claims, path: Path) -> None:
    take(theirs)
    if value != "NULL":  # which the file itself refuses
        plain_sql(path, f"UPDATE claim SET beat_at = {value}")
        assert take(ours) is ClaimResult.OURS


def test_claims_end_with_their_run_and_are_swept_by_the_next(store: Store, path: Path) -> None:
    with store.claims(GPU) as first:
        take(first)
    assert plain_sql(path, "SELECT * FROM claim") == []
    insert = f"INSERT INTO claim VALUES ('{GPU}', '{PROBLEM.text}', '{C128}', '{BASIS}', '{dead(first.owner)}'"
    plain_sql(path, f"{insert}, {time.time()}, 0)")
    with store.claims(GPU):
        assert plain_sql(path, "SELECT * FROM claim") == []


def test_thousands_of_the_dead_are_swept_at_once(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = "WITH RECURSIVE counted(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM counted WHERE i < 3000)"
    with store.claims(GPU) as first:
        take(first)
        plain_sql(
            path,
            f"{count} INSERT INTO claim SELECT 'x', 'y', i, 'z', 'owner ' || i, iif(i % 2, i, 'x'), 0 FROM counted",
        )
        commits = list[None]()
        monkeypatch.setattr(Database, "transaction", counting(Database.transaction, commits))
        with store.claims(GPU) as second:
            assert len(commits) == 1
            assert take(second) is ClaimResult.ELSEWHERE  # the living one's
        assert len(plain_sql(path, "SELECT * FROM claim")) == 1


def counting(transaction: Callable[..., Any], calls: list[None]) -> Callable[..., Any]:
    """The method, which tells of each call."""

    def told(self: Database, *, writes: bool = False, **more: Any) -> Any:
        if writes and threading.current_thread() is threading.main_thread():
            calls.append(None)
        return transaction(self, writes=writes, **more)

    return told


def test_who_lives_beats(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "BEAT_SECONDS", 0.01)
    with store.claims(GPU) as beating:
        take(beating)
        plain_sql(path, "UPDATE claim SET beat_at = 0.0")
        end = time.monotonic() + 30
        while plain_sql(path, "SELECT beat_at FROM claim") == [(0.0,)]:
            assert time.monotonic() < end


def test_finals_wait_for_those_of_another_run(ours: Claims, theirs: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, order = threading.Event(), list[str]()
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=lambda _: looked.set())
    monkeypatch.setattr(configurations, "time", clock)
    ours.take_final(PROBLEM)

    def second() -> None:
        theirs.take_final(PROBLEM)
        order.append("theirs")

    other = threading.Thread(target=second)
    other.start()
    assert looked.wait(30)
    assert take(theirs) is ClaimResult.OURS  # no configuration's
    order.append("ours")
    ours.give_back()
    other.join(30)
    assert order == ["ours", "theirs"]


def test_who_hangs_and_comes_back_late_changes_nothing(
    store: Store, ours: Claims, theirs: Claims, path: Path
) -> None:
    assert take(theirs) is ClaimResult.OURS
    plain_sql(path, f"UPDATE claim SET beat_at = {time.time() - STALE_SECONDS - 1}")
    assert take(ours) is ClaimResult.OURS
    number = store.add_trial(RUN, trial(50.0))
    with Store.open(path, create=True) as late:
        assert late.add_trial(tuning_run(seed=2), trial(10.0)) == number
        theirs.give_back()
    assert plain_sql(path, "SELECT median_us FROM measurement") == [(50.0,)]
    assert take(ours, C256) is ClaimResult.OURS
    theirs.give_back()
    assert len(plain_sql(path, "SELECT * FROM claim")) == 1


@pytest.mark.parametrize("attempts", ["-1", "'many'", "x'00'"])
def test_attempts_that_nobody_counted_keep_no_claim_of_the_dead(
    attempts: str, ours: Claims, theirs: Claims, path: Path
) -> None:
    assert take(theirs) is ClaimResult.OURS
    plain_sql(path, f"UPDATE claim SET owner = '{dead(theirs.owner)}', attempts = {attempts}")
    ours.remove_dead()
    assert plain_sql(path, "SELECT * FROM claim") == []
