"""The version of a database's schema: read it, create the tables, and migrate older tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    Float,
    MetaData,
    Table,
    UniqueConstraint,
    select,
    update,
)
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.best_view import BEST_VIEW
from tsm2_tune.tuner.results.domains import KERNEL_TEXT
from tsm2_tune.tuner.results.storage import paragraphs, schema

Migration = Callable[[Connection], None]

OLDEST = 24  # the first schema that MIGRATIONS start from

# Tables of older schemas that a migration drops.
_former = MetaData()
_claim = Table(
    "claim",
    _former,
    *(Column(name, schema.Text, primary_key=True) for name in ("device_name", "problem", "config", "basis")),
    Column("owner", schema.Text, nullable=False),
    Column("beat_at", Float, nullable=False),
    Column("attempts", schema.Integer, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)
DROPPED = tuple(_former.tables.values())

# Tables of older schemas with another key.
_with_other_keys = MetaData()
_problem = Table(
    "problem",
    _with_other_keys,
    *(
        Column(one.name, one.type, primary_key=one.primary_key, nullable=one.nullable)
        for one in schema.problem.columns
        if one.name != "batch"
    ),
    UniqueConstraint("op", "dtype", "m", "n", "k"),
)
WITH_OTHER_KEYS = tuple(_with_other_keys.tables.values())


def _add_column(connection: Connection, column: Column[Any]) -> None:
    kind = column.type.compile(connection.dialect)
    default = getattr(column.server_default, "arg", None)
    others = "" if default is None else f" DEFAULT {default} NOT NULL"
    connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}{others}")


def _to_25(connection: Connection) -> None:
    """A trial says why its search ended. Older trials do not."""
    _add_column(connection, schema.trial.c.search_ended)


def _to_26(connection: Connection) -> None:
    """The texts of kernels are stored by paragraphs, each paragraph once."""
    connection.execute(CreateTable(schema.paragraph))
    connection.exec_driver_sql("ALTER TABLE source RENAME COLUMN text TO paragraphs")
    source = schema.source.c
    for digest in connection.execute(select(source.digest)).scalars().all():
        of_digest = source.digest == digest
        text = connection.execute(select(source.paragraphs).where(of_digest)).scalar_one()
        if isinstance(text, str) and KERNEL_TEXT.contains(text):  # a damaged text is refused when it is read
            values = {"paragraphs": paragraphs.add_texts(connection, [text])[0]}
            connection.execute(update(schema.source).where(of_digest).values(values))


def _to_27(connection: Connection) -> None:
    """Runs lease whole problems. Claims of configurations are dropped."""
    connection.execute(DropTable(_claim, if_exists=True))
    connection.execute(CreateTable(schema.lease))


def _to_28(connection: Connection) -> None:
    """A problem may be a batch of products."""
    _add_column(connection, schema.source.c.batched)
    if connection.dialect.name == "sqlite":  # it cannot change a key
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")  # until the rows are back
        connection.exec_driver_sql("CREATE TEMPORARY TABLE former_problem AS SELECT * FROM problem")
        connection.execute(DropTable(schema.problem))
        connection.execute(CreateTable(schema.problem))
        names = ", ".join(_problem.c.keys())
        connection.exec_driver_sql(f"INSERT INTO problem ({names}) SELECT {names} FROM former_problem")
        connection.exec_driver_sql("DROP TABLE former_problem")
    else:
        _add_column(connection, schema.problem.c.batch)
        connection.exec_driver_sql("ALTER TABLE problem DROP CONSTRAINT problem_op_dtype_m_n_k_key")
        connection.exec_driver_sql("ALTER TABLE problem ADD UNIQUE (op, dtype, m, n, k, batch)")


def _to_29(connection: Connection) -> None:
    """A kernel that took part in no final must be faster by 5 % than those that did."""


# Columns of older schemas that a migration renames, as SQLite describes them: see sqlite_schema.Layout.
RENAMED = {"source": frozenset({("text", "TEXT", 1, 0, 0)})}
# From OLDEST to the next schema, and so on.
MIGRATIONS: tuple[Migration, ...] = (_to_25, _to_26, _to_27, _to_28, _to_29)


def version() -> int:
    """Return the schema version that this program writes."""
    return OLDEST + len(MIGRATIONS)


def found_version(connection: Connection, path: str) -> int:
    """Return the schema version of the open file; 0 if the file is empty.

    Raise StoreError if another program wrote the file, or if this program cannot migrate its schema.
    """
    application_id = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    found: int = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if application_id != schema.APPLICATION_ID:
        if application_id or found or connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first():
            raise StoreError(f"{path} is a database of another program: name another file with --db")
        return 0
    refuse_unknown(found, path)
    return found


def refuse_unknown(found: int, path: str) -> None:
    """Raise StoreError if this program cannot migrate the schema `found`, because it is newer or too old."""
    if found > version():
        raise StoreError(
            f"{path} has schema {found}, newer than {version()}, the newest that this tsm2-tune supports:"
            " use a newer tsm2-tune, or name another file with --db"
        )
    if found < OLDEST:
        raise StoreError(
            f"{path} has schema {found}, older than {OLDEST}, the oldest that this tsm2-tune migrates: run db migrate"
            " of tsm2-tune 0.1.0 on it, or name another file with --db"
        )


def upgrade(connection: Connection, found: int) -> None:
    """Create the tables, or migrate them from schema `found` to the current schema, in the open transaction."""
    make(connection, found)
    connection.exec_driver_sql(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {version()}")


def statements(dialect: Dialect) -> tuple[str, ...]:
    """Return the SQL statements that create all tables, each followed by its indices."""
    return _statements(f"{dialect.name}.{dialect.driver}")


@cache
def _statements(name: str) -> tuple[str, ...]:
    spoken = registry.load(name)()
    made = list[str]()
    for table in schema.metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=spoken)).strip())
        made += sorted(str(CreateIndex(index).compile(dialect=spoken)) for index in table.indexes)
    return tuple(made)


def make(connection: Connection, found: int) -> None:
    """If `found` is 0, create the tables, the indices and the view.

    Otherwise migrate the tables from schema `found` to the current schema, and recreate the indices and the view.
    """
    if found == 0:
        for statement in statements(connection.dialect):
            connection.exec_driver_sql(statement)
    else:
        connection.exec_driver_sql("DROP VIEW best")
        for migrate in MIGRATIONS[found - OLDEST :]:
            migrate(connection)
        for index in (index for table in schema.metadata.sorted_tables for index in table.indexes):
            index.drop(connection, checkfirst=True)
            index.create(connection)
    connection.exec_driver_sql(BEST_VIEW)
