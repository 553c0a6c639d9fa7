"""Find and mark the trials whose kernel code has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select, update

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import queries, records
from tsm2_tune.tuner.results.fingerprint import superseded_basis
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.validation import Row, checked

_LAUNCH = (schema.source.c[name].label(f"source_{name}") for name in records.LAUNCH)
_CURRENT = (
    select(schema.trial, schema.source.c.kernel, *_LAUNCH)
    .join(schema.source)
    .where(queries.OF_PROBLEM, queries.OF_BASIS)
)


def changed(database: Database, device_name: str, problem: Problem, basis: str) -> Sequence[Row]:
    """Return the rows of the problem's trials whose kernel this program generates differently or no longer generates.

    Only trials with the given basis (digest of compiler, flags and L2 cache state) are examined.
    """
    values = queries.values(device_name, problem) | {"basis": basis}
    return [row for row in database.rows(_CURRENT, values) if not has_current_kernel(row, problem)]


def mark(connection: Connection, trials: Iterable[Row]) -> None:
    """Mark the trials as superseded: they can no longer win, and the search may try their configurations again."""
    for row in trials:
        values = {"superseded": 1, "basis": superseded_basis(row), "first_basis": row["basis"]}
        connection.execute(update(schema.trial).where(schema.trial.c.id == row["id"]).values(values))


def has_current_kernel(row: Row, problem: Problem) -> bool:
    """Return whether this program still generates the kernel of this row of `trial`, unchanged.

    The row must also have the kernel's entry point in `kernel`, and its launch parameters in columns named
    `source_...`.
    """
    with records.reading(row["id"]):
        values = checked(row, [*schema.trial.columns, schema.source.c.kernel])
        made = records.current_kernel(problem, values, {name: row[f"source_{name}"] for name in records.LAUNCH})
        return made is not None and made.kernel == values["kernel"]
