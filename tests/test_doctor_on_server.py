"""Tests of `doctor` on a database of a PostgreSQL server, to which it writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import run
from tests.databases import database_of
from tests.fabricated import trial, tuning_run
from tests.servers import TestServer, asked, running
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.doctor import storage
from tsm2_tune.tuner.doctor.finding import Finding, Question, State

pytestmark = pytest.mark.slow

TABLES = "ALL TABLES IN SCHEMA public TO other"
SEQUENCES = "ALL SEQUENCES IN SCHEMA public TO other"


@pytest.fixture
def of_other(server: TestServer, address: str) -> str:
    """The address as a user has it who does not own the database, and has no right in it yet."""
    if not server.sql("SELECT 1 FROM pg_roles WHERE rolname = 'other'"):
        server.sql("CREATE ROLE other LOGIN")
    return server.url(address.partition("@/")[2].partition("?")[0], "other")


def found_at(address: str) -> Finding:
    (found,) = storage.database(Question("cpu", address))
    return found


def store_one(address: str) -> None:
    database_of(address, trial(600), run=tuning_run("NVIDIA H100"))


def refused(address: str) -> str:
    """Why no trial can be stored there."""
    with pytest.raises(StoreError) as why:
        store_one(address)
    return str(why.value)


def test_a_user_who_may_only_read_has_a_problem(address: str, of_other: str) -> None:
    store_one(address)
    asked(address, f"GRANT SELECT ON {TABLES}")
    before = asked(address, "SELECT xmin FROM pg_class ORDER BY oid")
    found = found_at(of_other)
    assert asked(address, "SELECT xmin FROM pg_class ORDER BY oid") == before
    assert found.state is State.PROBLEM
    lacking = "INSERT, UPDATE, DELETE in all of its tables, nor use the sequences that number their rows"
    assert found.found == f"{of_other}, where this user may not {lacking}"
    grants = f"GRANT INSERT, UPDATE, DELETE ON {TABLES}; GRANT USAGE ON {SEQUENCES}"
    assert found.remedy == f"have its owner run {grants}; or name another database with --db"
    assert "permission denied for table receipt" in refused(of_other)
    said = run("doctor", "--device", "cpu", "--db", of_other)
    last = f"tuning can run on this host, but not with {of_other}: name another database with --db"
    assert (said.exit_code, said.output.splitlines()[-1]) == (1, last)
    asked(address, grants)
    assert found_at(of_other).state is State.OK
    store_one(of_other)


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ("SELECT ON best", "SELECT in all"),
        ("SELECT ON lease", "SELECT in all"),
        ("INSERT ON sample", "INSERT in all"),
        ("UPDATE ON receipt", "UPDATE in all"),
        ("DELETE ON lease", "DELETE in all"),
        ("USAGE ON SEQUENCE trial_id_seq", "use the sequences"),
    ],
)
def test_one_right_that_is_missing_is_named(address: str, of_other: str, taken: str, named: str) -> None:
    store_one(address)
    asked(address, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLES}; GRANT USAGE ON {SEQUENCES}")
    asked(address, "REVOKE INSERT, UPDATE, DELETE ON tsm2_tune, best FROM other")
    assert found_at(of_other).state is State.OK
    asked(address, f"REVOKE {taken} FROM other")
    found = found_at(of_other)
    assert found.state is State.PROBLEM
    assert f"where this user may not {named}" in found.found


def test_who_may_make_no_tables_has_a_problem(address: str, of_other: str) -> None:
    found = found_at(of_other)
    assert found.state is State.PROBLEM
    assert "where this user may not create tables in its schema public" in found.found
    assert "permission denied for schema public" in refused(of_other)
    assert found.remedy.startswith("have its owner run GRANT CREATE ON SCHEMA public TO other, ")
    asked(address, "GRANT CREATE ON SCHEMA public TO other")
    found = found_at(of_other)
    assert (found.state, found.found) == (State.OK, f"{of_other}, not made yet")
    assert asked(address, "SELECT * FROM pg_tables WHERE schemaname = 'public'") == []
    store_one(of_other)


def test_an_older_schema_needs_the_owner(address: str, of_other: str) -> None:
    store_one(address)
    asked(address, f"GRANT ALL ON {TABLES}; GRANT ALL ON {SEQUENCES}; GRANT CREATE ON SCHEMA public TO other")
    asked(address, "UPDATE tsm2_tune SET schema_version = 24")
    found = found_at(of_other)
    assert found.state is State.PROBLEM
    assert "has schema 24, and only the owner of its tables can migrate it to " in found.found
    assert "must be owner of " in refused(of_other)
    assert found_at(address).state is State.OK
    assert asked(address, "SELECT schema_version FROM tsm2_tune") == [(24,)]


def test_a_standby_is_a_problem(session_folder: Path) -> None:
    with running(session_folder / "postgresql") as own:
        address = own.new()
        store_one(address)
        own.stop()
        (own.folder / "data" / "standby.signal").touch()
        own.start()
        found = found_at(address)
        assert (found.state, found.found) == (State.PROBLEM, f"{address} is read-only, because it is a standby")
        assert "was refused by PostgreSQL" in refused(address)
