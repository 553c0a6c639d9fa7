"""The quarantine: kernels that hung or faulted on a device, and are skipped there for all problems.

The same kernel is tried for many problems. If it hangs, every trial would take the whole time limit. Only hangs and
faults lead to quarantine: see `is_hazard`. The quarantine ends if the user removes the kernel, or if compiler, flags
or driver change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, select, tuple_

from tsm2_tune.errors import InputError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.probes import edge_problems
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.columns import record_of, values_of
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.trial import Outcome, TimeLimits, Trial
from tsm2_tune.tuner.results.upsert import add_or_change
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import probe_checks
from tsm2_tune.tuner.worker.protocol import Call, FullVerification, Run

HAZARDS = (Outcome.TIMED_OUT, Outcome.CRASHED)  # outcomes of trials that may lead to quarantine
ALL = "all"
LEAST_DIGITS = 8  # fewest digits of a digest that `forgive` accepts: they identify a kernel


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A kernel that is skipped on a device, with its last failure on that device."""

    device_name: str
    digest: str  # digest of the kernel's code, definitions and launch
    tools: str  # digest of compiler, flags and driver; the kernel is skipped only with these
    toolkit: str  # the compiler's version
    driver: str
    config: str
    problem: str
    outcome: Outcome  # timed-out or crashed
    detail: str
    run_limit_seconds: float | None  # its time limit if it timed out; it is tried again with a larger limit
    times: int  # number of failures
    last_at: str  # ISO 8601, UTC


def is_hazard(trial: Trial) -> bool:
    """Return whether the trial's kernel faulted, crashed its process, or hung: it timed out on small problems too.

    The trials of other failures take only milliseconds, and such kernels may be correct for other problems.
    """
    return trial.outcome is Outcome.CRASHED or trial.hung


def small_problems(problem: Problem, config: KernelConfig, entry: Entry, *, seed: int) -> FullVerification:
    """Return a request to verify a kernel only on small problems around the sizes of its tiles."""
    probes = enumerate(edge_problems(config, problem))
    calls = tuple(Call("small problems", probe, probe_checks(probe, number)) for number, probe in probes)
    return FullVerification(problem, (Run("again", entry, problem.index_bits, calls),), seed)


def kernel_digest(source: KernelSource) -> str:
    """Return the SHA-256 of a kernel's code, definitions and launch, which kernels of several problems may share."""
    facts = [source.digest, source.kernel, source.dtype_name, source.defines, source.launch.as_rendered]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def quarantined(
    target: Target,
    problem: Problem,
    config: KernelConfig,
    outcome: Outcome,
    detail: str,
    run_limit_seconds: float | None = None,
) -> Quarantined:
    """Return the quarantine record of a kernel that failed with `outcome` on the device now."""
    identity = target.identity
    return Quarantined(
        device_name=identity.name,
        digest=kernel_digest(render(problem, config)),
        tools=target.tools,
        toolkit=identity.toolkit,
        driver=identity.driver,
        config=config.text,
        problem=problem.text,
        outcome=outcome,
        detail=detail,
        run_limit_seconds=run_limit_seconds if outcome is Outcome.TIMED_OUT else None,
        times=1,
        last_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def hazards(trials: Iterable[Trial], target: Target) -> list[Quarantined]:
    """Return a quarantine record for each trial whose kernel hung or faulted (`is_hazard`)."""
    return [
        quarantined(
            target, one.problem, one.config, one.outcome, one.detail, one.limits.run_seconds if one.limits else None
        )
        for one in trials
        if is_hazard(one)
    ]


class Quarantine:
    """The quarantined kernels that a run on a device skips."""

    def __init__(self, found: Iterable[Quarantined]) -> None:
        self._found = frozenset((one.config, one.digest) for one in found)
        self._configs = frozenset(config for config, _ in self._found)

    def holds(self, candidate: Candidate) -> bool:
        """Return whether the candidate's kernel is in quarantine."""
        text = candidate.config.text
        if text not in self._configs:  # rendering takes milliseconds
            return False
        return (text, kernel_digest(render(candidate.problem, candidate.config))) in self._found


def in_force(database: Database, target: Target, limits: TimeLimits, retried: Collection[Outcome]) -> Quarantine:
    """Return the quarantined kernels that a run on the device skips.

    Leave out outcomes in `retried`, and kernels that timed out under a smaller time limit than this run's.
    """
    column = schema.quarantine.c
    found = entries(database, and_(column.device_name == target.identity.name, column.tools == target.tools))
    return Quarantine(
        one
        for one in found
        if one.outcome not in retried
        and (one.run_limit_seconds is None or limits.run_seconds <= one.run_limit_seconds)
    )


def entries(database: Database, which: ColumnElement[bool] | None = None) -> list[Quarantined]:
    """Return the quarantine table's rows that match `which`, latest first. Raise StoreError for an invalid row."""
    table = schema.quarantine
    query = select(table) if which is None else select(table).where(which)
    return _as_stored(database.rows(query.order_by(table.c.last_at.desc(), table.c.digest)))


def _as_stored(rows: Iterable[Row]) -> list[Quarantined]:
    table, found = schema.quarantine, list[Quarantined]()
    for number, row in enumerate(rows, start=1):
        with records.reading(number, "quarantined kernel"):
            values = checked(row, table.columns)
            if values["outcome"] not in HAZARDS:
                raise ValueError(f"outcome = {values['outcome']}")
            found.append(record_of(Quarantined, values))
    return found


def add(connection: Connection, found: Iterable[Quarantined]) -> None:
    """Insert the kernels into the quarantine table. If a kernel is in the table already, increment its number of
    failures.
    """
    table = schema.quarantine
    key = table.primary_key.columns.keys()
    for one in found:
        values = values_of(one, table)
        again = select(table.c.times + 1).where(*(table.c[name] == values[name] for name in key))
        values["times"] = connection.execute(again).scalar() or 1
        add_or_change(connection, table, key, values)


def unite(connection: Connection, theirs: Iterable[Quarantined]) -> int:
    """Merge the quarantine of another database into this database. Return the number of changed rows.

    If both databases have a kernel, the latest failure and the larger number of failures are kept. So merging twice
    changes nothing.
    """
    table, changed = schema.quarantine, 0
    key = table.primary_key.columns.keys()
    ours = _as_stored(fetched(connection, select(table)))
    known = {tuple(getattr(one, name) for name in key): one for one in ours}
    for other in theirs:
        one = known.get(tuple(getattr(other, name) for name in key), other)
        last = max(one, other, key=lambda each: (each.last_at, json.dumps(asdict(each))))
        found = replace(last, times=max(one.times, other.times))
        if other is one or found != one:
            changed += 1
            add_or_change(connection, table, key, values_of(found, table))
    return changed


def checked_digest(digest: str) -> str:
    """Return the beginning of a digest, or ALL, in lower case.

    Raise InputError if it has fewer than LEAST_DIGITS digits, or other characters.
    """
    if digest.lower() != ALL and not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", digest.lower()):
        raise InputError(f"{digest!r} is not a digest: expected at least {LEAST_DIGITS} of its digits, or {ALL}")
    return digest.lower()


def forgive(database: Database, digest: str, device_name: str | None) -> int:
    """Remove the kernels whose digest begins with `digest` from the quarantine. If `digest` is ALL, remove all
    kernels.

    Return the number of removed kernels. If `device_name` is given, only kernels on this device are removed. Raise
    InputError if `digest` is refused by `checked_digest`, or if no kernel's digest begins with it.
    """
    digest = checked_digest(digest)
    column, which = schema.quarantine.c, list[ColumnElement[bool]]()
    if digest != ALL:
        which.append(column.digest.startswith(digest, autoescape=True))
    if device_name is not None:
        which.append(column.device_name == device_name)
    with database.transaction(writes=True) as connection:
        count = connection.execute(delete(schema.quarantine).where(*which)).rowcount
    if not count and digest != ALL:
        path = str(database.path)
        raise InputError(f"no quarantined kernel {digest} in {path}: {command_on('quarantine', path)} lists them")
    return count


def forgive_trials(connection: Connection, trials: Collection[int]) -> None:
    """Remove the kernels of these trials from the quarantine, so that a search tries them again."""
    trial, row = schema.trial.c, schema.quarantine.c
    failed = select(trial.device_name, trial.config).where(
        trial.id.in_(trials), trial.outcome.in_([one.value for one in HAZARDS])
    )
    connection.execute(delete(schema.quarantine).where(tuple_(row.device_name, row.config).in_(failed)))
