"""Leases in a simulation: runs die, are suspended, come back late and lose commits, and no problem is lost."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from tests.fabricated import GPU, configuration
from tests.standing_in import wait_by
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.runs import owners
from tsm2_tune.tuner.runs.leases import DEATHS_UNTIL_QUARANTINE, LEASE_SECONDS, RENEWAL_SECONDS, Leases

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


MANY = [pytest.param(*one, marks=pytest.mark.slow) for one in ((False, 1_000), (True, 5_000), (False, 5_000))]


@pytest.mark.parametrize(("is_mild", "deaths"), [(True, 100), *MANY])
def test_no_death_loses_or_doubles_a_problem(is_mild: bool, deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, is_mild=is_mild)
    wait_by(monkeypatch, lambda: world.clock, world.sleep)
    for name in ("system", "started"):
        monkeypatch.setattr(owners, name, getattr(world, name))
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
