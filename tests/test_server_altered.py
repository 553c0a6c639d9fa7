"""Objects of a PostgreSQL database that their owner has altered: each is refused in a sentence, or has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Table, create_engine
from sqlalchemy.exc import DBAPIError

from tests.command import run
from tests.exchanged import tuned_database
from tests.servers import TestServer, asked, database_name
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import postgresql_schema, schema

pytestmark = pytest.mark.usefixtures("session_cache")

TABLES: tuple[Table, ...] = (*schema.metadata.sorted_tables, *postgresql_schema.own.tables.values())
NOTHING = "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
CONSTRAINTS = (
    "SELECT relname::text, conname::text FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid"
    " WHERE relnamespace = 'public'::regnamespace AND contype <> 'c' ORDER BY 1, 2"
)
OTHER_VIEW = ("DROP VIEW best", "CREATE VIEW best AS SELECT 1")


@pytest.fixture(scope="module")
def filled(server: TestServer, session_cache: None) -> str:
    """A database with trials."""
    address = server.new()
    tuned_database(address)  # type: ignore[arg-type]
    return address


@pytest.fixture
def address(server: TestServer, filled: str) -> str:
    """A copy of the database."""
    return server.new(f"TEMPLATE {database_name(filled)}")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the same trials."""
    path = tmp_path_factory.mktemp("altered") / "results.db"
    tuned_database(path)
    return path


def columns(_: str) -> Iterator[tuple[str, ...]]:
    for table in TABLES:
        for column in table.columns:
            yield (
                f"ALTER TABLE {table.name} DROP COLUMN {column.name} CASCADE",
                "DROP VIEW IF EXISTS best",
                *OTHER_VIEW[1:],
            )
            yield (f"ALTER TABLE {table.name} RENAME COLUMN {column.name} TO another",)


def types(_: str) -> Iterator[tuple[str, ...]]:
    for table in TABLES:
        for column in table.columns:
            if not (column.foreign_keys or column.primary_key or column.name == "device_name"):
                change = f"ALTER TABLE {table.name} ALTER {column.name} DROP DEFAULT, ALTER {column.name} TYPE"
                yield (
                    *OTHER_VIEW,
                    f"DROP INDEX newest_of_family; {change} bytea USING convert_to({column.name}::text, 'UTF8')",
                )


def keys(filled: str) -> Iterator[tuple[str, ...]]:
    for table, name in asked(filled, CONSTRAINTS):
        yield (f"ALTER TABLE {table} DROP CONSTRAINT {name} CASCADE",)


def triggers(_: str) -> Iterator[tuple[str, ...]]:
    for table in TABLES:
        trigger = f"CREATE TRIGGER nothing BEFORE INSERT ON {table.name} FOR EACH ROW EXECUTE FUNCTION nothing()"
        yield NOTHING, trigger
        yield (f"CREATE RULE nothing AS ON INSERT TO {table.name} DO INSTEAD NOTHING",)
        yield (f"DROP TABLE {table.name} CASCADE",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [columns, types, keys, triggers])
def test_altered_tables_are_refused(filled: str, kind: Callable[[str], Iterator[tuple[str, ...]]]) -> None:
    engine, refused = create_engine(filled), dict[tuple[str, ...], str]()
    for statements in kind(filled):
        with engine.connect() as connection:  # nothing is committed
            for statement in statements:
                connection.exec_driver_sql(statement)
            refused[statements] = ""
            try:
                postgresql_schema.found_version(connection, "it")
            except (StoreError, DBAPIError) as error:  # the latter becomes the former where transactions end
                refused[statements] = str(error)
    engine.dispose()
    assert len(refused) >= len(TABLES)
    assert [statements for statements, why in refused.items() if not why] == []


@pytest.mark.parametrize(
    "statements",
    [
        (NOTHING, "CREATE TRIGGER n BEFORE INSERT ON trial FOR EACH ROW EXECUTE FUNCTION nothing()"),
        (*OTHER_VIEW, "ALTER TABLE run ALTER started_at TYPE bytea USING started_at::bytea"),
        ("DROP VIEW best",),
        ("ALTER TABLE measurement DROP CONSTRAINT measurement_trial_id_fkey",),
        ("DELETE FROM tsm2_tune",),
        ("UPDATE run SET gflops = '[]'",),
        ("UPDATE trial SET tunables = 'x'",),
        ("UPDATE problem SET least_bytes = 0",),
        ("UPDATE trial SET is_between = 2",),
        ("UPDATE measurement SET median_us = 'NaN'",),
    ],
)
def test_the_check_finds_what_commands_refuse(address: str, file: Path, statements: tuple[str, ...]) -> None:
    for statement in statements:
        asked(address, statement)
    for command in (("best",), ("import", str(file)), ("db", "check")):
        said = run(*command, "--db", address)
        assert isinstance(said.exception, SystemExit), (command, said.exception)
        assert said.exit_code != 0 or command[0] == "import", said.output
        assert said.stderr.count("\n") <= 1


def test_an_altered_view_has_no_effect(address: str) -> None:
    before = run("best", "--db", address).stdout
    for statement in OTHER_VIEW:
        asked(address, statement)
    assert run("best", "--db", address).stdout == before
    assert run("db", "check", "--db", address).exit_code == 0


def test_rows_that_a_policy_hides_are_refused(server: TestServer, address: str) -> None:
    server.sql("CREATE ROLE policed LOGIN")
    asked(address, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO policed")
    asked(address, "ALTER TABLE trial ENABLE ROW LEVEL SECURITY")
    for command in ("best", "db check"):
        said = run(*command.split(), "--db", server.url(database_name(address), "policed"))
        assert (said.exit_code, "row-level security" in said.output) == (2, True)
