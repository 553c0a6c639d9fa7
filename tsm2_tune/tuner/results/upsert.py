"""INSERT statements for rows that may exist already, in SQLite's and PostgreSQL's SQL.

Each statement is built once, since building it takes longer than SQLite needs to execute it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, Table
from sqlalchemy.dialects import sqlite


def add_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert the row, unless a row with the same key exists."""
    connection.execute(_once(connection.dialect.name, table), values)


def add_or_change(connection: Connection, table: Table, key: Collection[str], values: Mapping[str, Any]) -> None:
    """Insert the row. If a row with the same values in the columns `key` exists, update its other columns."""
    changed = tuple(name for name in values if name not in key)
    connection.execute(_or_change(connection.dialect.name, table, tuple(key), changed), values)


def add_alone(connection: Connection, table: Table) -> bool:
    """On PostgreSQL, lock the table against inserts of other transactions, and return True. On SQLite, return False.

    If the result is True, the caller must look for the row again: another transaction may have inserted the row
    before the table was locked.
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
