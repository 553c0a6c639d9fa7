"""Delete trials, and the rows that no remaining trial refers to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.results import vendor_measurements
from tsm2_tune.tuner.results.storage import paragraphs, schema
from tsm2_tune.tuner.results.storage.addresses import command_on
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search import quarantine

T = TypeVar("T")
MOST_PARAMETERS = 500  # bound parameters in one statement; SQLite's least limit is 999
VENDOR = schema.vendor_measurement
_TRIAL, _TIME = schema.trial.c, schema.measurement.c
_IN_ROUND = and_(
    _TIME.run_id == VENDOR.c.run_id, _TIME.round == VENDOR.c.round, _TRIAL.problem_id == VENDOR.c.problem_id
)
_FINAL = select(_TIME.id).join(schema.trial).where(_IN_ROUND).correlate(VENDOR)
# For each table, the condition that no trial refers to a row. The order follows the foreign keys.
UNUSED: dict[Table, ColumnElement[bool]] = {
    VENDOR: ~_FINAL.exists(),
    schema.source: schema.source.c.digest.not_in(select(_TRIAL.source_digest)),
    schema.problem: schema.problem.c.id.not_in(select(_TRIAL.problem_id)),
    schema.run: ~or_(schema.run.c.id.in_(select(_TRIAL.run_id)), schema.run.c.id.in_(select(_TIME.run_id))),
}


def named(
    connection: Connection, trials: Collection[int], outcomes: Collection[Outcome], device: str | None, path: str
) -> dict[int, str]:
    """Return the given trials and all trials with the given outcomes: their ids and outcomes. See `Store.forget`."""
    column = schema.trial.c
    both = select(column.id, column.outcome)
    found: dict[int, str] = {}
    for part in _parts(sorted(set(trials))):
        found |= {row.id: row.outcome for row in connection.execute(both.where(column.id.in_(part)))}
    missing = sorted(set(trials) - set(found))
    if missing:
        raise InputError(f"no trial {missing[0]} in {path}: {command_on('show', path)} lists them")
    which: list[ColumnElement[bool]] = [column.outcome.in_([one.value for one in outcomes])] if outcomes else []
    which += [] if device is None else [column.device_name == device]
    if which:
        found |= {row.id: row.outcome for row in connection.execute(both.where(*which))}
    return found


def remove(connection: Connection, trials: Sequence[int]) -> None:
    """Delete the trials. Delete also the kernels, problems and runs that no remaining trial refers to."""
    remove_measurements(connection, trials)
    for part in _parts(trials):
        quarantine.forgive_trials(connection, part)
        connection.execute(delete(schema.trial).where(schema.trial.c.id.in_(part)))
    remove_unused(connection)


def remove_unused(connection: Connection) -> dict[str, int]:
    """Delete the rows that no trial refers to. Return their number for each table that had such rows."""
    removed = {}
    for table, which in UNUSED.items():
        if table is VENDOR:
            removed[table.name] = vendor_measurements.remove(connection, which)
        else:
            removed[table.name] = connection.execute(delete(table).where(which)).rowcount
    keys = paragraphs.unused(connection)
    for part in _parts(keys):
        connection.execute(delete(schema.paragraph).where(schema.paragraph.c.key.in_(part)))
    removed[schema.paragraph.name] = len(keys)
    return {name: count for name, count in removed.items() if count}


def count_unused(connection: Connection) -> dict[str, int]:
    """Return the number of rows that no trial refers to, for each table."""
    counts = {
        table.name: connection.execute(select(func.count()).select_from(table).where(which)).scalar_one()
        for table, which in UNUSED.items()
    }
    return {**counts, schema.paragraph.name: len(paragraphs.unused(connection))}


def remove_measurements(connection: Connection, trials: Sequence[int]) -> None:
    """Delete the measurements of the trials, and the samples of these measurements."""
    for part in _parts(trials):
        of_trials = schema.measurement.c.trial_id.in_(part)
        measured = select(schema.measurement.c.id).where(of_trials)
        connection.execute(delete(schema.sample).where(schema.sample.c.measurement_id.in_(measured)))
        connection.execute(delete(schema.measurement).where(of_trials))


def _parts(values: Sequence[T]) -> list[Sequence[T]]:
    return [values[first : first + MOST_PARAMETERS] for first in range(0, len(values), MOST_PARAMETERS)]
