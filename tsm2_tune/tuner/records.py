"""What the store tells of a trial, read from its rows. Each raises StoreError where one is not as it was stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, select

from tsm2_tune.tuner import queries, schema, stored
from tsm2_tune.tuner.best_view import Among
from tsm2_tune.tuner.database import fetched
from tsm2_tune.tuner.domains import Row
from tsm2_tune.tuner.stored import BestRow, TrialRecord
from tsm2_tune.tuner.trial import Measurement
from tsm2_tune.tuner.vendor import storing

# Statements that are asked for each of many trials: SQLAlchemy takes longer to make one than to run it.
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
RIVAL = ("device_name", "problem_id", "family")  # what trials have in common of which the newest basis counts
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
    """The row of this primary key; KeyError where a damaged file has none."""
    row = connection.execute(_of_key(table), {"key": key}).mappings().first()
    if row is None:
        raise KeyError(f"no {table.name} {key}")
    return row


def measurements_of(connection: Connection, trial_id: int) -> Iterator[tuple[int, Measurement]]:
    """Each measurement of the trial with its round, in order."""
    for row in fetched(connection, MEASUREMENTS, {"trial_id": trial_id}):
        samples = fetched(connection, SAMPLES, {"measurement_id": row["id"]})
        yield row["round"], stored.measurement(row, samples)


def trial_record(connection: Connection, trial_id: int) -> TrialRecord:
    found = row_of(connection, schema.trial, trial_id)
    rounds = tuple(measurements_of(connection, trial_id))
    newest_basis = connection.execute(NEWEST_BASIS, {name: found[name] for name in RIVAL}).scalar()
    trial = stored.trial(
        found,
        problem=row_of(connection, schema.problem, found["problem_id"]),
        source=row_of(connection, schema.source, found["source_digest"]),
        first=dict(rounds).get(0),
    )
    return TrialRecord(
        id=trial_id,
        run=stored.tuning_run(row_of(connection, schema.run, found["run_id"])),
        trial=trial,
        rounds=rounds,
        ended_at=found["ended_at"],
        current=not found["superseded"] and newest_basis == found["basis"],
        unchanged=stored.is_unchanged(trial),
    )


def winner_record(connection: Connection, row: BestRow) -> TrialRecord:
    """The trial of a winner; StoreError where what is stored of it does not make a winner."""
    with stored.reading(row.trial_id):
        record = trial_record(connection, row.trial_id)
        if not stored.is_verified(record.trial):
            raise ValueError("it won, but has no right result or no time")
        return record


def as_known(connection: Connection, row: BestRow) -> BestRow:
    """The winner with all that is known of it besides; stale where this program makes another kernel."""
    record = winner_record(connection, row)
    return storing.beside(connection, row if record.unchanged else replace(row, stale=1), record.rounds)


def refuse_marks(connection: Connection, among: Among | None) -> None:
    """StoreError where it cannot be told whether a trial is of a search: it would be passed over without a word."""
    query = queries.ill_marked(None if among is None else among.is_alike)
    trial_id = connection.execute(query, None if among is None else among.values).scalar()
    if trial_id is not None:
        with stored.reading(trial_id):
            raise ValueError("is_between is neither 0 nor 1")


def refuse_intervals(connection: Connection, among: Among | None) -> None:
    """StoreError where a median is not in its interval: the view would pass over the trial without a word."""
    query = queries.outside_interval(None if among is None else among.is_alike)
    trial_id = connection.execute(query, None if among is None else among.values).scalar()
    if trial_id is not None:
        with stored.reading(trial_id):
            raise ValueError("a median is not in its interval")
