"""Create the tables of a PostgreSQL database, and check that existing tables are this program's and unaltered."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.best_view import best
from tsm2_tune.tuner.results.storage import schema, schema_versions

own = MetaData()  # tables that only servers need

# A table with a single row. It marks the other tables as this program's, and contains their schema version.
VERSION = Table(
    "tsm2_tune",
    own,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    Column("schema_version", Integer, nullable=False),
)

# The last writing transaction of each thread of a run. The row shows the thread whether it was committed.
RECEIPT = Table(
    "receipt",
    own,
    Column("owner", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("written_at", DateTime(timezone=True), nullable=False),
)
ENCODING = "UTF8"

schema.newest_of_family.dialect_kwargs["postgresql_where"] = schema.IS_IN_FORCE  # needs the imported dialect


def found_version(connection: Connection, place: str) -> int:
    """Return the schema version of the tables; 0 if there are no tables.

    Raise StoreError if another program or a newer version created the tables, or if the tables were altered.
    """
    encoding, current = connection.execute(text("SELECT current_setting('server_encoding'), current_schema()")).one()
    if encoding != ENCODING:
        raise StoreError(
            f"{place} is in {encoding}: name a database in {ENCODING}, such as created by createdb --template"
            f" template0 --encoding {ENCODING}"
        )
    if current is None:
        raise StoreError(f"{place} has no schema that this user may use: ask its owner to grant a schema")
    tables = inspect(connection).get_table_names()
    if VERSION.name not in tables:
        if tables:
            raise StoreError(f"{place} is a database of another program: name an empty one with --db")
        return 0
    found = connection.execute(select(VERSION.c.schema_version)).scalar()
    if not isinstance(found, int):
        raise StoreError(f"{place} has lost its schema's version: restore a copy of it")
    schema_versions.refuse_unknown(found, place)
    if found == schema_versions.version():
        _refuse_altered(connection, place)
    return found


def upgrade(connection: Connection, found: int) -> None:
    """Create the tables, or migrate them from schema `found` to the current schema, in the open transaction."""
    if found == 0:
        own.create_all(connection)
        connection.execute(VERSION.insert().values(id=1, schema_version=schema_versions.version()))
    schema_versions.make(connection, found)
    connection.execute(update(VERSION).values(schema_version=schema_versions.version()))


def _refuse_altered(connection: Connection, place: str) -> None:
    """Raise StoreError if the tables are not as this program creates them."""
    inspector = inspect(connection)
    columns, indices, views = inspector.get_multi_columns(), inspector.get_multi_indexes(), inspector.get_view_names()
    constraints = {(table, kind, tuple(on), of) for table, kind, on, of in connection.execute(_CONSTRAINTS)}
    rewritten = set(connection.execute(_REWRITTEN).scalars())
    for table in (*schema.metadata.tables.values(), *own.tables.values()):
        of_table = columns.get((None, table.name), ())
        found = {(one["name"], one["nullable"], _type_text(one["type"], connection)) for one in of_table}
        expected = {(one.name, bool(one.nullable), _type_text(one.type, connection)) for one in table.columns}
        if found != expected or not _constraints(table) <= constraints or table.name in rewritten:
            _refuse(place, table.name, is_there=bool(found))
        known = {one["name"] for one in indices.get((None, table.name), ())}
        for name in sorted({str(one.name) for one in table.indexes} - known):
            _refuse(place, name, is_there=False)
    if best.name not in views:
        _refuse(place, best.name, is_there=False)


_HERE = "relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
_CONSTRAINTS = text(f"""
SELECT pg_class.relname, contype::text, ARRAY(
         SELECT attname::text FROM unnest(conkey) WITH ORDINALITY AS one (number, place)
         JOIN pg_attribute ON attrelid = conrelid AND attnum = number ORDER BY place
       ), coalesce(other.relname, '')
FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid LEFT JOIN pg_class AS other ON other.oid = confrelid
WHERE pg_class.{_HERE}
""")
# Rules, and triggers that run before a row is stored.
_REWRITTEN = text(f"""
SELECT relname FROM pg_class WHERE {_HERE} AND relkind <> 'v' AND (relhasrules OR EXISTS (
  SELECT FROM pg_trigger WHERE tgrelid = pg_class.oid AND NOT tgisinternal AND tgtype & 2 = 2
))
""")


def _type_text(type_: TypeEngine[Any], connection: Connection) -> str:
    """Return a column's type and collation in PostgreSQL's spelling."""
    return str(type_.compile(dialect=connection.dialect)).replace("FLOAT", "DOUBLE PRECISION")


def _constraints(table: Table) -> set[tuple[str, str, tuple[str, ...], str]]:
    """Return the table's keys in the format of the query _CONSTRAINTS."""
    found = {(table.name, "p", tuple(one.name for one in table.primary_key), "")}
    for one in table.constraints:
        if isinstance(one, UniqueConstraint | ForeignKeyConstraint):
            kind, of = ("u", "") if isinstance(one, UniqueConstraint) else ("f", one.referred_table.name)
            found.add((table.name, kind, tuple(column.name for column in one.columns), of))
    return found


def _refuse(place: str, name: str, *, is_there: bool) -> None:
    raise StoreError(
        f"{place} {'has an altered' if is_there else 'lacks'} {name!r}, unlike tsm2-tune's schema: restore a copy"
        " of it, or name another database with --db"
    )
