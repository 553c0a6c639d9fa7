"""Settings of a PostgreSQL server, a database or a role change nothing of what a session reads and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.command import run
from tests.databases import facts
from tests.exchanged import tuned_database
from tests.servers import TestServer, asked, database_name
from tsm2_tune.tuner.results.storage.addresses import place_of

pytestmark = pytest.mark.usefixtures("session_cache")

HOSTILE = {
    "extra_float_digits": "-15",
    "TimeZone": "'Asia/Kathmandu'",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "'iso_8601'",
    "client_encoding": "'LATIN1'",
    "search_path": "pg_catalog, nowhere",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "10",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1000",
    "idle_session_timeout": "1000",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "exit_on_error": "on",
}


def winners(database: str) -> list[dict[str, Any]]:
    """Return the output of `best` without the ids of trials and runs, which differ between databases."""
    rows = json.loads(run("best", "--json", "--db", database).stdout)["best"]
    return [{**row, "trial_id": 0, "run_id": 0} for row in rows]


@pytest.mark.parametrize("owner", ["DATABASE", "ROLE"])
def test_hostile_settings_change_nothing(server: TestServer, address: str, path: Path, owner: str) -> None:
    if owner == "DATABASE":
        altered, user = database_name(address), "postgres"
    else:
        altered = user = f"of_{database_name(address)}"
        server.sql(f"CREATE ROLE {user} LOGIN SUPERUSER")
    for setting, value in HOSTILE.items():
        server.sql(f"ALTER {owner} {altered} SET {setting} = {value}")
    hostile = server.url(database_name(address), user)
    tuned_database(path)
    first = run("import", str(path), "--db", hostile)
    assert "added 10 trials" in first.stdout, first.stderr
    assert "nothing new" in run("import", str(path), "--db", hostile).stdout
    assert "nothing new" in run("import", hostile, "--db", str(path)).stdout
    assert facts(place_of(hostile)) == facts(path)  # type: ignore[arg-type]
    assert tsm2_tune.export(hostile, format="trials").text == tsm2_tune.export(path, format="trials").text
    assert winners(hostile) == winners(str(path))
    assert run("db", "check", "--db", hostile).stdout == run("db", "check", "--db", str(path)).stdout


def test_an_address_may_name_its_schema(server: TestServer, address: str, path: Path) -> None:
    server.sql("CREATE SCHEMA tuning", database_name(address))
    tuned_database(path)
    there = f"{address}&options=-csearch_path%3Dtuning"
    assert "added 10 trials" in run("import", str(path), "--db", there).stdout
    assert asked(address, "SELECT count(*) FROM tuning.trial") == [(10,)]
    assert "holds no results yet" in run("best", "--db", address).stderr
