"""Check that a SQLite file has exactly the tables, indices and view that this program creates."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from sqlalchemy import Connection, Table, create_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.best_view import BEST_VIEW, best
from tsm2_tune.tuner.results.storage import schema, schema_versions

VIEW = best.name
Facts = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns and constraints of one table, as SQLite reports them."""

    columns: frozenset[Facts]  # name, type, NOT NULL, position in the primary key, whether it is generated
    constraints: frozenset[Facts]  # unique constraints and foreign keys
    statement: str  # the CREATE statement
    words: frozenset[str]  # words of the statement, since only it shows checks and collations


def refuse_others(connection: Connection, path: str, version: int) -> None:
    """Raise StoreError if the file has tables, indices or views that this program does not create, or if some are
    missing or altered.

    `version` is the file's schema version. A file with an older schema may lack tables and columns: the migration
    adds them, and recreates the view and the indices. It may have tables that the migration drops.
    """
    is_current = version == schema_versions.version()
    expected = made_here() if is_current else made_here() | dropped()
    texts = {str(name): text for name, text in connection.exec_driver_sql(_OBJECTS)}
    indices = indices_made_here()
    others = [name for name in texts if name not in (*expected, *indices, VIEW)]
    lacking = [name for name in (*expected, *indices, VIEW) if is_current and name not in texts]
    altered = [
        name
        for name, made in expected.items()
        if texts.get(name, made.statement) != made.statement
        and not _is_ours(layout(connection, name), made, schema_versions.RENAMED.get(name), is_current=is_current)
        and (is_current or name not in with_other_keys() or layout(connection, name) != with_other_keys()[name])
    ]
    if is_current:
        altered += [name for name in indices if name in texts and not _is_same_statement(texts[name], indices[name])]
    if is_current and VIEW in texts and not _is_same_statement(texts[VIEW], BEST_VIEW):
        altered.append(VIEW)
    for names, what in ((others, "has"), (lacking, "lacks"), (altered, "has an altered")):
        if names:
            raise StoreError(
                f"{path} {what} {names[0][:64]!r}, unlike tsm2-tune's schema: restore a copy of it, drop what was"
                " added, or name another file with --db"
            )


# Each finds a reference that joins would omit silently: table, row and the table that lacks the row.
_DANGLING = (
    "PRAGMA foreign_key_check(measurement)",
    "PRAGMA foreign_key_check(vendor_measurement)",
    "SELECT 'trial', id, 'problem', 0 FROM trial WHERE problem_id NOT IN (SELECT id FROM problem) LIMIT 1",
)


def refuse_dangling(connection: Connection, path: str) -> None:
    """Raise StoreError if a measurement refers to a trial, run or problem that does not exist, or a trial to such a
    problem.

    Joins would omit the row silently. Other dangling references raise an error when they are read.
    """
    for query in _DANGLING:
        found = connection.exec_driver_sql(query).first()
        if found is not None:
            name, row, other, _ = found
            raise StoreError(
                f"{path} has a {name.replace('_', ' ')} (row {row}) of a {other} that does not exist: restore a copy"
                " of it, or name another file with --db"
            )


# Indices that SQLite creates for constraints have no SQL text.
_OBJECTS = "SELECT name, sql FROM sqlite_master WHERE type <> 'index' OR sql IS NOT NULL"


@cache
def made_here() -> dict[str, Layout]:
    """Return the layout of each table that this program creates, by name."""
    return _layouts(schema.metadata.tables.values())


@cache
def dropped() -> dict[str, Layout]:
    """Return the layout of each table of older schemas that a migration drops, by name."""
    return _layouts(schema_versions.DROPPED)


@cache
def with_other_keys() -> dict[str, Layout]:
    """Return the layout of each table of older schemas whose key a migration changes, by name."""
    return _layouts(schema_versions.WITH_OTHER_KEYS)


def _layouts(tables: Collection[Table]) -> dict[str, Layout]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        for table in tables:
            connection.exec_driver_sql(str(CreateTable(table).compile(dialect=connection.dialect)).strip())
        found = {table.name: layout(connection, table.name) for table in tables}
    engine.dispose()
    return found


@cache
def indices_made_here() -> dict[str, str]:
    """Return the CREATE INDEX statement of each index that this program creates, by name."""
    dialect = sqlite.dialect()
    every = (index for table in schema.metadata.tables.values() for index in table.indexes)
    return {str(index.name): str(CreateIndex(index).compile(dialect=dialect)) for index in every}


def layout(connection: Connection, table: str) -> Layout:
    """Return the layout of a table in the open file."""

    def pragma_rows(pragma: str, of: object) -> list[Facts]:
        name = str(of).replace('"', '""')
        return [tuple(row) for row in connection.exec_driver_sql(f'PRAGMA {pragma}("{name}")')]

    columns = {
        (name, kind, is_required, key, hidden)
        for _, name, kind, is_required, _, key, hidden in pragma_rows("table_xinfo", table)
    }
    unique = {  # only key columns: in a table WITHOUT ROWID an index has all others too
        (origin, is_unique, is_partial, *(column[2:] for column in pragma_rows("index_xinfo", index) if column[-1]))
        for _, index, is_unique, origin, is_partial in pragma_rows("index_list", table)
        if origin != "c"  # "c": an index of a CREATE INDEX statement
    }
    foreign = {key[1:] for key in pragma_rows("foreign_key_list", table)}
    query = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
    text = str(connection.exec_driver_sql(query, (table,)).scalar())
    return Layout(frozenset(columns), frozenset(unique | foreign), text, _words(text))


def _is_ours(found: Layout, expected: Layout, renamed: frozenset[Facts] | None, *, is_current: bool) -> bool:
    """Return whether the table `found` in the file has the columns and constraints of this program's table.

    If `is_current` is false, the file has an older schema. The table may lack columns, and may have columns that a
    migration renames.
    """
    known = expected.columns | (renamed or frozenset())
    return (
        (found.columns == expected.columns if is_current else found.columns <= known)
        and found.constraints == expected.constraints
        and found.words <= expected.words | {"DEFAULT"}  # a migration adds columns with a DEFAULT
    )


def _words(statement: str) -> frozenset[str]:
    """Return the words and operators of an SQL statement, in upper case, without numbers and quotes."""
    found = re.findall(r"'\d*'|\w+|[^\w\s]", statement.replace('"', ""))
    return frozenset(word.upper() for word in found if not word.strip("'").isdigit())


def _is_same_statement(statement: object, expected: str) -> bool:
    """Return whether two SQL statements are equal except for white space."""
    return str(statement).split() == expected.split()
