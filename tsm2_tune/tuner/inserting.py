"""Rows that may be there already, in the words of the database that they go into."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def add_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Add the row, but where there is one of its key."""
    connection.execute(_insert(connection, table).values(values).on_conflict_do_nothing())


def add_or_change(connection: Connection, table: Table, key: Collection[str], values: Mapping[str, Any]) -> None:
    """Add the row, in the place of one that has these columns alike."""
    changed = {name: value for name, value in values.items() if name not in key}
    added = _insert(connection, table).values(values)
    connection.execute(added.on_conflict_do_update(index_elements=list(key), set_=changed))


def add_alone(connection: Connection, table: Table) -> bool:
    """Let nobody else add rows until the transaction ends; whether somebody might have until now."""
    is_shared = connection.dialect.name == "postgresql"
    if is_shared:
        connection.exec_driver_sql(f'LOCK TABLE "{table.name}" IN SHARE ROW EXCLUSIVE MODE')
    return is_shared


def _insert(connection: Connection, table: Table) -> Any:
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
