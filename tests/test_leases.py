"""Runs on one database divide the problems: what a living run has leased, the others leave to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fabricated import GPU, PROBLEM, configuration, plain_sql
from tests.servers import asked, wait_until
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import owners
from tsm2_tune.tuner.runs.leases import LEASE_SECONDS, Leases

OTHER = replace(PROBLEM, m=PROBLEM.m + 1)
C128, C256 = configuration(128).text, configuration(256).text


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


def rows(path: Path, columns: str = "owner, config, suspect, deaths") -> list[tuple[Any, ...]]:
    return plain_sql(path, f"SELECT {columns} FROM lease ORDER BY problem")


def test_row_names_one_configuration_until_its_trial_ends(ours: Leases, path: Path) -> None:
    """Though two workers try configurations. Who survives the suspect clears it."""
    assert ours.take(PROBLEM)
    plain_sql(path, f"UPDATE lease SET suspect = '{C128}', deaths = 2")
    for worker, config in enumerate((C128, C256)):
        ours.record_current(PROBLEM, config, worker=worker)
    ours.look()
    assert rows(path) == [(ours.owner, None, C128, 2)], "the trials have not lasted yet"
    for _ in range(2):
        ours.look()
        assert rows(path) == [(ours.owner, C128, C128, 2)]
    ours.record_current(PROBLEM, None, worker=0)
    ours.look()
    assert rows(path) == [(ours.owner, C256, None, 0)]
    plain_sql(path, "UPDATE lease SET expires_at = 1.0")
    assert ours.take(PROBLEM), "late, but alive"
    assert (rows(path), ours.holder(PROBLEM)) == ([(ours.owner, C256, None, 0)], "")
    ours.release(PROBLEM)
    assert rows(path) == []
    assert ours.take(PROBLEM)
    for _ in range(2):
        ours.look()
    assert rows(path) == [(ours.owner, None, None, 0)], "nothing is tried any more"


def test_a_run_renews_its_own_leases_of_one_device(
    ours: Leases, theirs: Leases, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="tsm2_tune")
    assert ours.take(PROBLEM)
    assert theirs.take(OTHER)
    assert Leases(ours.database, "Tesla K40c").take(PROBLEM), "the problem of another device"
    plain_sql(path, "UPDATE lease SET expires_at = 1.0")
    ours.renew()
    assert plain_sql(path, "SELECT owner FROM lease WHERE expires_at > 1.0") == [(ours.owner,)]
    theirs.release(PROBLEM)
    assert len(rows(path)) == 3, "it is not theirs"
    assert caplog.messages[0] == f"lease of {PROBLEM.text} taken"


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
        "expires_at = 9e999",
        "owner = x'00'",
        "owner = owner || char(10)",
        f"owner = '{'x' * 2000}'",
        "config = 'a b'",
        "config = x'00'",
        "suspect = char(27) || '[2J'",
        "deaths = -1",
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


@pytest.mark.usefixtures("impatient")
def test_thread_renews_and_records(store: Store, path: Path) -> None:
    with store.leases(GPU) as run:
        assert run.take(PROBLEM)
        run.record_current(PROBLEM, C128)
        plain_sql(path, "UPDATE lease SET expires_at = 1.0")
        wait_until(lambda: rows(path, "expires_at > 1.0, config") == [(1, C128)])
    assert rows(path) == []


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


def test_leases_expire_by_the_servers_clock(address: str, time_of_day: SimpleNamespace) -> None:
    """A machine's clock may be hours off."""
    time_of_day.ahead_seconds = -7200
    with Store.open(address, create=True) as store:
        run, other = store.leases(GPU), store.leases(GPU)
        assert run.take(PROBLEM)
        ((seconds,),) = asked(address, "SELECT expires_at - extract(epoch FROM now()) FROM lease")
        assert LEASE_SECONDS - 30 < seconds <= LEASE_SECONDS + 1
        for left, is_taken in ((30, False), (-30, True)):
            expires_at = f"extract(epoch FROM now()) + {left}"
            asked(address, f"UPDATE lease SET owner = '{elsewhere(run.owner)}', expires_at = {expires_at}")
            assert other.take(PROBLEM) is is_taken
