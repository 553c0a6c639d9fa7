"""A database on a PostgreSQL server: it gives what a file gives, and what it refuses it says in a sentence."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tsm2_tune
from tests.command import refused, run, said
from tests.databases import best, database_of, facts
from tests.exchanged import FASTEST, OTHER, RUN, SLOWER, TRIALS, tuned_database
from tests.fabricated import BASIS, GPU, PROBLEM, configuration, downgrade, final, host_run, trial, tuning_run
from tests.schema_file import columns_since_oldest
from tests.servers import TestServer, asked, database_name
from tests.tampering import good_database
from tsm2_tune.errors import StoreError, ToolMissing
from tsm2_tune.generator.problem import Problem
from tsm2_tune.html.contents import contents
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.merge.writer import Change, Writer
from tsm2_tune.tuner.results.storage import schema, schema_versions
from tsm2_tune.tuner.results.storage.addresses import place_of, shown_name
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("session_cache")]

FAMILIES = ("tsm2", "ism2")
SECRET = "hunter2"
HOSTILE = {
    "extra_float_digits": "-15", "TimeZone": "'Asia/Kathmandu'", "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "'iso_8601'", "client_encoding": "'LATIN1'", "search_path": "pg_catalog, nowhere",
    "standard_conforming_strings": "off", "backslash_quote": "off", "bytea_output": "escape",
    "default_transaction_read_only": "on", "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on", "statement_timeout": "10", "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1000", "idle_session_timeout": "1000", "transform_null_equals": "on",
    "quote_all_identifiers": "on", "exit_on_error": "on",
}  # fmt: skip


def fill(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of every kind, on two devices and the host: tied, superseded, refuted, between tuned shapes."""
    minutes = itertools.count()
    started = datetime(2026, 5, 6, tzinfo=UTC)
    clock = SimpleNamespace(now=lambda _: started + timedelta(minutes=next(minutes)))
    monkeypatch.setattr(records, "datetime", clock)
    tuned_database(name)
    host = host_run()
    with Store.open(name, create=True) as store:
        for one in (host, tuning_run("Tesla K40c", uuid="GPU-7")):
            for config in (configuration(512), configuration(64), configuration(128)):
                store.add_trial(one, trial(100, config, resources=None, problem=OTHER, detail="a\0b\ud7ff"))
        for capital in ("Zeta", "alpha", "Älpha"):  # by their bytes, and not as in English
            store.add_trial(tuning_run(capital), trial(10))
        store.add_trial(RUN, trial(7, problem=Problem(99, 8, 99, "f32"), is_between=True))
        store.add_trial(RUN, trial(8, configuration(64), problem=OTHER, basis="0" * 64))
        store.add_final(RUN, final((FASTEST, 509.5), (SLOWER, 511.0)), FAMILIES, BASIS)
        store.refute(2, Outcome.WRONG_RESULT, "not in full")
        store.count_as_tuned(GPU, OTHER, Cache.CLEAN)
        store.supersede(GPU, PROBLEM, BASIS)
        store.add_trial(RUN, trial(config=SLOWER, outcome=Outcome.TIMED_OUT, verdict=None, measurement=None))


def findings(database: Path | str) -> Any:
    """Return what `db check` finds in the database."""
    return json.loads(run("db", "check", "--json", "--db", str(database)).stdout)["findings"]


def told(name: Any) -> dict[str, Any]:
    """Return the result of each method of the store that reads."""
    with Store.open(name, create=False) as store:
        devices, numbers = store.devices(), [line.id for line in store.listing()]
        winners = store.best()
        pasts = [store.history(one, problem, FAMILIES, BASIS) for one in devices for problem in (PROBLEM, OTHER)]
        return {
            "devices": devices,
            "listing": store.listing(),
            "best": [
                store.best(cache=cache, between=between) for cache in (None, *Cache) for between in (False, True)
            ],
            "of": [store.best(device=GPU), store.best(family="ism2"), store.best(problem=OTHER)],
            "alike": store.best(alike=PROBLEM),
            "winning": store.winning(row for row in winners if not row.stale and row.verified_in_full),
            "rows": store.rows([row.trial_id for row in winners]),
            "full": [store.full_verdict(row, [BASIS]) for row in winners],
            "trials": [store.trial(number) for number in numbers],
            "current": [store.current(one) + store.current(one, PROBLEM) for one in devices],
            "alike of": store.current(GPU, alike=OTHER),
            "runs": [store.newest_run(one) for one in devices],
            "searched": store.searched(GPU, Cache.CLEAN, PROBLEM),
            "pasts": [
                (one.tried(), one.fastest_of_older(), one.final_configs(), one.vendor_of_last_final())
                for one in pasts
            ],
            "page": contents(store, None, lambda problem: True, None).trials,
        }


def test_both_give_the_same(address: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (address, path):
        fill(name, monkeypatch)
    server, file = told(address), told(path)
    for what, found in file.items():
        if "\\x00" in str(found):  # which no server stores
            assert str(server[what]) == str(found).replace("\\x00", "\ufffd"), what
        else:
            assert server[what] == found, what
    assert len(file["trials"]) == len(TRIALS) + 12


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
    good_database(path)
    first = run("import", str(path), "--db", hostile)
    assert "added 12 trials" in first.stdout, first.stderr
    for source, into in ((str(path), hostile), (hostile, str(path))):
        assert "nothing new" in run("import", source, "--db", into).stdout
    assert (facts(place_of(hostile)), best(hostile)) == (facts(path), best(path))  # type: ignore[arg-type]
    assert findings(hostile) == findings(path)


def test_an_address_may_name_its_schema(server: TestServer, address: str, path: Path) -> None:
    server.sql("CREATE SCHEMA tuning", database_name(address))
    tuned_database(path)
    there = f"{address}&options=-csearch_path%3Dtuning"
    assert "added 10 trials" in run("import", str(path), "--db", there).stdout
    assert asked(address, "SELECT count(*) FROM tuning.trial") == [(10,)]
    assert "holds no results yet: tune first (tsm2-tune --shapes" in refusal(address)
    assert asked(address, "SELECT * FROM pg_tables WHERE schemaname = 'public'") == []


def refusal(name: str, *, create: bool = False) -> str:
    with pytest.raises(StoreError) as refused, Store.open(name, create=create):
        pass
    return str(refused.value)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE TABLE customers (id int)", "is a database of another program: name an empty one with --db"),
        ("UPDATE tsm2_tune SET schema_version = 99", "has schema 99, newer than"),
        ("DELETE FROM tsm2_tune", "has lost its schema's version: restore a copy of it"),
        ("ALTER TABLE run ADD COLUMN sex text", "has an altered 'run', unlike tsm2-tune's schema"),
        ("DROP INDEX newest_of_family", "lacks 'newest_of_family', unlike tsm2-tune's schema"),
    ],
)
def test_what_is_not_ours_is_refused(address: str, statement: str, expected: str) -> None:
    if "CREATE" not in statement:
        database_of(address)
    asked(address, statement)
    for create in (False, True):
        assert refusal(address, create=create).startswith(f"{address} {expected}")


def test_another_encoding_is_refused(server: TestServer) -> None:
    address = server.new("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C' LOCALE_PROVIDER libc")
    assert "is in SQL_ASCII: name a database in UTF8" in refusal(address, create=True)


UNSUPPORTED = "is not a database that this tsm2-tune supports"
QUOTE = "has an @ or a / in its user or password: write"
NOWHERE = {
    "mysql://u:p@h/d": f"mysql://u:***@h/d {UNSUPPORTED}: name a file, or",
    "postgresql+psycopg2://h/d": UNSUPPORTED,
    "postgresql://u:p@h:port/d": "is not an address: name the database as postgresql+psycopg://user@host/name",
    "postgresql://u@h": "names no database",
    "postgresql://h/d?password=p": "postgresql://h/d?password=*** has password in its query: write it into",
    "postgresql://u:p@127.0.0.1:1/d": "postgresql://u:***@127.0.0.1:1/d cannot be reached (connection failed",
    "postgresql://u:p@/d?host=/nowhere": "cannot be reached",
    "postgresql://me@work:p@127.0.0.1:1/d": "postgresql://me@work:***@127.0.0.1:1/d cannot be reached",
    "mysql://me@work/x:p\n@h/d": f"mysql://me@work/x:***@h/d {UNSUPPORTED}",
    "postgresql://u:p@p@h/d": f"postgresql://u:***@h/d {QUOTE} %40 or %2F",
    "postgresql://u:p@h/:p@h/d": f"postgresql://u:***@h/d {QUOTE} %40 or",
    "postgresql://u/v:p@h/d": f"postgresql://u/v:***@h/d {QUOTE} %40 or",
    "postgresql://h/d?PASSWORD=:p@": "postgresql://h/d?PASSWORD=*** ",
    "postgresql://u@127.0.0.1/d?no=such": "was refused",
    "": "the name of the database is empty",
}


@pytest.mark.parametrize("name", NOWHERE)
def test_addresses_that_lead_nowhere(name: str) -> None:
    said = refused("best", "--db", name)
    assert NOWHERE[name] in said
    assert not any(part in said for part in (":p@", "p@h", "=p"))


def test_without_the_driver_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ToolMissing, match=r"needs the package psycopg: .*pip install 'psycopg\[binary\]'"):
        tsm2_tune.best("postgresql://u:p@h/d")


@pytest.fixture
def secretive(server: TestServer) -> str:
    """A database that only a password opens."""
    import psycopg

    with suppress(psycopg.errors.DuplicateObject):
        server.sql(f"CREATE ROLE secretive LOGIN SUPERUSER PASSWORD '{SECRET}'")
    return server.url(database_name(server.new()), f"secretive:{SECRET}")


def test_commands_take_the_address_and_hide_its_password(secretive: str, tmp_path: Path, fake_nvcc: None) -> None:
    tuned_database(secretive)  # type: ignore[arg-type]
    file = tmp_path / "written"
    for command, status, expected in (
        ("best", 0, "tsm2"),
        ("best --json", 0, FASTEST.text),
        ("best --shapes 1x1x1", 2, "no winner"),
        (f"best {secretive}", 2, ""),
        ("show", 0, "wrong-result"),
        ("show 1 --samples", 0, "round 1, L2 clean, us"),
        ("show 1 --json", 0, FASTEST.text),
        ("show 99", 2, "no trial 99 in postgresql"),
        (f"report --output {file}", 0, str(file)),
        *((f"export --format {form} --output {file}", 0, "") for form in ("csv", "json", "markdown", "latex")),
        (f"export --format trials --output {file}", 0, str(file)),
        (f"export --format module --output {file}.py", 0, str(file)),
        (f"export --format t4 --shapes 20480x16x20480 --output {file}", 0, ""),
        (f"export --format csv --output {tmp_path}", 2, ""),
        ("export --within 3% --no-measure --device h200 --format csv --output -", 0, ""),
        ("space --device h200 --audit", 0, "H200"),
        ("space --device h200 --audit --json", 0, "H200"),
        ("model --device h200 --shapes 20480x16x20480", 0, "measured"),
        ("db check", 0, ""),
        ("db vacuum", 0, ""),
        ("db migrate", 0, ""),
        ("quarantine", 0, ""),
        ("import /nowhere", 2, ""),
        ("confirm --device cpu", 2, ""),
        ("run -- true", 2, ""),
        ("forget 9", 0, "forgetting 1 trial of "),
        ("forget --outcome failed", 0, "forgetting 5 trials of "),
        ("forget 99", 2, "no trial 99 in"),
        ("doctor --device cpu", 0, ", there"),
    ):
        answer = run(*command.split(), "--db", secretive)
        assert (answer.exit_code, expected in answer.output) == (status, True), f"{command}: {answer.output}"
        assert SECRET not in answer.output, command
        for written in tmp_path.iterdir():
            assert SECRET not in written.read_text(), command
    assert len(asked(secretive, "SELECT * FROM trial")) == 4
    with Store.open(secretive, create=False) as store:
        assert SECRET not in f"{store.path} {store.path!r}"
        for table in ("run", "trial", "source", "receipt", "lease"):
            assert SECRET not in str(asked(secretive, f"SELECT * FROM {table}"))


def test_a_wrong_password_is_not_shown(secretive: str) -> None:
    why = refusal(secretive.replace(SECRET, "wrong" + SECRET))
    assert "cannot be reached" in why
    assert "password authentication failed" in why
    assert SECRET not in why


@pytest.mark.usefixtures("impatient")
def test_import_over_restart(server: TestServer, address: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good_database(path)
    write, batches = Writer.write, list[list[Problem]]()

    def restarted(writer: Writer, changes: Sequence[Change]) -> None:
        batches.append([one.problem for one in changes])
        if len(batches) == 1:
            server.restart()
        write(writer, changes)

    monkeypatch.setattr(Writer, "write", restarted)
    assert "added 12 trials" in said("db", "merge", str(path), "--db", address)
    assert batches[0] == batches[1], "what was lost is written again"
    assert facts(place_of(address)) == facts(path)  # type: ignore[arg-type]


def test_the_previous_schema_of_a_server_is_migrated(address: str, path: Path) -> None:
    good_database(path)
    said("db", "merge", str(path), "--db", address)
    text = (
        "SELECT string_agg(text, E'\\n\\n' ORDER BY place) FROM paragraph"
        " JOIN string_to_table(paragraphs, ' ') WITH ORDINALITY AS one (name, place) ON key = name"
    )
    for statement in (
        "INSERT INTO problem (op, dtype, m, n, k, flops, least_bytes) VALUES ('nn', 'f32', 9, 9, 9, 1, 1)",
        "DROP VIEW best", "CREATE VIEW best AS SELECT 1", "DROP INDEX newest_of_family", "DROP INDEX newest_stamp",
        f"UPDATE source SET paragraphs = ({text})", "ALTER TABLE source RENAME COLUMN paragraphs TO text",
        "DROP TABLE paragraph", "DROP TABLE lease",
        *(
            f"ALTER TABLE {table} DROP COLUMN {name}"  # and the key that it is in
            for table in schema.metadata.tables.keys() - {"paragraph", "lease"}
            for name in columns_since_oldest(table) - {"paragraphs"}
        ),
        "ALTER TABLE problem ADD UNIQUE (op, dtype, m, n, k)",
        "CREATE TABLE claim (owner text)", "UPDATE tsm2_tune SET schema_version = 23",
    ):  # fmt: skip
        asked(address, statement)
    name, now = shown_name(address), schema_versions.version()
    assert "has schema 23, older than 24, the oldest that" in refused("db", "migrate", "--db", address)
    asked(address, "UPDATE tsm2_tune SET schema_version = 24")
    assert said("db", "migrate", "--db", address).startswith(f"{name}: schema 24 before, {now} now")
    assert said("db", "migrate", "--db", address) == f"{name}: schema {now}, which is current: nothing to do\n"
    assert "--keep copies a file" in refused("db", "migrate", "--keep", "--db", address)
    indices = "SELECT indexdef FROM pg_indexes WHERE indexname = 'newest_of_family'"
    collation = "SELECT collation_name FROM information_schema.columns WHERE column_name = 'search_ended'"
    assert "(superseded = 0)" in asked(address, indices)[0][0]
    assert asked(address, f"{collation} AND table_name = 'trial'") == [("C",)]
    for rows in ("1 of problem", "none"):
        room = f"{name}: PostgreSQL reuses the space of removed rows by itself; rows removed: {rows}\n"
        assert said("db", "vacuum", "--db", address) == room
    assert findings(address) == findings(path)
    downgrade(path)  # which is migrated, too
    assert facts(place_of(address)) == facts(path)  # type: ignore[arg-type]
