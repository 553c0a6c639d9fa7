"""Runs on one database divide the problems: what a living run has leased, the others leave to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import GPU, PROBLEM, configuration, plain_sql
from tests.servers import asked
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import leases, owners
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, LEASE_SECONDS, Leases

OTHER = replace(PROBLEM, m=PROBLEM.m + 1)
C128, C256, C512 = configuration(128).text, configuration(256).text, configuration(512).text


@pytest.fixture
def ours(store: Store) -> Leases:
    """A run's leases, which nothing renews but the test."""
    return store.leases(GPU)


@pytest.fixture
def theirs(path: Path, ours: Leases) -> Iterator[Leases]:
    """Another run's leases. It has opened the database itself."""
    with Store.open(path, create=True) as store:
        yield store.leases(GPU)


def dead(owner: str) -> str:
    """The owner, had it been a process that is no more."""
    system, process, started, token = owner.split()
    return f"{system} {process} {int(started) + 1} {token}"


def elsewhere(owner: str) -> str:
    """The owner on another machine, of which only renewals are seen."""
    return dead(f"other{owner}")


def die(path: Path, run: Leases) -> None:
    plain_sql(path, "UPDATE lease SET owner = ? WHERE owner = ?", dead(run.owner), run.owner)


def rows(path: Path, columns: str = "owner, config, suspect, deaths") -> list[tuple[Any, ...]]:
    return plain_sql(path, f"SELECT {columns} FROM lease ORDER BY problem")


def try_long(run: Leases, config: str | None, problem: Problem = PROBLEM) -> None:
    """Let the run try the configuration for two looks."""
    run.record_current(problem, config)
    run.look()
    run.look()


# Who has a problem


def test_others_leave_a_leased_problem(ours: Leases, theirs: Leases) -> None:
    assert ours.take(PROBLEM)
    assert ours.take(PROBLEM)
    assert not theirs.take(PROBLEM)
    assert theirs.take(OTHER)
    assert theirs.holder(PROBLEM) == f"process {os.getpid()}"
    assert (ours.holder(PROBLEM), ours.holder(replace(PROBLEM, m=3))) == ("", "")


def test_lease_is_of_one_device(store: Store, ours: Leases) -> None:
    assert ours.take(PROBLEM)
    assert store.leases("Tesla K40c").take(PROBLEM)


def test_released_problem_is_free(ours: Leases, theirs: Leases, path: Path) -> None:
    for problem in (PROBLEM, OTHER):
        assert ours.take(problem)
    theirs.release(PROBLEM)  # changes nothing
    assert not theirs.take(PROBLEM)
    ours.release(PROBLEM)
    assert rows(path, "problem") == [(OTHER.text,)]
    assert (theirs.take(PROBLEM), theirs.take(OTHER)) == (True, False)


def test_end_of_a_run_releases_its_problems(store: Store, theirs: Leases, path: Path) -> None:
    assert theirs.take(replace(PROBLEM, m=3))
    with store.leases(GPU) as run:
        assert run.take(PROBLEM)
        assert run.take(OTHER)
    assert rows(path, "owner") == [(theirs.owner,)]


@pytest.mark.parametrize(
    ("owner", "left", "is_alive"),
    [
        (str, LEASE_SECONDS, True),
        (str, -1.0, False),
        (str, LEASE_SECONDS + 50, True),  # a clock that was set back a little
        (str, 2 * LEASE_SECONDS + 10, False),  # by more, or a file that lies
        (dead, LEASE_SECONDS, False),
        (elsewhere, LEASE_SECONDS, True),
        (elsewhere, -1.0, False),
        (lambda _: "", LEASE_SECONDS, False),
        (lambda _: "somebody", LEASE_SECONDS, False),
        (lambda owner: owner.replace(f" {os.getpid()} ", f" {10**30} "), LEASE_SECONDS, False),
    ],
)
def test_lease_of_the_dead_is_free(
    owner: Callable[[str], str], left: float, is_alive: bool, ours: Leases, theirs: Leases, path: Path
) -> None:
    assert theirs.take(PROBLEM)
    plain_sql(path, "UPDATE lease SET owner = ?, expires_at = ?", owner(theirs.owner), time.time() + left)
    where = "a run on another machine" if owner is elsewhere else f"process {os.getpid()}"
    assert ours.holder(PROBLEM) == (where if is_alive else "")
    assert ours.take(PROBLEM) is not is_alive


@pytest.mark.parametrize(
    "edit",
    [
        "expires_at = 'x'",
        "expires_at = x'00'",
        "expires_at = 9e999",
        "owner = x'00'",
        "owner = owner || char(10)",
        f"owner = '{'x' * 2000}'",
        "config = 'a b'",
        "config = x'00'",
        "suspect = char(27) || '[2J'",
        "deaths = -1",
        "deaths = 'many'",
        "deaths = 1e300",
        "deaths = x'00'",
    ],
)
def test_invalid_row_is_no_lease(edit: str, ours: Leases, theirs: Leases, path: Path) -> None:
    assert theirs.take(PROBLEM)
    plain_sql(path, f"UPDATE lease SET config = '{C128}', suspect = '{C128}', deaths = 5")
    plain_sql(path, f"UPDATE lease SET {edit}")
    assert ours.holder(PROBLEM) == ""
    assert theirs.config_to_quarantine(PROBLEM) is None
    assert ours.take(PROBLEM)
    assert ours.config_to_quarantine(PROBLEM) is None
    assert rows(path) == [(ours.owner, None, None, 0)]


def test_late_run_changes_nothing(ours: Leases, theirs: Leases, path: Path) -> None:
    assert theirs.take(PROBLEM)
    plain_sql(path, "UPDATE lease SET expires_at = 1.0")
    assert ours.take(PROBLEM)
    plain_sql(path, f"UPDATE lease SET suspect = '{C128}', deaths = 3")
    before = rows(path, "*")
    theirs.renew()
    try_long(theirs, C128)
    theirs.clear_deaths(PROBLEM)
    theirs.release(PROBLEM)
    assert not theirs.take(PROBLEM)
    assert rows(path, "*") == before


def test_lease_that_is_taken_back_names_the_current_configuration(ours: Leases, theirs: Leases, path: Path) -> None:
    assert ours.take(PROBLEM)
    try_long(ours, C128)
    plain_sql(path, "UPDATE lease SET expires_at = 1.0")
    assert theirs.take(PROBLEM)
    die(path, theirs)
    assert ours.take(PROBLEM)
    ours.look()
    assert rows(path) == [(ours.owner, C128, C128, 1)]


def test_expired_lease_that_nobody_took_is_still_ours(ours: Leases, path: Path) -> None:
    assert ours.take(PROBLEM)
    try_long(ours, C128)
    plain_sql(path, "UPDATE lease SET expires_at = 1.0")
    assert ours.take(PROBLEM)
    assert rows(path) == [(ours.owner, C128, None, 0)]


def test_renewal_extends_all_leases_of_a_run(store: Store, ours: Leases, theirs: Leases, path: Path) -> None:
    for problem in (PROBLEM, OTHER):
        assert ours.take(problem)
    assert theirs.take(replace(PROBLEM, m=3))
    assert store.leases("Tesla K40c").take(PROBLEM)
    plain_sql(path, "UPDATE lease SET expires_at = 1.0")
    ours.renew()
    renewed = [(owner, at > time.time() + LEASE_SECONDS - 30) for owner, at in rows(path, "owner, expires_at")]
    assert len(renewed) == 4
    assert all(is_renewed == (owner == ours.owner) for owner, is_renewed in renewed)


def test_thread_renews_and_records(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.05)
    with store.leases(GPU) as run:
        assert run.take(PROBLEM)
        run.record_current(PROBLEM, C128)
        plain_sql(path, "UPDATE lease SET expires_at = 1.0")
        end = time.monotonic() + 30
        while rows(path, "expires_at > 1.0, config") != [(1, C128)]:
            assert time.monotonic() < end


# Configurations that kill runs


def test_only_a_long_trial_is_recorded(ours: Leases, path: Path) -> None:
    found = []
    assert ours.take(PROBLEM)
    for config in (C128, None, C256, C256, None):  # the second trial of C256 is another trial
        ours.record_current(PROBLEM, config)
        ours.look()
        found += rows(path, "config")
    assert found == [(None,)] * 5
    for config in (C128, C256, None):
        ours.record_current(PROBLEM, config)
        for _ in range(2):
            ours.look()
            found += rows(path, "config")
    assert found[5:] == [(None,), (C128,), (None,), (C256,), (None,), (None,)]


def test_row_names_the_configuration_of_one_worker_until_its_trial_ends(ours: Leases, path: Path) -> None:
    assert ours.take(PROBLEM)
    ours.record_current(PROBLEM, C128, worker=0)
    ours.look()
    for config in (C256, C512):
        ours.record_current(PROBLEM, config, worker=1)
        ours.look()
        assert rows(path, "config") == [(C128,)]
    ours.record_current(PROBLEM, None, worker=0)
    ours.look()
    assert rows(path, "config") == [(C512,)]


def test_released_problem_has_no_current_configuration(ours: Leases, path: Path) -> None:
    assert ours.take(PROBLEM)
    try_long(ours, C128)
    ours.release(PROBLEM)
    assert ours.take(PROBLEM)
    ours.look()
    ours.look()
    assert rows(path) == [(ours.owner, None, None, 0)]


def deaths_at(path: Path, store: Store, *configs: str | None) -> Leases:
    """Let a run die at each configuration. Return the next run, which has the problem."""
    for config in configs:
        run = store.leases(GPU)
        assert run.take(PROBLEM)
        try_long(run, config)
        die(path, run)
    run = store.leases(GPU)
    assert run.take(PROBLEM)
    return run


def test_configuration_at_which_run_after_run_dies_is_suspected(store: Store, path: Path) -> None:
    assert DEATHS_UNTIL_QUARANTINE == 3
    for deaths in range(DEATHS_UNTIL_QUARANTINE):
        run = deaths_at(path, store, *[C128] * (deaths > 0))
        assert run.config_to_quarantine(PROBLEM) is None
        run.release(PROBLEM)
    run = deaths_at(path, store, C128)
    assert run.config_to_quarantine(PROBLEM) == C128
    assert run.take(PROBLEM)  # counts nothing again
    assert rows(path) == [(run.owner, None, C128, DEATHS_UNTIL_QUARANTINE)]
    assert store.leases(GPU).config_to_quarantine(PROBLEM) is None  # another run's problem
    run.clear_deaths(PROBLEM)
    assert run.config_to_quarantine(PROBLEM) is None
    run.release(PROBLEM)
    assert rows(path) == []


@pytest.mark.parametrize(
    ("configs", "suspect", "deaths"),
    [
        ([None], None, 0),
        ([C128, C128, C256], C256, 1),
        ([C128, C256, C128, C128], C128, 2),
        ([C128, None, C128], C128, 2),  # the second run died between two trials
    ],
)
def test_deaths_are_counted_in_a_row(
    configs: list[str | None], suspect: str | None, deaths: int, store: Store, path: Path
) -> None:
    run = deaths_at(path, store, *configs)
    assert rows(path) == [(run.owner, None, suspect, deaths)]


@pytest.mark.parametrize("is_next_long", [False, True])
def test_run_that_survives_a_configuration_resets_its_deaths(store: Store, path: Path, is_next_long: bool) -> None:
    run = deaths_at(path, store, C128, C128)
    try_long(run, C256)
    assert rows(path) == [(run.owner, C256, C128, 2)]
    try_long(run, C128)
    assert rows(path) == [(run.owner, C128, C128, 2)]
    try_long(run, C256 if is_next_long else None)
    assert rows(path) == [(run.owner, C256 if is_next_long else None, None, 0)]


def test_release_during_a_trial_survives_it(store: Store, path: Path) -> None:
    run = deaths_at(path, store, C128, C128)
    try_long(run, C128)
    run.release(PROBLEM)
    assert rows(path) == []


def test_release_keeps_a_suspect_that_was_not_tried(store: Store, path: Path) -> None:
    with store.leases(GPU) as ended:
        run = deaths_at(path, store, C128, C128)
        try_long(run, C256)
        run.release(PROBLEM)
        assert ended.take(PROBLEM)
    assert rows(path) == [("", None, C128, 2)]
    assert deaths_at(path, store, C128).config_to_quarantine(PROBLEM) == C128


def test_a_zombie_has_no_lease() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = owners.owner_of(process.pid)
        assert owners.may_live(owner)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert not owners.may_live(owner)


# What a server does


def test_row_that_another_transaction_has_locked_is_skipped(address: str) -> None:
    """Neither renewing nor taking waits for it."""
    import psycopg

    first = f"problem = '{PROBLEM.text}'"
    with Store.open(address, create=True) as store:
        run, other = store.leases(GPU), store.leases(GPU)
        for problem in (PROBLEM, OTHER):
            assert run.take(problem)
        asked(address, "UPDATE lease SET expires_at = 1.0")
        with psycopg.connect(address.replace("+psycopg", "")) as taking:
            taking.execute(f"SELECT 1 FROM lease WHERE {first} FOR UPDATE")
            run.renew()
            assert asked(address, f"SELECT {first} FROM lease WHERE expires_at = 1.0") == [(True,)]
            assert not other.take(PROBLEM)
            assert not other.take(OTHER)
        assert other.take(PROBLEM)
        run.renew()
        assert not run.take(PROBLEM)
        assert other.holder(OTHER) == f"process {os.getpid()}"


def test_leases_expire_by_the_servers_clock(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's clock may be hours off."""
    monkeypatch.setattr(time, "time", lambda: 7200.0)
    with Store.open(address, create=True) as store:
        run, other = store.leases(GPU), store.leases(GPU)
        assert run.take(PROBLEM)
        ((seconds,),) = asked(address, "SELECT expires_at - extract(epoch FROM now()) FROM lease")
        assert LEASE_SECONDS - 30 < seconds <= LEASE_SECONDS + 1
        for left, is_taken in ((30, False), (-30, True)):
            expires_at = f"extract(epoch FROM now()) + {left}"
            asked(address, f"UPDATE lease SET owner = '{elsewhere(run.owner)}', expires_at = {expires_at}")
            assert other.take(PROBLEM) is is_taken
