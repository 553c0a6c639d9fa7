"""Tests of --db: it takes a file or an address, and the password of a mistyped address is not shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import refused, run
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage.addresses import is_address, is_text, place_of, shown_name

SECRET = "hunter2"
NEARLY = (
    " postgresql://u:{}@h/d", "\tpostgresql://u:{}@h/d", "'postgresql://u:{}@h/d'", "postgresql:/u:{}@h/d",
    "postgresql:/{}@h/d", "postgresql:u:{}@h/d", "postgresql//u:{}@h/d", "postgresql ://u:{}@h/d",
    "postgres;//u:{}@h/d", "POSTGRESQL://u:{}@h/d", "PostgreSQL:/u:{}@h/d", "PGPASSWORD={} postgresql://h/d",
    "--db=postgresql://u:{}@h/d", "db:postgresql://u:{}@h/d?password={}", "mysql:/u:{}@h/d",
)  # fmt: skip


@pytest.mark.parametrize("end", ["", ".jsonl"])
@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_an_address_is_none_and_hides_its_password(name: str, end: str) -> None:
    name += end
    assert is_address(name)
    assert not is_text(name)
    said = "is not a database that this tsm2-tune supports: name a file, or"
    with pytest.raises(StoreError, match=said) as refused:
        place_of(name.replace("{}", SECRET))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["postgresql://u:{}/d", "postgresql://u:{}", "postgresql+psycopg://u:{}?sslmode=off"]
)
def test_a_password_in_the_place_of_a_port_is_hidden(name: str) -> None:
    assert shown_name(name.replace("{}", SECRET)) == name.replace("{}", "***")
    assert shown_name(name.replace("{}", "5432")) == name.replace("{}", "5432")


SECRETS = ("password", "passfile", "sslpassword", "oauth_client_secret", "scram_client_key", "new_in_libpq_19")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "spelt", [str, str.upper, str.title, lambda name: name.replace("s", "%73"), "options=-c{}".format]
)
@pytest.mark.parametrize("before", ["?", "?sslmode=require&", "?sslmode=require;", "#", " "])
def test_parameters_that_may_be_secret_are_hidden(name: str, spelt: Callable[[str], str], before: str) -> None:
    for scheme in ("postgresql://u@h/d", "postgresql:/u@h/d", "postgresql+psycopg://u:p@h:5432/d"):
        assert SECRET not in shown_name(f"{scheme}{before}{spelt(name)}={SECRET}&sslmode=require")
    assert shown_name("postgresql://u@h/d?host=/tmp&sslmode=require").endswith("?host=/tmp&sslmode=require")


@pytest.mark.parametrize("name", [one for one in SECRETS if "new" not in one])
@pytest.mark.parametrize("spelt", [str, str.upper, lambda name: name.replace("s", "%73")])
def test_secrets_in_an_address_are_refused(name: str, spelt: Callable[[str], str]) -> None:
    said = run("best", "--db", f"postgresql://u@127.0.0.1:1/d?{spelt(name)}={SECRET}")
    assert (said.exit_code, said.stderr.count("\n"), SECRET in said.stderr) == (2, 1, False)
    assert f"has {name} in its query: write it into ~/.pgpass" in said.stderr


@pytest.mark.parametrize(
    "command",
    ["best", "show 1", "db check", pytest.param("--device cpu --shapes 8x8x8", marks=pytest.mark.slow), "import"],
)
@pytest.mark.parametrize("name", [
    "host=h password={} dbname=n", "dbname=n", "password='a {}' host = h", "HOST=h PassWord = {}",
    " user=u scram_client_key={}", "'service=s'", "x=1 oauth_client_secret={}", "postgresql:/u:{}@h/d",
])  # fmt: skip
def test_a_connection_string_is_no_file_and_hides_its_password(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = name.format(SECRET)
    said = run(command, name) if command == "import" else run(*command.split(), "--db", name)
    assert (said.exit_code, said.stderr.count("\n"), SECRET in said.output) == (2, 1, False)
    unsupported = "is not a database that this tsm2-tune supports: name a file, or postgresql+psycopg://"
    assert f"{'/***@h/d' if '@h' in name else '=***'} {unsupported}" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_sqlalchemy_refuses_of_it_is_told() -> None:
    pytest.importorskip("psycopg")
    address = "postgresql+psycopg:///x?port=5432&host=/nonexist&port=2"
    for command in (["best"], ["db", "check"], ["show", "1"]):
        assert "is not an address (number of hosts and ports" in refused(*command, "--db", address)


@pytest.mark.parametrize("name", [
    "a=b.db", "my host.db", "./host=h.db", "a:b@c.db", "./postgresql:/me@x.db", "postgres/me@x.db", "postgresql.db",
    "1:2@h.db",
])  # fmt: skip
def test_a_file_whose_name_has_a_colon_or_an_at_is_a_file(name: str) -> None:
    assert place_of(name) == Path(name)
    assert shown_name(name) == name


def test_an_import_into_what_is_no_address_reads_nothing() -> None:
    assert "is not an address: name the database as" in refused(
        "import", "missing.jsonl", "--db", "postgresql+psycopg://h:port/x"
    )
