"""Find and insert rows that may exist already, in SQLite's and PostgreSQL's SQL.

Each statement is built once, since building it takes longer than SQLite needs to execute it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, Table, bindparam, insert, select
from sqlalchemy.dialects import sqlite

Times = tuple[Mapping[str, Any], Sequence[float]]  # the values of a measurement, and its samples in order


def found(connection: Connection, table: Table, values: Mapping[str, Any]) -> int | None:
    """Return the id of the row with these values; None if there is no such row."""
    known = {name: value for name, value in values.items() if value is not None}
    missing = tuple(name for name in values if name not in known)
    id_: int | None = connection.execute(_finding(table, tuple(known), missing), known).scalar()
    return id_


def added(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    """Insert a row with these values and return its id."""
    return int(connection.execute(_adding(table), values).scalar_one())


def add_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows, which have the same columns, in their order."""
    if rows:
        connection.execute(_inserting(table), rows)


def add_times(connection: Connection, table: Table, samples: Table, times: Sequence[Times]) -> None:
    """Insert measurements into `table`, and their samples into the table `samples`."""
    rows = [values for values, _ in times]
    if not any(samples_us for _, samples_us in times):  # no sample needs a measurement's id, which is slow to return
        add_all(connection, table, rows)
        return
    numbers = connection.execute(_adding(table), rows).scalars()
    samples_of = [
        {"measurement_id": number, "ordinal": ordinal, "us": us}
        for number, (_, samples_us) in zip(numbers, times, strict=True)
        for ordinal, us in enumerate(samples_us)
    ]
    add_all(connection, samples, samples_of)


@cache
def _finding(table: Table, known: tuple[str, ...], missing: tuple[str, ...]) -> Executable:
    """Return the query for the id of the row with bound values in `known` and NULL in `missing`."""
    query = select(table.c.id).where(*(table.c[name] == bindparam(name) for name in known))
    return query.where(*(table.c[name].is_(None) for name in missing))


@cache
def _adding(table: Table) -> Executable:
    return insert(table).returning(table.c.id, sort_by_parameter_order=True)


@cache
def _inserting(table: Table) -> Executable:
    return insert(table)


def found_or_added(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    """Return the id of the row with these values. Insert the row if it does not exist."""
    present = found(connection, table, values)
    if present is None and add_alone(connection, table):
        present = found(connection, table, values)
    return added(connection, table, values) if present is None else present


def add_once(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows, except those with the key of an existing row."""
    if rows:
        connection.execute(_once(connection.dialect.name, table), rows)


def add_or_change(connection: Connection, table: Table, key: Collection[str], values: Mapping[str, Any]) -> None:
    """Insert the row. If a row with the same values in the columns `key` exists, update its other columns."""
    changed = tuple(name for name in values if name not in key)
    connection.execute(_or_change(connection.dialect.name, table, tuple(key), changed), values)


def add_alone(connection: Connection, table: Table) -> bool:
    """Lock the table against other inserts if the database is PostgreSQL. Return whether it was locked.

    Another process may have inserted the row before the lock.
    """
    is_shared = connection.dialect.name == "postgresql"
    if is_shared:
        connection.exec_driver_sql(f'LOCK TABLE "{table.name}" IN SHARE ROW EXCLUSIVE MODE')
    return is_shared


@cache
def _once(dialect_name: str, table: Table) -> Executable:
    inserted: Executable = _insert(dialect_name, table).on_conflict_do_nothing()
    return inserted


@cache
def _or_change(dialect_name: str, table: Table, key: tuple[str, ...], changed: tuple[str, ...]) -> Executable:
    inserted = _insert(dialect_name, table)
    values = {name: inserted.excluded[name] for name in changed}
    found: Executable = inserted.on_conflict_do_update(index_elements=list(key), set_=values)
    return found


def _insert(dialect_name: str, table: Table) -> Any:
    if dialect_name != "postgresql":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql  # imported here, since files do not need it

    return postgresql.insert(table)
