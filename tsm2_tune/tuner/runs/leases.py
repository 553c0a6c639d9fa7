"""Leases of whole problems: rows in the database by which runs divide the problems of a device.

A lease expires LEASE_SECONDS after its last renewal. If its run's process ran on this machine and no longer exists,
the lease is free at once.

A configuration may kill the machine. So a lease names the configuration that is being tried. A run that takes over
the lease of a dead run counts the deaths of runs in a row at the same configuration, the *suspect*.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from sqlalchemy import ColumnElement, Executable, and_, bindparam, case, delete, null, or_, select, update

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.results.upsert import add_once
from tsm2_tune.tuner.runs import owners
from tsm2_tune.tuner.runs.owners import NOBODY

log = logging.getLogger(__name__)
RENEWAL_SECONDS = 5.0
LEASE_SECONDS = 60.0  # without a renewal; a swapping machine is late, but not by that much
LOOK_SECONDS = 1.0  # between two checks of the current configuration; shorter trials are not recorded
DEATHS_UNTIL_QUARANTINE = 3  # so many runs in a row die at a configuration before it is quarantined

# Each statement is built once, since building it takes longer than SQLite needs to execute it.
_LEASE, _UPDATE = schema.lease.c, update(schema.lease)
_KEY = and_(_LEASE.device_name == bindparam("device"), _LEASE.problem == bindparam("text"))
_OURS = _LEASE.owner == bindparam("run")
_ROW = select(schema.lease).where(_KEY)
_LOCKED_ROW = _ROW.with_for_update(skip_locked=True)  # a locked row is being renewed, or taken by another run
_EXTEND = _UPDATE.where(_KEY, _OURS).values(expires_at=bindparam("until"))
_TAKE_OVER = _UPDATE.where(_KEY).values(
    owner=bindparam("run"), config=null(), suspect=bindparam("accused"), deaths=bindparam("counted")
)
_NOT_LOCKED = select(_LEASE.problem).where(_OURS).with_for_update(skip_locked=True)
_RENEW = _UPDATE.where(_OURS, _LEASE.problem.in_(_NOT_LOCKED)).values(expires_at=bindparam("until"))
_SURVIVED = _LEASE.suspect == bindparam("before")
_RECORD = _UPDATE.where(_KEY, _OURS).values(
    config=bindparam("current"),
    suspect=case((_SURVIVED, null()), else_=_LEASE.suspect),
    deaths=case((_SURVIVED, 0), else_=_LEASE.deaths),
)
_CLEAR_DEATHS = _UPDATE.where(_KEY, _OURS).values(suspect=null(), deaths=0)
# A row is kept if runs have died at its suspect, unless the run that releases it has survived the suspect's trial.
_DELETE = delete(schema.lease).where(_OURS, or_(_LEASE.deaths == 0, _LEASE.suspect == _LEASE.config))
_RELEASE = _UPDATE.where(_OURS).values(owner=NOBODY, config=null())


class Leases:
    """This run's leases of problems on one device.

    A Leases object is a context manager. In the `with` block a thread renews the leases. At the end of the block the
    leases are released.
    """

    def __init__(self, database: Database, device_name: str) -> None:
        self.database, self.device_name = database, device_name
        self.owner = owners.owner_of(os.getpid())
        self._numbers = itertools.count()
        # Problem and worker -> the configuration being tried, and a number that differs for each trial.
        self._current = dict[tuple[Problem, object], tuple[str, int]]()
        self._seen = dict[tuple[Problem, object], tuple[str, int]]()  # `_current` at the last look
        self._recorded = dict[Problem, str]()  # configurations in this run's rows
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name="leases", daemon=True)

    def __enter__(self) -> Leases:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(StoreError):  # the leases expire soon
            self._write({"run": self.owner}, _DELETE, _RELEASE)

    @repeated
    def take(self, problem: Problem) -> bool:
        """Lease the problem if no other living run has it. Return whether this run has it now.

        A run may take its problem again.
        """
        key = self._key(problem)
        with self.database.transaction(writes=True, about=(self.owner,)) as connection:
            now = self.database.now(connection)
            row = connection.execute(_LOCKED_ROW, key).mappings().first()
            if row is None:  # or it is locked, and nothing is inserted
                values = {"owner": self.owner, "expires_at": now, "deaths": 0}
                keys = {"device_name": self.device_name, "problem": problem.text}
                add_once(connection, schema.lease, [keys | values])
            elif row["owner"] != self.owner and (lease := _valid(row, now))["owner"] == NOBODY:
                connection.execute(_TAKE_OVER, key | _counted_death(lease))
                self._recorded.pop(problem, None)
            is_ours = connection.execute(_EXTEND, key | {"until": now + LEASE_SECONDS}).rowcount > 0
        log.debug("lease of %s %s", problem.text, "taken" if is_ours else "left to another run")
        return is_ours

    @repeated
    def release(self, problem: Problem) -> None:
        """Release the problem. Its row is kept if runs before this one died at a configuration."""
        for key in [key for key in self._current if key[0] == problem]:
            del self._current[key]
        self._write(self._key(problem), _DELETE.where(_KEY), _RELEASE.where(_KEY))
        log.debug("lease of %s released", problem.text)

    @repeated
    def holder(self, problem: Problem) -> str:
        """Return a description of the other living run that has the problem; "" if no other run has it."""
        with self.database.transaction() as connection:
            row = connection.execute(_ROW, self._key(problem)).mappings().first()
            owner = _valid(row, self.database.now(connection))["owner"]
        return owners.described(owner) if owner not in (NOBODY, self.owner) else ""

    def record_current(self, problem: Problem, config: str | None, *, worker: object = None) -> None:
        """Record which configuration of the problem the worker is trying; None if it is trying none.

        The renewing thread writes the configuration to the database if its trial takes LOOK_SECONDS or more.
        """
        if config is None:
            self._current.pop((problem, worker), None)
        else:
            self._current[problem, worker] = config, next(self._numbers)

    @repeated
    def config_to_quarantine(self, problem: Problem) -> str | None:
        """Return the suspect of this run's problem after DEATHS_UNTIL_QUARANTINE deaths in a row; None before."""
        with self.database.transaction() as connection:
            row = connection.execute(_ROW.where(_OURS), self._key(problem)).mappings().first()
            lease = _valid(row, self.database.now(connection))
        return lease["suspect"] if lease["deaths"] >= DEATHS_UNTIL_QUARANTINE else None

    @repeated
    def clear_deaths(self, problem: Problem) -> None:
        """Forget the problem's suspect and the deaths."""
        self._write(self._key(problem), _CLEAR_DEATHS)

    def renew(self) -> None:
        """Renew all leases of this run. The renewing thread calls this every RENEWAL_SECONDS."""
        with self.database.transaction(writes=True, about=(self.owner,), durable=False) as connection:
            connection.execute(_RENEW, {"run": self.owner, "until": self.database.now(connection) + LEASE_SECONDS})

    def look(self) -> None:
        """Record which trials have lasted since the last call. The renewing thread calls this every LOOK_SECONDS.

        A row names one configuration until its trial ends, even if several workers try configurations of a problem.
        """
        current, seen = self._current.copy(), self._seen
        lasting = [(key[0], trial[0]) for key, trial in current.items() if seen.get(key) == trial]
        self._seen = current
        for problem in {*self._recorded, *(problem for problem, _ in lasting)}:
            configs = [config for of, config in lasting if of == problem]
            ended = self._recorded.get(problem)
            if ended in configs:
                continue
            config = configs[0] if configs else None
            self._write(self._key(problem) | {"before": ended, "current": config}, _RECORD)
            self._recorded.pop(problem, None)
            if config is not None:
                self._recorded[problem] = config

    def _renew_always(self) -> None:
        renewed_at = time.monotonic()
        while not self._ended.wait(min(LOOK_SECONDS, RENEWAL_SECONDS)):
            with suppress(StoreError):  # tried again at the next look
                if time.monotonic() - renewed_at >= RENEWAL_SECONDS:
                    self.renew()
                    renewed_at = time.monotonic()
                self.look()

    def _write(self, values: Mapping[str, Any], *statements: Executable) -> None:
        with self.database.transaction(writes=True, about=(self.owner,)) as connection:
            for statement in statements:
                connection.execute(statement, values)

    def _key(self, problem: Problem) -> dict[str, Any]:
        return {"device": self.device_name, "text": problem.text, "run": self.owner}


def is_unused(now: float) -> ColumnElement[bool]:
    """Return the SQL condition that a lease has expired, and that its run did not die at a configuration."""
    return and_(_LEASE.expires_at <= now, _LEASE.deaths == 0, _LEASE.config.is_(None))


def _valid(row: Row | None, now: float) -> dict[str, Any]:
    """Return the values of a row. The owner is NOBODY if the lease has expired or its owner is dead.

    A row with an invalid value counts as no lease, since any program may have written the file.
    """
    try:
        lease = checked(row or {}, schema.lease.columns)
    except (KeyError, TypeError, ValueError):
        return {"owner": NOBODY, "config": None, "suspect": None, "deaths": 0}
    # If a clock was set back, the lease ends late; but an end that is later than this, no renewal has written.
    is_current = 0.0 < lease["expires_at"] - now <= 2 * LEASE_SECONDS
    return lease if is_current and owners.may_live(lease["owner"]) else lease | {"owner": NOBODY}


def _counted_death(lease: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suspect and its number of deaths after the death of the lease's run."""
    config, suspect, deaths = lease["config"], lease["suspect"], lease["deaths"]
    if config is None:
        return {"accused": suspect, "counted": deaths}
    return {"accused": config, "counted": deaths + 1 if config == suspect else 1}
