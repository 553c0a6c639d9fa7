"""Runs on one database divide the problems: what a living run has leased, the others leave to it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from tests.fabricated import GPU, PROBLEM, configuration, plain_sql
from tests.servers import asked, wait_until
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import owners
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, LEASE_SECONDS, Leases

OTHER = replace(PROBLEM, m=PROBLEM.m + 1)
C128, C256 = configuration(128).text, configuration(256).text
ACTS = (
    ("take", "look") * 8 + ("try",) * 3 + ("die",) * 2 + ("end a trial", "release", "renew", "clear", "wait", "end")
)


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


class Machine(Database):
    """A database in memory, with a clock."""

    def __init__(self) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        schema.lease.create(engine)
        super().__init__(Path("memory"), engine)
        self.clock = 1000.0

    @contextmanager
    def transaction(self, *, writes: bool = False, about: Any = (), durable: bool = True) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    def now(self, connection: Connection) -> float:
        return self.clock


@dataclass
class Row:
    """The expected values of a row of the table of leases."""

    owner: str
    expires_at: float
    config: str | None = None
    suspect: str | None = None
    deaths: int = 0


class Plain:
    """Leases, computed without a database."""

    def __init__(self) -> None:
        self.rows = dict[tuple[str, str], Row]()
        self.living = set[str]()

    def is_free(self, row: Row, now: float) -> bool:
        return row.owner not in self.living or row.expires_at <= now

    def take(self, key: tuple[str, str], owner: str, now: float) -> bool:
        row = self.rows.setdefault(key, Row(owner, now))
        if row.owner != owner:
            if not self.is_free(row, now):
                return False
            if row.config is not None:
                row.deaths = row.deaths + 1 if row.suspect == row.config else 1
                row.suspect = row.config
            row.owner, row.config = owner, None
        row.expires_at = now + LEASE_SECONDS
        return True

    def release(self, owner: str, *keys: tuple[str, str]) -> None:
        for key in keys or tuple(self.rows):
            row = self.rows.get(key)
            if row is None or row.owner != owner:
                continue
            row.owner = ""
            if not row.deaths or row.suspect == row.config:
                del self.rows[key]
            row.config = None

    def record(self, key: tuple[str, str], owner: str, config: str | None, ended: str | None) -> None:
        row = self.rows.get(key)
        if row is not None and row.owner == owner:
            if ended is not None and row.suspect == ended:
                row.suspect, row.deaths = None, 0
            row.config = config


@dataclass(eq=False)
class Tuning:
    """A run, and what it tries: a configuration of each problem by two workers, and for how many looks."""

    leases: Leases
    tries: dict[tuple[Problem, int], tuple[str, int]] = field(default_factory=dict)
    recorded: dict[Problem, str | None] = field(default_factory=dict)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_leases_are_those_of_a_plain_computation(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, machine, plain, runs = random.Random(seed), Machine(), Plain(), list[Tuning]()
    monkeypatch.setattr(owners, "may_live", lambda owner: owner in plain.living)
    for _ in range(600):
        while len(runs) < 3:
            runs.append(Tuning(Leases(machine, chance.choice((GPU, GPU, "Tesla K40c")))))
            plain.living.add(runs[-1].leases.owner)
        run, problem = chance.choice(runs), chance.choice((PROBLEM, OTHER))
        ours, owner, key = run.leases, run.leases.owner, (run.leases.device_name, problem.text)
        tried, act = (problem, chance.randrange(2)), chance.choice(ACTS)
        if act == "take":
            is_over = key in plain.rows and plain.rows[key].owner != owner
            is_ours = plain.take(key, owner, machine.clock)
            assert ours.take(problem) is is_ours
            if is_over and is_ours:
                run.recorded.pop(problem, None)
        elif act == "try":
            config = chance.choice((C128, C128, C128, C256))
            ours.record_current(problem, config, worker=tried[1])
            run.tries[tried] = config, 0
        elif act == "end a trial":
            ours.record_current(problem, None, worker=tried[1])
            run.tries.pop(tried, None)
        elif act == "look":
            ours.look()
            for of in (PROBLEM, OTHER):
                long = [config for (one, _), (config, looks) in run.tries.items() if one == of and looks]
                if (ended := run.recorded.get(of)) not in long:
                    run.recorded[of] = long[0] if long else None
                    plain.record((ours.device_name, of.text), owner, run.recorded[of], ended)
            run.tries = {one: (config, looks + 1) for one, (config, looks) in run.tries.items()}
        elif act == "release":
            ours.release(problem)
            run.tries = {one: tries for one, tries in run.tries.items() if one[0] != problem}
            plain.release(owner, key)
        elif act == "renew":
            ours.renew()
            for row in plain.rows.values():
                row.expires_at = machine.clock + LEASE_SECONDS if row.owner == owner else row.expires_at
        elif act == "clear":
            ours.clear_deaths(problem)
            if key in plain.rows and plain.rows[key].owner == owner:
                plain.rows[key].suspect, plain.rows[key].deaths = None, 0
        elif act == "wait":
            machine.clock += chance.choice((1.0, 30.0, 59.0))
        else:
            runs.remove(run)
            plain.living.remove(owner)
            if act == "end":
                ours._thread = threading.Thread()
                with ours:
                    pass
                plain.release(owner)
        stored = [tuple[Any, ...](row.values()) for row in machine.rows(schema.lease.select())]
        assert {one[:2]: Row(*one[2:]) for one in stored} == plain.rows
        row = plain.rows.get(key, Row("", 0.0))
        is_deadly = row.owner == owner and row.deaths >= DEATHS_UNTIL_QUARANTINE
        assert ours.config_to_quarantine(problem) == (row.suspect if is_deadly else None)
        is_held = row.owner != owner and not plain.is_free(row, machine.clock)
        assert ours.holder(problem) == (f"process {os.getpid()}" if is_held else "")


# Who has a problem


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


@pytest.mark.usefixtures("impatient")
def test_thread_renews_and_records(store: Store, path: Path) -> None:
    with store.leases(GPU) as run:
        assert run.take(PROBLEM)
        run.record_current(PROBLEM, C128)
        plain_sql(path, "UPDATE lease SET expires_at = 1.0")
        wait_until(lambda: rows(path, "expires_at > 1.0, config") == [(1, C128)])


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
