"""Runs on one database divide the problems: what a living run has leased, the others leave to it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from tests.fabricated import GPU, PROBLEM, configuration, plain_sql
from tests.servers import asked
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import retry, schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import leases, owners
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, LEASE_SECONDS, RENEWAL_SECONDS, Leases

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


# A simulation


LOST, KILLED, SUSPENDED, ENDED = 0.03, 0.12, 0.01, 0.01  # chances: of a commit; of a run, each second
MACHINES, RUNS, OPEN_PROBLEMS, CONFIGURATIONS = 3, 8, 60, 4


@dataclass(eq=False)
class Run:
    """A run of the simulation."""

    machine: int
    process: int
    leases: Leases
    confirmed_at: float = 0.0  # when it last learned that it has its problem
    renewed_at: float = 0.0
    problem: Problem | None = None
    config: str | None = None
    ends_at: float = 0.0  # of its trial
    suspended_until: float = 0.0


class World(Database):
    """A database in memory, a clock, processes on machines, and runs that tune problems and die.

    `is_mild`: no run is killed or suspended during a recorded trial, except by its configuration.
    """

    def __init__(self, seed: int, *, is_mild: bool) -> None:
        engine = create_engine("sqlite://", poolclass=StaticPool)
        schema.lease.create(engine)
        super().__init__(Path("memory"), engine)
        self._open = engine.connect()
        self._sqlite: Any = self._open.connection.driver_connection
        self.is_mild, self.chance, self.clock = is_mild, random.Random(seed), 1000.0
        self.boots, self.machine = dict.fromkeys(range(MACHINES), 0), 0  # the machine whose process is running
        self.processes = dict[tuple[int, int], int]()  # machine and process -> start time
        self.runs, self.is_stormy, self.deaths, self.numbers = list[Run](), True, 0, 0
        self.untuned = list[Problem]()
        self.tried, self.excluded = defaultdict[Problem, set[str]](set), defaultdict[Problem, set[str]](set)
        self.killers = dict[Problem, str]()
        self.died_at = defaultdict[Problem, list[str]](list)  # recorded configurations of runs that lost a problem

    # The database, which loses commits and answers to commits

    @contextmanager
    def transaction(
        self, *, writes: bool = False, about: tuple[str, ...] = (), durable: bool = True
    ) -> Iterator[Connection]:
        with self._open.begin() as begun:
            yield self._open
            if writes and self.chance.random() < LOST:
                begun.rollback()
                raise Lost("the commit")
        if writes and self.chance.random() < LOST:
            raise Lost("the answer to the commit")

    def now(self, connection: Connection) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def row(self, problem: Problem) -> tuple[str, str | None]:
        """The owner and the recorded configuration, read without SQLAlchemy, which would take most of the time."""
        found = self._sqlite.execute("SELECT owner, config FROM lease WHERE problem = ?", [problem.text]).fetchone()
        return found or ("", None)

    # The machines

    def system(self) -> str:
        return f"machine-{self.machine}-{self.boots[self.machine]}:1"

    def started(self, process: int) -> int:
        return self.processes.get((self.machine, process), 0)

    def begin(self) -> None:
        """Start a run, and open problems."""
        self.numbers += 1
        self.machine, process = self.chance.randrange(MACHINES), 1 + self.numbers % 50
        if (self.machine, process) in self.processes:
            return
        self.processes[self.machine, process] = self.numbers
        run = Leases(self, GPU)
        run.owner = f"{self.system()} {process} {self.numbers} {self.numbers:032x}"
        self.runs.append(Run(self.machine, process, run))
        while self.is_stormy and len(self.untuned) < OPEN_PROBLEMS:
            problem = Problem(1000 + self.numbers, 2 + len(self.untuned), 64, "f32")
            self.untuned.append(problem)
            if self.chance.random() < 0.3:
                self.killers[problem] = CONFIGS[self.chance.randrange(CONFIGURATIONS)]

    def die(self, run: Run) -> None:
        self.deaths += 1
        self.runs.remove(run)
        del self.processes[run.machine, run.process]

    def reboot(self, machine: int) -> None:
        self.boots[machine] += 1
        for run in [run for run in self.runs if run.machine == machine]:
            self.die(run)

    def is_recorded(self, run: Run) -> bool:
        owner, config = ("", None) if run.problem is None else self.row(run.problem)
        return owner == run.leases.owner and config is not None

    # The runs

    def second(self) -> None:
        """Let a second pass."""
        self.clock += 1.0
        while len(self.runs) < RUNS:
            self.begin()
        for run in self.chance.sample(self.runs, len(self.runs)):
            if run in self.runs and self.clock >= run.suspended_until:
                self.machine = run.machine
                self.go_on(run)
        self.check()

    def go_on(self, run: Run) -> None:
        """Do what a run does in a second."""
        is_late, at = run.suspended_until > 0.0, self.clock
        with suppress(StoreError):  # as the thread
            if is_late or at - run.renewed_at >= RENEWAL_SECONDS:
                run.leases.renew()
                run.renewed_at = at
                run.confirmed_at = run.confirmed_at if is_late else at
            run.leases.look()
        if is_late:
            run.suspended_until = 0.0
            if run.problem is not None and not self.takes(run, run.problem):
                run.leases.record_current(run.problem, None)
                run.problem = run.config = None
        if run.problem is None:
            self.find_problem(run)
        elif run.config is None:
            self.try_next(run, run.problem)
        elif self.clock >= run.ends_at:
            self.end_trial(run, run.problem)
        if run in self.runs and self.is_stormy:
            self.strike(run)

    def takes(self, run: Run, problem: Problem) -> bool:
        (owner, config), at = self.row(problem), self.clock
        if not run.leases.take(problem):
            return False
        if owner != run.leases.owner and config is not None:
            self.died_at[problem].append(config)
        run.confirmed_at = at
        return True

    def find_problem(self, run: Run) -> None:
        for problem in self.chance.sample(self.untuned, min(3, len(self.untuned))):
            if self.takes(run, problem):
                run.problem = problem
                suspect = run.leases.config_to_quarantine(problem)
                if suspect is not None:
                    assert self.died_at[problem][-DEATHS_UNTIL_QUARANTINE:] == [suspect] * DEATHS_UNTIL_QUARANTINE
                    self.excluded[problem].add(suspect)
                    run.leases.clear_deaths(problem)
                return

    def try_next(self, run: Run, problem: Problem) -> None:
        remaining = [one for one in CONFIGS if one not in self.tried[problem] | self.excluded[problem]]
        if not remaining:
            run.leases.release(problem)
            run.problem = None
            if problem in self.untuned:  # a late run may have ended it
                self.untuned.remove(problem)
            return
        run.config = self.chance.choice(remaining)
        is_killer = self.killers.get(problem) == run.config
        run.ends_at = self.clock + (4.0 if is_killer else self.chance.choice([0.0, 0.0, 0.0, 3.0]))
        run.leases.record_current(problem, run.config)

    def end_trial(self, run: Run, problem: Problem) -> None:
        if self.killers.get(problem) == run.config:
            if self.is_mild or self.chance.random() < 0.5:
                self.die(run)
            else:
                self.reboot(run.machine)
            return
        assert run.config is not None
        self.tried[problem].add(run.config)
        run.leases.record_current(problem, None)
        run.config = None

    def strike(self, run: Run) -> None:
        """Kill, suspend or end a run, or kill all runs of its machine, by chance."""
        struck, neighbours = self.chance.random(), [one for one in self.runs if one.machine == run.machine]
        if struck > KILLED + SUSPENDED + ENDED or (self.is_mild and any(map(self.is_recorded, neighbours))):
            return
        if struck < KILLED:
            if struck < KILLED / 6:
                self.reboot(run.machine)
            else:
                self.die(run)
        elif struck < KILLED + SUSPENDED:
            if not self.is_mild or run.config is None:
                run.suspended_until = self.clock + self.chance.uniform(10.0, 4 * LEASE_SECONDS)
        else:
            if run.problem is not None:
                run.leases.release(run.problem)
            self.runs.remove(run)
            del self.processes[run.machine, run.process]

    def check(self) -> None:
        """Assert that no two runs that renew in time have one problem."""
        in_time = [run for run in self.runs if run.problem and self.clock - run.confirmed_at < LEASE_SECONDS]
        had = [run.problem for run in in_time]
        assert len(had) == len(set(had)), self.clock


CONFIGS = [configuration(32 * (1 + number)).text for number in range(CONFIGURATIONS)]


@pytest.mark.parametrize(("is_mild", "deaths"), [(True, 3_000), (False, 7_000)])
def test_ten_thousand_deaths_lose_and_double_no_problem(
    is_mild: bool, deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1, is_mild=is_mild)
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=world.sleep, monotonic=lambda: world.clock))
    monkeypatch.setattr(owners, "system", world.system)
    monkeypatch.setattr(owners, "started", world.started)
    while world.deaths < deaths:
        world.second()
    world.is_stormy, calm_at = False, world.clock
    while world.untuned:
        world.second()
        assert world.clock < calm_at + 10_000
    problems = list(world.tried)
    assert len(problems) > deaths // 20
    for problem in problems:
        assert world.tried[problem] | world.excluded[problem] == set(CONFIGS)
    killed = {problem: world.died_at[problem].count(config) for problem, config in world.killers.items()}
    assert all(config in world.excluded[problem] for problem, config in world.killers.items())
    if is_mild:
        assert set(killed.values()) == {DEATHS_UNTIL_QUARANTINE}
        assert {problem: {config} for problem, config in world.killers.items()} == {
            problem: found for problem, found in world.excluded.items() if found
        }


def test_a_zombie_has_no_lease() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = owners.owner_of(process.pid)
        assert owners.may_live(owner)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert not owners.may_live(owner)
