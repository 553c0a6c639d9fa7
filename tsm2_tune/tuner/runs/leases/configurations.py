"""Claims of a run on configurations: rows in the database, so that other runs do not try the same configurations.

A claim expires if its owner dies or sends no heartbeat for a minute. Without claims the database would stay
consistent, since it stores one trial for each configuration.

A configuration may kill the process that tries it. After MOST_ATTEMPTS runs have died in this way, no run tries the
configuration again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, select, tuple_, update

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import place_of
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.results.upsert import add_or_change
from tsm2_tune.tuner.runs.leases import queries
from tsm2_tune.tuner.runs.leases.contested import ContestedConfigurations, ContestedRequest
from tsm2_tune.tuner.runs.leases.owners import is_alive, owner_of
from tsm2_tune.tuner.runs.leases.queries import (
    FINAL,
    NO_CONFIGURATIONS,
    RUN,
    SEARCH,
    SEARCHED,
    claim_of,
    is_claim,
    is_tried,
)
from tsm2_tune.tuner.search.resume import ClaimResult, Retries

log = logging.getLogger(__name__)
BEAT_SECONDS = 5.0
WAIT_SECONDS = 0.2  # between two checks whether another run's final comparison has ended
LOOK_SECONDS = 1.0  # between two checks of the current configuration; shorter trials are not recorded as attempts
MOST_ATTEMPTS = 3  # no run tries a configuration during whose trial so many runs have died
NOBODY = ""  # owner of a released claim, which keeps its attempts


class _Key(NamedTuple):
    """The columns that identify a claim on one device."""

    problem: Problem
    config: str
    basis: str


class Claims:
    """The claims of this run on one device: rows in the database that reserve configurations and problems.

    A Claims object is a context manager. In the `with` block a thread sends heartbeats, which keep the claims valid.
    """

    def __init__(self, database: Database, device_name: str) -> None:
        self.database, self.device_name = database, device_name
        self.owner = owner_of(os.getpid())
        self._open: Connection | None = None  # the transaction of `in_one_transaction`
        # Numbers of trials and claims by problem, families and basis, within one transaction.
        self._counted = Counter[tuple[Problem, tuple[str, ...], str]]()
        self.contested = ContestedConfigurations(database, device_name, self.owner)
        self._current: _Key | None = None  # the claim being tried
        self._marked: _Key | None = None  # the claim whose attempt is counted in the database
        self._marking = threading.Lock()
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="claims", daemon=True)

    def __enter__(self) -> Claims:
        self.remove_dead()
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._beating.join()
        with suppress(StoreError):  # the claims expire soon
            self._leave(searches=True)
            self.remove_dead()

    @contextmanager
    def in_one_transaction(self) -> Iterator[None]:
        """Use one transaction for all claims in the `with` block, since each transaction of a file takes
        milliseconds.

        On a server each claim has its own transaction, so that other runs are not blocked.
        """
        if self.database.is_shared:
            yield
            return
        with self.database.transaction(writes=True) as self._open:
            try:
                yield
            finally:
                self._open = None
                self._counted.clear()

    @repeated
    def take(
        self,
        problem: Problem,
        config: str,
        *,
        basis: str,
        retries: Retries,
        families: Collection[str] = (),
        most: int | None = None,
        given_up: bool = False,
    ) -> ClaimResult:
        """Claim a configuration for this run, and return the result.

        The claim fails if the configuration has been tried, or if another living run has claimed it. If several runs
        have died while they tried the configuration, it is claimed only if `given_up` is true. The result is
        LIMIT_REACHED if the number of trials and claims of these families with this basis (compiler, flags and L2
        cache state) is at least `most`.
        """
        opened = self.written(problem) if self._open is None else nullcontext(self._open)
        asked = ContestedRequest(retries, tuple(families), most)
        self.contested.forget(problem, config, basis)
        with opened as connection:
            if is_tried(connection, self.device_name, problem, config, basis, retries):
                return ClaimResult.ELSEWHERE
            claim = self._claim(connection, problem, config, basis)
            if self._is_others(connection, claim):
                self.contested.note(problem, config, basis, asked)
                log.debug("claim of %s %s lost to %s", problem.text, config, claim.owner)
                return ClaimResult.ELSEWHERE
            if not given_up and claim is not None and _counted(claim.attempts) >= MOST_ATTEMPTS:
                return ClaimResult.GIVEN_UP
            if most is not None and self._count(connection, problem, families, basis) >= most:
                self.contested.note(problem, config, basis, asked)
                return ClaimResult.LIMIT_REACHED
            self.add(connection, problem, config, basis)
            log.debug("claim of %s %s taken", problem.text, config)
            if claim is None or claim.owner != self.owner:
                self._counted.update(which for which in self._counted if which[0] == problem)
            return ClaimResult.OURS

    def take_final(self, problem: Problem) -> None:
        """Claim the final comparison of a problem's fastest configurations. Wait while another run has this claim."""
        while not self._took_final(problem):
            time.sleep(WAIT_SECONDS)

    @repeated
    def _took_final(self, problem: Problem) -> bool:
        with self.written(problem) as connection:
            is_free = not self._is_others(connection, self._claim(connection, problem, FINAL, ""))
            if is_free:
                self.add(connection, problem, FINAL, "")
                log.debug("claim of the finals of %s taken", problem.text)
            return is_free

    def give_back(self) -> None:
        """Release all of this run's claims on configurations and final comparisons."""
        self._leave(searches=False)

    def record_current(self, problem: Problem, config: str, basis: str) -> None:
        """Record which configuration is being tried, so that other runs know what this run tried last if it dies."""
        self._current = _Key(problem, config, basis)

    @repeated
    def given_up(self, problem: Problem) -> tuple[str, ...]:
        """Return the configurations that are no longer tried, because several runs died while they tried them."""
        column = schema.claim.c
        found = select(column.config).where(
            column.device_name == self.device_name,
            column.problem == problem.text,
            column.attempts >= MOST_ATTEMPTS,
        )
        with self.database.transaction() as connection:
            return tuple(connection.execute(found.order_by(column.config)).scalars())

    @repeated
    def others(self, problem: Problem) -> int:
        """Return the number of the problem's configurations that other living runs have claimed."""
        column = schema.claim.c
        theirs = select(column.owner, column.beat_at).where(
            column.device_name == self.device_name,
            column.problem == problem.text,
            column.config.not_in(NO_CONFIGURATIONS),
            column.owner != self.owner,
        )
        with self.database.transaction() as connection:
            now = self.database.now(connection)
            return sum(is_alive(*row, now) for row in connection.execute(theirs).all())

    def written(self, problem: Problem) -> AbstractContextManager[Connection]:
        """Return a transaction for writing claims on the problem and its configurations."""
        about = (self.device_name, problem.text)
        return self.database.transaction(writes=True, about=about, durable=False)

    def _claim(self, connection: Connection, problem: Problem, config: str, basis: str) -> Any:
        return claim_of(connection, self.device_name, problem, config, basis)

    def _is_others(self, connection: Connection, claim: Any) -> bool:
        """Return whether the claim belongs to another living run."""
        if claim is None or claim.owner == self.owner:
            return False
        return is_alive(claim.owner, claim.beat_at, self.database.now(connection))

    def _leave(self, *, searches: bool) -> None:
        """Release all claims on configurations, and claims on whole problems if `searches` is true. Keep the numbers
        of attempts.
        """
        self._current = None
        self._mark(None)
        self._remove_own(() if searches else (SEARCH, RUN))

    @repeated
    def _remove_own(self, but: Collection[str]) -> None:
        column = schema.claim.c
        ours = and_(column.owner == self.owner, column.config.not_in((SEARCHED, *but)))
        with self.database.transaction(writes=True, about=(self.owner,), durable=False) as connection:
            connection.execute(delete(schema.claim).where(ours, column.attempts == 0))
            connection.execute(update(schema.claim).where(ours).values(owner=NOBODY))

    def add(self, connection: Connection, problem: Problem | None, config: str, basis: str) -> None:
        """Insert the claim. If another owner has it, replace the owner."""
        text = "" if problem is None else problem.text
        key = {"device_name": self.device_name, "problem": text, "config": config, "basis": basis}
        values = {**key, "owner": self.owner, "beat_at": self.database.now(connection)}
        add_or_change(connection, schema.claim, key, values)

    def _count(self, connection: Connection, problem: Problem, families: Collection[str], basis: str) -> int:
        """Return the number of trials of these families with this basis, plus the number of living runs' claims.

        Within `in_one_transaction` the number is queried only once, and each new claim adds 1.
        """
        which = (problem, tuple(families), basis)
        if which in self._counted:
            return self._counted[which]
        tried = queries.trials(connection, self.device_name, problem, families, basis)
        owners = queries.owners(connection, self.device_name, problem, families, basis)
        now = self.database.now(connection)
        taken_on = (int(number) for owner, at, number in owners if owner == self.owner or is_alive(owner, at, now))
        found = tried + sum(taken_on)
        if self._open is not None:
            self._counted[which] = found
        return found

    @repeated
    def remove_dead(self) -> None:
        """Delete the claims of dead runs.

        A claim is kept if a run has died while it tried the configuration, since the claim stores the number of such
        attempts. Records of completed searches are kept while any run lives.
        """
        key, columns = schema.claim.primary_key.columns, schema.claim.c
        with self.database.transaction(writes=True) as connection:
            rows = connection.execute(select(*key, columns.owner, columns.beat_at, columns.attempts)).all()
            newest = defaultdict[Any, float](float)
            now = self.database.now(connection)
            for row in (row for row in rows if row.config != SEARCHED):
                newest[row.owner] = max(newest[row.owner], row.beat_at if isinstance(row.beat_at, float) else 0.0)
            living = {owner for owner, beat_at in newest.items() if is_alive(owner, beat_at, now)}
            found = [
                dict(zip(key.keys(), row, strict=False))
                for row in rows
                if not (living if row.config == SEARCHED else row.owner in living or _counted(row.attempts))
            ]
            if found:  # one statement for all rows
                this = and_(*(column == bindparam(column.name) for column in key))
                connection.execute(delete(schema.claim).where(this), found)

    def _beat(self) -> None:
        claim, key = schema.claim.c, schema.claim.primary_key.columns
        ours = select(*key).where(claim.owner == self.owner, claim.config != SEARCHED)
        free = ours.with_for_update(skip_locked=True)  # locked rows are being removed
        about = (self.owner,)
        beaten_at, seen = time.monotonic(), None
        while not self._ended.wait(min(LOOK_SECONDS, BEAT_SECONDS)):
            current = self._current
            with suppress(StoreError):
                if current is not self._marked and current is seen:
                    self._mark(current)
                if time.monotonic() - beaten_at >= BEAT_SECONDS:
                    beaten_at = time.monotonic()
                    with self.database.transaction(writes=True, about=about, durable=False) as connection:
                        beaten = update(schema.claim).where(tuple_(*key).in_(free))
                        connection.execute(beaten.values(beat_at=self.database.now(connection)))
            seen = current

    def _mark(self, current: _Key | None) -> None:
        """Count an attempt at the configuration that is being tried. Subtract the attempt at the previous
        configuration.

        If the run dies, the attempt stays counted.
        """
        with self._marking:
            if current is not self._marked:
                self._marked = self._marked_now(self._marked, current)

    def _marked_now(self, before: _Key | None, current: _Key | None) -> _Key | None:
        """Store the change of attempts. Return `current`, or None if its claim no longer exists because its trial is
        stored.
        """
        with self.database.transaction(writes=True, about=(self.owner,)) as connection:
            if before is not None:
                self._count_attempt(connection, before, -1)
            is_marked = current is not None and self._count_attempt(connection, current, 1)
        return current if is_marked else None

    def _count_attempt(self, connection: Connection, key: _Key, change: int) -> bool:
        """Add `change` to the claim's attempts. Return whether this run still has the claim."""
        ours = and_(is_claim(self.device_name, *key), schema.claim.c.owner == self.owner)
        counted = update(schema.claim).where(ours).values(attempts=schema.claim.c.attempts + change)
        return connection.execute(counted).rowcount > 0


def expire_claims(database: str, process: str) -> None:
    """Make all claims of a process expire. The process ran on another machine and is known to be dead."""
    if not process:
        return
    theirs = schema.claim.c.owner.startswith(f"{process} ", autoescape=True)
    with Database.open(place_of(database), create=False) as opened, opened.transaction(writes=True) as connection:
        connection.execute(update(schema.claim).where(theirs).values(beat_at=0.0))


def _counted(attempts: Any) -> int:
    """Return the number of attempts in the column; 0 if its value is invalid."""
    return attempts if isinstance(attempts, int) and attempts > 0 else 0
