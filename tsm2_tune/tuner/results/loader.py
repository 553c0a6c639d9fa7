"""Read trials from the database. The functions raise StoreError if a row is damaged."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, select

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.results import queries, records, vendor_measurements
from tsm2_tune.tuner.results.best_view import Among, BestRow
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.storage import paragraphs, schema
from tsm2_tune.tuner.results.storage.database import fetched
from tsm2_tune.tuner.results.trial import Cache, Measurement
from tsm2_tune.tuner.results.validation import Row

# Each statement is built once: SQLAlchemy takes longer to build a statement than to run it.
MEASUREMENTS = (
    select(schema.measurement)
    .where(schema.measurement.c.trial_id == bindparam("trial_id"))
    .order_by(schema.measurement.c.round)
)
SAMPLES = (
    select(schema.sample)
    .where(schema.sample.c.measurement_id == bindparam("measurement_id"))
    .order_by(schema.sample.c.ordinal)
)
RIVAL = (
    "device_name",
    "problem_id",
    "family",
)  # among trials with equal values the newest basis wins
NEWEST_BASIS = (
    select(schema.trial.c.basis)
    .where(*(schema.trial.c[name] == bindparam(name) for name in RIVAL), schema.trial.c.superseded == 0)
    .order_by(schema.trial.c.stamp.desc(), schema.trial.c.basis.desc())
    .limit(1)
)


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


def measurements_of(connection: Connection, trial_id: int) -> Iterator[tuple[int, Measurement]]:
    """Yield (round, measurement) for each measurement of the trial, in the order of the rounds."""
    for row in fetched(connection, MEASUREMENTS, {"trial_id": trial_id}):
        samples = fetched(connection, SAMPLES, {"measurement_id": row["id"]})
        yield row["round"], records.measurement(row, samples)


def trial_record(connection: Connection, trial_id: int) -> TrialRecord:
    """Return the trial with its run and all its measurements. Raise KeyError if a row is missing."""
    found = row_of(connection, schema.trial, trial_id)
    rounds = tuple(measurements_of(connection, trial_id))
    newest_basis = connection.execute(NEWEST_BASIS, {name: found[name] for name in RIVAL}).scalar()
    trial = records.trial(
        found,
        problem=row_of(connection, schema.problem, found["problem_id"]),
        source=paragraphs.source_row(connection, found["source_digest"]),
        first=dict(rounds).get(0),
    )
    return TrialRecord(
        id=trial_id,
        run=records.tuning_run(row_of(connection, schema.run, found["run_id"])),
        trial=trial,
        rounds=rounds,
        ended_at=found["ended_at"],
        current=not found["superseded"] and newest_basis == found["basis"],
        unchanged=records.is_unchanged(trial),
    )


def winner_record(connection: Connection, row: BestRow) -> TrialRecord:
    """Return the trial in this row of `best`. Raise StoreError if the trial has no correct result or no time."""
    with records.reading(row.trial_id):
        record = trial_record(connection, row.trial_id)
        if not records.is_verified(record.trial):
            raise ValueError("it won, but has no right result or no time")
        return record


def rendered_winner(connection: Connection, row: BestRow, place: str) -> TrialRecord:
    """Return the trial in this row of `best`, with its kernel's source as this program generates it.

    Raise StoreError if the stored source is of another kernel. `place` names the database in messages.
    """
    record = winner_record(connection, row)
    found = record.trial
    if not record.unchanged:
        raise StoreError(
            f"{place} has a kernel {found.config.text} for {found.problem.text} on {row.device} (trial"
            f" {row.trial_id}), whose code changed in this tsm2-tune, or which it lacks: tune {found.problem.text}"
            " again on that device (into another --db if that changes nothing), or export only other devices with"
            " --device"
        )
    made = render(found.problem, found.config)  # the same code, with the comments of this version
    return replace(record, trial=replace(found, source=made))


def refuse_unverified(place: str, winners: Sequence[BestRow]) -> None:
    """Raise StoreError if `winners` has a row. The rows are winners that have not passed the full verification.

    The error message names the command that verifies these winners.
    """
    if not winners:
        return
    first = winners[0]
    others = sum(row.device == first.device for row in winners) - 1
    count = f"{others + 1} winners on {first.device} that were" if others else f"a winner on {first.device} that was"
    state = f" --cache {first.cache}" if first.compute_capability and first.cache != Cache.DIRTY else ""
    on = "" if first.compute_capability else " --device cpu"
    raise StoreError(
        f"{place} has {count} not verified in full, {'such as ' if others else ''}{first.config} for"
        f" {first.problem.text}: `tsm2-tune --db {shlex.quote(place)}{on}{state} --shapes"
        f" {first.problem.text}{',...' if others else ''}` on that device verifies {'them' if others else 'it'},"
        " or export only another device with --device"
    )


def as_known(connection: Connection, row: BestRow) -> BestRow:
    """Return the winner's row with the times of the vendor library's routines added.

    If this program generates another kernel than the stored kernel, set the row's `stale` to 1.
    """
    record = winner_record(connection, row)
    return vendor_measurements.beside(connection, row if record.unchanged else replace(row, stale=1), record.rounds)


def refuse_hidden(connection: Connection, among: Among | None) -> None:
    """Raise StoreError for a trial that queries or the view `best` would skip silently."""
    for query, reason in queries.hidden(None if among is None else among.is_alike):
        trial_id = connection.execute(query, None if among is None else among.values).scalar()
        if trial_id is not None:
            with records.reading(trial_id):
                raise ValueError(reason)
