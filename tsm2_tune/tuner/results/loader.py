"""Read trials from the database. The functions raise StoreError if a row is damaged."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Select, Table, bindparam, select

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.results import queries, records, vendor_measurements
from tsm2_tune.tuner.results.best_view import Among, BestRow
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import DEFAULT_DATABASE, import_command, is_text, shown_name
from tsm2_tune.tuner.results.storage.paragraphs import Sources
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.trial import Cache

# Each statement is built once: SQLAlchemy takes longer to build a statement than to run it.
RIVAL = ("device_name", "problem_id", "family")  # among trials with equal values the newest basis wins
_OTHER = schema.trial.alias()
_NEWEST = (
    select(_OTHER.c.basis)
    .where(*(_OTHER.c[name] == schema.trial.c[name] for name in RIVAL), _OTHER.c.superseded == 0)
    .order_by(_OTHER.c.stamp.desc(), _OTHER.c.basis.desc())
    .limit(1)
)
_NEWEST_BASES = select(schema.trial.c.id, _NEWEST.scalar_subquery().label("basis")).where(
    schema.trial.c.id.in_(bindparam("trial_ids", expanding=True))
)


ReadTrials = Callable[[Sequence[int]], Iterable[TrialRecord]]  # returns the trials with these ids
MOST_SHAPES = 20  # shapes in a command of a message
MOST_TRIALS = 100  # whose rows are in memory at a time; each may have thousands of samples


@cache
def _of_key(table: Table) -> Select[Any]:
    (column,) = table.primary_key.columns
    return select(table).where(column == bindparam("key"))


def row_of(connection: Connection, table: Table, key: Any) -> Row:
    """Return the row with this primary key. Raise KeyError if there is no such row."""
    row = connection.execute(_of_key(table), {"key": key}).mappings().first()
    if row is None:
        raise KeyError(f"no {table.name} {key}")
    return row


@cache
def _of_keys(column: Column[Any]) -> Select[Any]:
    table = column.table
    query = select(table).where(column.in_(bindparam("keys", expanding=True)))
    return query.order_by(*(table.c[name] for name in ORDERS.get(table.name, ())))


ORDERS = {"measurement": ("trial_id", "round"), "sample": ("measurement_id", "ordinal")}


def _by(connection: Connection, column: Column[Any], keys: Iterable[int]) -> dict[Any, list[Row]]:
    """Return the rows of the column's table that have these values in the column, by value."""
    found = defaultdict[Any, list[Row]](list)
    for row in fetched(connection, _of_keys(column), {"keys": list(keys)}):
        found[row[column.name]].append(row)
    return found


class _Trials:
    """Some trials' rows, and the rows to which they refer."""

    def __init__(self, connection: Connection, trial_ids: Sequence[int]) -> None:
        self._trials = _by(connection, schema.trial.c.id, trial_ids)
        rows = [row for found in self._trials.values() for row in found]
        self._problems = _by(connection, schema.problem.c.id, {row["problem_id"] for row in rows})
        self._runs = _by(connection, schema.run.c.id, {row["run_id"] for row in rows})
        self._measurements = _by(connection, schema.measurement.c.trial_id, trial_ids)
        measured = [row["id"] for found in self._measurements.values() for row in found]
        self._samples = _by(connection, schema.sample.c.measurement_id, measured)
        self._sources = Sources(connection, {row["source_digest"] for row in rows})
        newest = fetched(connection, _NEWEST_BASES, {"trial_ids": list(trial_ids)})
        self._newest_bases = {row["id"]: row["basis"] for row in newest}

    def record(self, trial_id: int) -> TrialRecord:
        """Return one of the trials. Raise LookupError, TypeError or ValueError if a row is missing or damaged."""
        found = _only(self._trials, schema.trial, trial_id)
        rounds = tuple(
            (row["round"], records.measurement(row, self._samples[row["id"]])) for row in self._measurements[trial_id]
        )
        trial = records.trial(
            checked(found, schema.trial.columns),
            problem=records.stored_problem(_only(self._problems, schema.problem, found["problem_id"])),
            source=records.kernel_source(self._sources.row(found["source_digest"])),
            first=dict(rounds).get(0),
        )
        return TrialRecord(
            id=trial_id,
            run=records.tuning_run(_only(self._runs, schema.run, found["run_id"])),
            trial=trial,
            rounds=rounds,
            ended_at=found["ended_at"],
            current=not found["superseded"] and self._newest_bases[trial_id] == found["basis"],
            unchanged=records.is_unchanged(trial),
        )


def _only(rows: Mapping[Any, Sequence[Row]], table: Table, key: Any) -> Row:
    if not rows[key]:
        raise KeyError(f"no {table.name} {key}")
    return rows[key][0]


def trial_records(connection: Connection, trial_ids: Sequence[int]) -> Iterator[TrialRecord]:
    """Yield these trials with their runs and measurements. Raise StoreError if one is missing or damaged."""
    for first in range(0, len(trial_ids), MOST_TRIALS):
        some = trial_ids[first : first + MOST_TRIALS]
        trials = _Trials(connection, some)
        for trial_id in some:
            with records.reading(trial_id):
                record = trials.record(trial_id)
            yield record


def winner_records(read: ReadTrials, rows: Sequence[BestRow]) -> Iterator[tuple[BestRow, TrialRecord]]:
    """Yield these rows of `best` with their trials. Raise StoreError if one has no right result or no time."""
    for row, record in zip(rows, read([row.trial_id for row in rows]), strict=True):
        with records.reading(row.trial_id):
            if not records.is_verified(record.trial):
                raise ValueError("it won, but has no right result or no time")
        yield row, record


def rendered_winners(read: ReadTrials, rows: Sequence[BestRow], place: str) -> Iterator[TrialRecord]:
    """Yield the trials in these rows of `best`, with their kernels as this program makes them.

    Raise StoreError if a stored kernel is another. `place` names the database in messages.
    """
    for row, record in winner_records(read, rows):
        found = record.trial
        if not record.unchanged:
            raise StoreError(
                f"{place} has a kernel {found.config.text} for {found.problem.text} on {row.device} (trial"
                f" {row.trial_id}), whose code changed in this tsm2-tune, or which it lacks: tune"
                f" {found.problem.text} again on that device (into another --db if that changes nothing), or export"
                " only other devices with --device"
            )
        made = render(found.problem, found.config)  # the same code, with the comments of this version
        yield replace(record, trial=replace(found, source=made))


def refuse_unverified(place: str, winners: Sequence[BestRow]) -> None:
    """Raise StoreError, with the command that verifies them, if there are these winners not verified in full."""
    if not winners:
        return
    first = winners[0]
    others = sum(row.device == first.device for row in winners) - 1
    count = f"{others + 1} winners on {first.device} that were" if others else f"a winner on {first.device} that was"
    raise StoreError(
        f"{place} has {count} not verified in full, {'such as ' if others else ''}{first.config} for"
        f" {first.problem.text}: to verify {'them' if others else 'it'}, run {commands_that_verify(place, winners)};"
        " or export only another device with --device"
    )


def commands_that_verify(place: str, rows: Sequence[BestRow]) -> str:
    """Return the part of a message that names the commands that verify these kernels in full and use them.

    Only rows with the device and L2 state of the first row are included, and at most MOST_SHAPES shapes: after these
    commands the message names others. `place` names the database. A file of trials is imported into the default one.
    """
    first = rows[0]
    alike = [row.problem.text for row in rows if (row.device, row.cache) == (first.device, first.cache)]
    shapes = shlex.quote(",".join(list(dict.fromkeys(alike))[:MOST_SHAPES]))
    state = f" --cache {first.cache}" if first.compute_capability and first.cache != Cache.DIRTY else ""
    on = "" if first.compute_capability else " --device cpu"
    database = DEFAULT_DATABASE if is_text(place) else shown_name(place)
    tune = f"`tsm2-tune --db {shlex.quote(database)}{on}{state} --shapes {shapes}` on that device"
    if is_text(place):
        return f"`{import_command(place)}`, then {tune}, then this again with --db {database} in place of {place}"
    return f"{tune}, then this again"


def as_known(connection: Connection, read: ReadTrials, rows: Sequence[BestRow]) -> Iterator[BestRow]:
    """Yield these winners' rows with the vendor's times. One is stale if this program makes another kernel."""
    for first in range(0, len(rows), MOST_TRIALS):
        winners = [
            (row if record.unchanged else replace(row, stale=1), record.rounds)
            for row, record in winner_records(read, rows[first : first + MOST_TRIALS])
        ]
        yield from vendor_measurements.with_vendor_times(connection, winners)


def refuse_hidden(connection: Connection, among: Among | None) -> None:
    """Raise StoreError for a trial that queries or the view `best` would skip silently."""
    for query, reason in queries.hidden(None if among is None else among.is_alike):
        trial_id = connection.execute(query, None if among is None else among.values).scalar()
        if trial_id is not None:
            with records.reading(trial_id):
                raise ValueError(reason)
