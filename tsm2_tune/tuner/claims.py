"""Which run does what, where several on one database work at a time: each claims what it takes on, and beats.

A claim whose owner died, or has not said for a minute that it lives, is anybody's. No claim is needed for the
database to stay whole, as a configuration has one trial whoever tries it: claims keep two runs from doing it twice.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, select, tuple_, update

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner import schema, stored
from tsm2_tune.tuner.clock import process_fields
from tsm2_tune.tuner.conditions import of_kernels
from tsm2_tune.tuner.database import Database
from tsm2_tune.tuner.domains import checked
from tsm2_tune.tuner.inserting import add_or_change
from tsm2_tune.tuner.past import Again, Claimed
from tsm2_tune.tuner.repeating import repeated
from tsm2_tune.tuner.rows import problem_key
from tsm2_tune.tuner.trial import Outcome

BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0  # without a beat: a machine that swaps is late, but not by that much
WAIT_SECONDS = 0.2  # between two looks at whether another's final has ended
FINAL = "final"  # in place of a configuration: the problem's finals
STARTED = 19  # where in the fields of proc(5)'s `stat` from the third on is when a process started
_OWNER = re.compile(r"(?P<system>[-\w]+:\d+) (?P<process>\d{1,9}) (?P<started>\d{1,20}) [0-9a-f]{32}", re.ASCII)


class Claims:
    """What this run has taken on, of one device. Use as a context manager: a thread beats until it ends."""

    def __init__(self, database: Database, device_name: str) -> None:
        self._database, self._device_name = database, device_name
        self.owner = f"{_system()} {os.getpid()} {_started(os.getpid())} {uuid.uuid4().hex}"
        self._open: Connection | None = None  # of claims that are taken together
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
        with suppress(StoreError):  # they are nobody's soon
            self.give_back()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Claims that are taken in here are one transaction: a disk takes milliseconds for each.

        On a server each is one of its own, which waits for no disk: others would wait for the last.
        """
        if self._database.is_shared:
            yield
            return
        with self._database.transaction(writes=True) as self._open:
            try:
                yield
            finally:
                self._open = None

    @repeated
    def take(
        self,
        problem: Problem,
        config: str,
        *,
        basis: str,
        again: Again,
        families: Collection[str] = (),
        most: int | None = None,
    ) -> Claimed:
        """Claim a configuration that nobody has tried, or has claimed and lives.

        `most` is how many trials of these families and this basis there may be, with all claims.
        """
        opened = self._written(problem) if self._open is None else nullcontext(self._open)
        with opened as connection:
            if _is_tried(connection, self._device_name, problem, config, basis, again):
                return Claimed.ELSEWHERE
            if self._owned_by_other(connection, problem, config, basis):
                return Claimed.ELSEWHERE
            if most is not None and self._count(connection, problem, families, basis) >= most:
                return Claimed.ENOUGH
            self._add(connection, problem, config, basis)
            return Claimed.YES

    def take_final(self, problem: Problem) -> None:
        """Claim the finals of a problem: where another run is at them, when that has ended."""
        while not self._took_final(problem):
            time.sleep(WAIT_SECONDS)

    @repeated
    def _took_final(self, problem: Problem) -> bool:
        with self._written(problem) as connection:
            is_free = not self._owned_by_other(connection, problem, FINAL, "")
            if is_free:
                self._add(connection, problem, FINAL, "")
            return is_free

    @repeated
    def give_back(self) -> None:
        """Claim nothing any more."""
        with self._database.transaction(writes=True, about=(self.owner,), durable=False) as connection:
            connection.execute(delete(schema.claim).where(schema.claim.c.owner == self.owner))

    @repeated
    def others(self, problem: Problem) -> int:
        """How many configurations other runs that live have taken on."""
        column = schema.claim.c
        theirs = select(column.owner, column.beat_at).where(
            column.device_name == self._device_name,
            column.problem == problem.text,
            column.config != FINAL,
            column.owner != self.owner,
        )
        with self._database.transaction() as connection:
            now = self._database.now(connection)
            return sum(_lives(*row, now) for row in connection.execute(theirs).all())

    def _written(self, problem: Problem) -> AbstractContextManager[Connection]:
        """A transaction that takes something on of the problem."""
        about = (self._device_name, problem.text)
        return self._database.transaction(writes=True, about=about, durable=False)

    def _owned_by_other(self, connection: Connection, problem: Problem, config: str, basis: str) -> bool:
        query = select(schema.claim.c.owner, schema.claim.c.beat_at)
        row = connection.execute(query.where(_is_claim(self._device_name, problem, config, basis))).first()
        return row is not None and row.owner != self.owner and _lives(*row, self._database.now(connection))

    def _add(self, connection: Connection, problem: Problem, config: str, basis: str) -> None:
        key = {"device_name": self._device_name, "problem": problem.text, "config": config, "basis": basis}
        values = {**key, "owner": self.owner, "beat_at": self._database.now(connection)}
        add_or_change(connection, schema.claim, key, values)

    def _count(self, connection: Connection, problem: Problem, families: Collection[str], basis: str) -> int:
        """Trials of these families and this basis, and claims of runs that live."""
        claim, given = schema.claim.c, of_kernels(families, basis)
        trials = select(func.count()).select_from(schema.trial.join(schema.problem))
        claims = select(claim.owner, func.max(claim.beat_at), func.count()).where(
            claim.device_name == self._device_name, claim.problem == problem.text, claim.config != FINAL
        )
        tried = connection.execute(trials.where(_of_problem(self._device_name, problem), given)).scalar_one()
        owners = connection.execute(claims.group_by(claim.owner)).all()
        now = self._database.now(connection)
        lives = (int(number) for owner, at, number in owners if owner == self.owner or _lives(owner, at, now))
        return int(tried) + sum(lives)

    @repeated
    def remove_dead(self) -> None:
        """Remove what nobody has taken on any more, or the table would grow with every run that is killed."""
        key = schema.claim.primary_key.columns
        with self._database.transaction(writes=True) as connection:
            rows = connection.execute(select(*key, schema.claim.c.owner, schema.claim.c.beat_at)).all()
            newest = defaultdict[Any, float](float)
            for *_, owner, beat_at in rows:
                newest[owner] = max(newest[owner], beat_at if isinstance(beat_at, float) else 0.0)
            now = self._database.now(connection)
            dead = {owner for owner, beat_at in newest.items() if not _lives(owner, beat_at, now)}
            found = [dict(zip(key.keys(), row, strict=False)) for row in rows if row.owner in dead]
            if found:  # one row each, however many owners there are
                this = and_(*(column == bindparam(column.name) for column in key))
                connection.execute(delete(schema.claim).where(this), found)

    def _beat(self) -> None:
        claim, key = schema.claim.c, schema.claim.primary_key.columns
        ours = select(*key).where(claim.owner == self.owner)
        free = ours.with_for_update(skip_locked=True)  # others are removed right now
        about = (self.owner,)
        while not self._ended.wait(BEAT_SECONDS):
            with (
                suppress(StoreError),
                self._database.transaction(writes=True, about=about, durable=False) as connection,
            ):
                beaten = update(schema.claim).where(tuple_(*key).in_(free))
                connection.execute(beaten.values(beat_at=self._database.now(connection)))


def settle(connection: Connection, device_name: str, problem: Problem, config: str, basis: str) -> None:
    """Remove whoever's claim to the configuration: it has been tried."""
    connection.execute(delete(schema.claim).where(_is_claim(device_name, problem, config, basis)))


def _is_claim(device_name: str, problem: Problem, config: str, basis: str) -> ColumnElement[bool]:
    column = schema.claim.c
    return and_(
        column.device_name == device_name,
        column.problem == problem.text,
        column.config == config,
        column.basis == basis,
    )


def _of_problem(device_name: str, problem: Problem) -> ColumnElement[bool]:
    """Whether a row of `trial` joined with `problem` is of this device and problem."""
    key = (schema.problem.c[name] == value for name, value in problem_key(problem).items())
    return and_(schema.trial.c.device_name == device_name, *key)


def _is_tried(
    connection: Connection, device_name: str, problem: Problem, config: str, basis: str, again: Again
) -> bool:
    """Whether there is a trial that does not count as untried."""
    trial = schema.trial.c
    query = select(schema.trial).select_from(schema.trial.join(schema.problem))
    query = query.where(_of_problem(device_name, problem), trial.config == config, trial.basis == basis)
    row = connection.execute(query).mappings().first()
    if row is None:
        return False
    with stored.reading(row["id"]):
        values = checked(row, schema.trial.columns)
        outcome, limits = Outcome(values["outcome"]), stored.limits(values)
        return not again.includes(values["id"], outcome, limits, values["total_seconds"])


def _lives(owner: Any, beat_at: Any, now: float) -> bool:
    """Whether the owner is a process that runs; of another system's, whether it beats."""
    if not isinstance(owner, str) or not isinstance(beat_at, float) or abs(now - beat_at) > STALE_SECONDS:
        return False
    found = _OWNER.fullmatch(owner)
    if found is None:
        return False
    return found["system"] != _system() or _started(int(found["process"])) == int(found["started"])


def _started(process_id: int) -> int:
    """When the process started, in ticks since the system did; 0 where there is none, or the system does not tell."""
    fields = process_fields(process_id)
    return int(fields[STARTED]) if len(fields) > STARTED else 0


@cache
def _system() -> str:
    """This boot of this machine, and in it the numbers of processes that are seen from here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no Linux: nobody else's numbers mean anything here
        return f"{uuid.uuid4()}:0"
