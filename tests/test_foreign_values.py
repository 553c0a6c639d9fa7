"""Values in a database that this program does not store so are refused in a sentence."""
# fixtures of another file

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import refused
from tests.fabricated import BASIS, GPU, PROBLEM, configuration, final, plain_sql, tuning_run
from tests.tampering import good_database
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import MOST_TEXT, in_a_line
from tsm2_tune.tuner.results.validation import BY_NAME, BY_TYPE, checked

RUN = tuning_run()
C128 = configuration(128)


def test_what_is_stored_is_of_its_columns_domain(path: Path) -> None:
    good_database(path)
    with Database.open(path, create=False) as opened:
        for table in (*schema.metadata.tables.values(), schema.best):
            rows = opened.rows(table.select())
            assert rows or table is schema.claim  # which nobody has
            for row in rows:
                checked(row, table.columns)


def test_every_domain_is_of_a_column() -> None:
    columns = {column.name for table in schema.metadata.tables.values() for column in table.columns}
    columns |= {column.name for column in schema.best.columns} | {"newest_us", "is_new"}
    assert BY_NAME.keys() <= columns
    assert {column.type.python_type for table in schema.metadata.tables.values() for column in table.columns} <= set(
        BY_TYPE
    )


@pytest.mark.parametrize(
    "edit",
    [
        "run SET device_name = 'a' || char(10)",
        "run SET driver = char(27) || '[2J'",
        f"run SET toolkit = '{'x' * 1001}'",
        "run SET started_at = 'yesterday'",
        "run SET started_at = '2026-13-01T00:00:00+00:00'",
        "run SET seed = -1",
        "run SET read_gbytes_per_s = 0",
        "run SET copy_gbytes_per_s = 9e999",
        "run SET gflops = '{\"f32\": true}'",
        'run SET gflops = \'{"f32": 1' + "0" * 400 + "}'",
        "trial SET ended_at = ''",
        "trial SET source_digest = 'abc'",
        "trial SET registers = -1",
        "trial SET blocks_per_sm = NULL",
        "trial SET blocks_per_sm = 4294967296",
        "trial SET smem_bytes = 1e300",
        "trial SET total_seconds = 9e999",
        "trial SET floor_us = -1",
        "trial SET verdict_worst_ratio = NULL",
        "trial SET verdict_worst_ratio = -1",
        "trial SET verdict_correct = 2",
        "trial SET guideline_broken = 'a b'",
        "trial SET family = '../tsm2'",
        "trial SET outcome = 'fine'",
        "trial SET tunables = '{\"threads\": [1]}'",
        "trial SET tunables = '{\"\\ud800\": 1}'",
        "measurement SET sm_clock_mhz = -9e999",
        "measurement SET round = -2147483648",
        "sample SET us = 9e999",
        "sample SET us = 'x'",
        "sample SET ordinal = ordinal + 10",
        "problem SET flops = 0",
        "problem SET least_bytes = -1",
        "problem SET op = 'n'",
    ],
)
def test_a_value_outside_its_domain_is_refused(one_trial_database: Path, edit: str) -> None:
    plain_sql(one_trial_database, f"UPDATE {edit}")
    assert "Error: trial 1 is not as this tsm2-tune stores it" in refused("show", "1", path=one_trial_database)


@pytest.mark.parametrize(
    "edit",
    [
        "trial SET verdict_worst_ratio = 2",
        "trial SET verdict_detail = NULL",
        "measurement SET median_us = 5",
        "measurement SET low_us = 502",
        "measurement SET high_us = 498",
        "measurement SET median_us = 499.5",  # within its interval, but not of these samples
        "sample SET us = -us",
        "sample SET us = us / 2",
        "problem SET least_bytes = 2 * least_bytes",
    ],
)
@pytest.mark.parametrize("command", [("best",), ("export", "--format", "module", "--output", "-")])
def test_a_winner_that_contradicts_itself_is_refused(
    one_trial_database: Path, edit: str, command: tuple[str, ...]
) -> None:
    plain_sql(one_trial_database, f"UPDATE {edit}")
    assert "Error: trial 1 is not as this tsm2-tune stores it" in refused(*command, path=one_trial_database)


def test_a_winner_without_samples_is_refused(one_trial_database: Path) -> None:
    plain_sql(one_trial_database, "DELETE FROM sample")
    assert "samples of round 0 are missing" in refused("best", path=one_trial_database)


def test_a_trial_is_ok_only_with_a_verdict_and_a_time(one_trial_database: Path) -> None:
    plain_sql(one_trial_database, "UPDATE trial SET verdict_correct = 0")
    with (
        Store.open(one_trial_database, create=False) as store,
        pytest.raises(StoreError, match="it is ok, but has no right result"),
    ):
        store.history(GPU, PROBLEM, ("tsm2",), BASIS).tried()


@pytest.mark.parametrize("value", ["'x'", "1.5", "9e999", "-5", "x'00'"])
def test_a_final_after_a_round_that_is_none(one_trial_database: Path, value: str) -> None:
    plain_sql(one_trial_database, f"UPDATE measurement SET round = {value}")
    with (
        Store.open(one_trial_database, create=True) as store,
        pytest.raises(StoreError, match="has a final of the round"),
    ):
        store.add_final(RUN, final((C128, 400.0)), ("tsm2",), BASIS)


def test_a_device_without_its_run(one_trial_database: Path) -> None:
    for table in ("sample", "measurement", "run"):
        plain_sql(one_trial_database, f"DELETE FROM {table}")
    said = refused("model", "--shapes", "64x64x64", "--device", GPU, path=one_trial_database)
    assert f"has no run on '{GPU}'" in said


@pytest.mark.parametrize("name", ["x'00'", "NULL || 1", "char(27)", f"'{'x' * 2000}'"])
def test_a_device_that_has_no_name(one_trial_database: Path, name: str) -> None:
    plain_sql(one_trial_database, f"UPDATE OR IGNORE trial SET device_name = coalesce({name}, '')  || char(7)")
    assert "Error: trial 1 is not as" in refused("model", "--shapes", "64x64x64", path=one_trial_database)


def test_names_are_stored_as_a_line() -> None:
    assert in_a_line("a  b\tc\n\x1b[31md\u2028") == "a  b c  [31md "
    assert len(in_a_line("x" * 10_000)) == MOST_TEXT
