"""The tables of a database on a server: whose they are, whether they are as they should be, and making them."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    inspect,
    select,
    text,
    update,
)

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner import migrations, schema

own = MetaData()  # what no file has

# The one row says that the tables beside it are ours, and of which schema.
VERSION = Table(
    "tsm2_tune",
    own,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    Column("schema_version", Integer, nullable=False),
)

# The last transaction that each thread of a run has written in: its own, so that it can ask later.
RECEIPT = Table(
    "receipt",
    own,
    Column("owner", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("written_at", DateTime(timezone=True), nullable=False),
)
ENCODING = "UTF8"

schema.newest_of_family.dialect_kwargs["postgresql_where"] = schema.COUNTS  # for which the dialect is imported


def found_version(connection: Connection, place: str) -> int:
    """The schema of the tables; 0 where there are none. StoreError for another program's, newer or altered ones."""
    encoding, current = connection.execute(text("SELECT current_setting('server_encoding'), current_schema()")).one()
    if encoding != ENCODING:
        raise StoreError(
            f"{place} is in {encoding}: name one in {ENCODING}, as"
            f" createdb --template template0 --encoding {ENCODING} makes it"
        )
    if current is None:
        raise StoreError(f"{place} has no schema that this user may use: have its owner grant that")
    tables = inspect(connection).get_table_names()
    if VERSION.name not in tables:
        if tables:
            raise StoreError(f"{place} is a database of another program: name an empty one with --db")
        return 0
    found = connection.execute(select(VERSION.c.schema_version)).scalar()
    if not isinstance(found, int) or found < migrations.FIRST_ON_SERVERS:
        raise StoreError(f"{place} has no version of its schema any more: restore a copy of it")
    migrations.refuse_newer(found, place)
    if found == migrations.version():
        _refuse_altered(connection, place)
    return found


def upgrade(connection: Connection, found: int) -> None:
    """Bring the tables from schema `found` to this program's, inside the transaction that is open."""
    if found == 0:
        own.create_all(connection)
        connection.execute(VERSION.insert().values(id=1, schema_version=migrations.version()))
    migrations.make(connection, found)
    connection.execute(update(VERSION).values(schema_version=migrations.version()))


def _refuse_altered(connection: Connection, place: str) -> None:
    """StoreError where a table, an index or the view is not there, or a table has other columns or keys."""
    inspector = inspect(connection)
    columns, unique = inspector.get_multi_columns(), inspector.get_multi_unique_constraints()
    indices, views = inspector.get_multi_indexes(), inspector.get_view_names()
    for table in (*schema.metadata.tables.values(), *own.tables.values()):
        key = (None, table.name)
        found = {(one["name"], one["nullable"]) for one in columns.get(key, ())}
        expected = {(one.name, bool(one.nullable)) for one in table.columns}
        keys = {tuple(one["column_names"]) for one in unique.get(key, ())}
        if found != expected or not _unique(table) <= keys:
            _refuse(place, table.name, is_there=bool(found))
        for name in sorted({str(one.name) for one in table.indexes} - {one["name"] for one in indices.get(key, ())}):
            _refuse(place, name, is_there=False)
    if schema.best.name not in views:
        _refuse(place, schema.best.name, is_there=False)


def _unique(table: Table) -> set[tuple[str, ...]]:
    found = [one for one in table.constraints if one.__visit_name__ == "unique_constraint"]
    return {tuple(column.name for column in one.columns) for one in found}  # type: ignore[attr-defined]


def _refuse(place: str, name: str, *, is_there: bool) -> None:
    raise StoreError(
        f"{place} {'has an altered' if is_there else 'lacks'} {name!r}, unlike what tsm2-tune makes: restore a copy"
        " of it, or name another with --db"
    )
