"""Configurations that this run wanted to try but another run had claimed. They are tried if the other run dies."""

from __future__ import annotations

from collections import defaultdict
from functools import cache, partial
from typing import NamedTuple

from sqlalchemy import Connection, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.runs.leases import queries
from tsm2_tune.tuner.runs.leases.owners import is_alive
from tsm2_tune.tuner.runs.leases.queries import NO_CONFIGURATIONS, is_tried
from tsm2_tune.tuner.search.resume import Retries


class ContestedRequest(NamedTuple):
    """The parameters of a refused claim: another run had the configuration, or the limit on trials was reached."""

    retries: Retries
    families: tuple[str, ...]
    most: int | None  # greatest number of trials of these families


class ContestedConfigurations:
    """The configurations that this run wanted to try but another run has claimed.

    They are kept in memory, since any run may delete the claims of a dead run from the database.
    """

    def __init__(self, database: Database, device_name: str, owner: str) -> None:
        self._database, self._device_name, self._owner = database, device_name, owner
        self._contested = defaultdict[Problem, dict[tuple[str, str], ContestedRequest]](
            dict
        )  # by configuration and basis

    def note(self, problem: Problem, config: str, basis: str, asked: ContestedRequest) -> None:
        """Remember a configuration whose claim was refused."""
        self._contested[problem][config, basis] = asked

    def forget(self, problem: Problem, config: str, basis: str) -> None:
        """Remove the configuration, since this run tries to claim it again."""
        self._contested[problem].pop((config, basis), None)

    def forget_all(self, problem: Problem) -> None:
        """Remove all configurations of the problem."""
        self._contested.pop(problem, None)

    @repeated
    def state(self, problem: Problem) -> tuple[set[str], bool]:
        """Return (runs, is_free) for the configurations of the problem that this run wanted to try.

        `runs` are the other living runs that have claimed some of these configurations. `is_free` is true if this run
        can claim one of them now.
        """
        column, contested = schema.claim.c, self._contested[problem]
        if not contested:
            return set(), False
        theirs = select(column.config, column.basis, column.owner, column.beat_at).where(
            column.device_name == self._device_name,
            column.problem == problem.text,
            column.config.not_in(NO_CONFIGURATIONS),
            column.owner != self._owner,
        )
        enough = cache(partial(self._enough, problem))
        found, is_nobodys = set[str](), False
        with self._database.transaction() as connection:
            now = self._database.now(connection)
            rows = [row for row in connection.execute(theirs).all() if is_alive(row.owner, row.beat_at, now)]
            owners = {(row.config, row.basis): str(row.owner) for row in rows}
            for (config, basis), asked in list(contested.items()):
                if (config, basis) in owners:
                    found.add(owners[config, basis])
                elif is_tried(connection, self._device_name, problem, config, basis, asked.retries):
                    del contested[config, basis]
                elif asked.most is None:
                    is_nobodys = True
                else:
                    is_too_few, at_some = enough(connection, basis, asked.families, asked.most)
                    is_nobodys |= is_too_few
                    found |= at_some
        return found, is_nobodys

    def _enough(
        self, problem: Problem, connection: Connection, basis: str, families: tuple[str, ...], most: int
    ) -> tuple[bool, set[str]]:
        """Compare the limit `most` with the number of trials and claims that these families have on this basis.

        Return (True, empty set) if trials and claims together are below `most`. Otherwise return (False, owners). If
        the trials alone are below `most`, `owners` are the other runs with claims. If they are not, `owners` is
        empty.
        """
        tried = queries.trials(connection, self._device_name, problem, families, basis)
        if tried >= most:
            return False, set()
        owners = queries.owners(connection, self._device_name, problem, families, basis)
        now = self._database.now(connection)
        at_some = {owner: int(number) for owner, at, number in owners if number and is_alive(owner, at, now)}
        if tried + sum(at_some.values()) < most:
            return True, set()
        return False, set(at_some.keys() - {self._owner})
