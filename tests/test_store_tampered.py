"""Tests of what a database from elsewhere may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fabricated import (
    BASIS,
    GPU,
    PROBLEM,
    configuration,
    plain_sql,
    trial,
    tuning_run,
)
from tsm2_tune.errors import StoreError
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.results.store import Store

RUN = tuning_run()
TODAY = ("tsm2", "ism2"), BASIS
C128 = configuration(128)


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE trial SET tunables = '{'",
        "UPDATE trial SET tunables = '[1, 2]'",
        "UPDATE trial SET tunables = replace(tunables, '128', '\"128\"')",
        "UPDATE trial SET tunables = replace(tunables, '128', '64')",
        "UPDATE trial SET config = 'tsm2:version=v3,threads=1,columns=1,prefetch=1'",
        "UPDATE trial SET outcome = 'splendid'",
        "UPDATE trial SET registers = 'many'",
        "UPDATE paragraph SET text = text || 'int more;'",
        "UPDATE source SET kernel = 'f(); evil'",
        "UPDATE problem SET m = -1",
        "UPDATE measurement SET median_us = 'x'",
        "UPDATE measurement SET median_us = -5",
        "UPDATE source SET threads = 0",
        "UPDATE source SET threads = 1025",
        "UPDATE source SET rows_per_block = 0",
        "UPDATE source SET rows_per_block = 2147483648",
        "UPDATE source SET smem_bytes = -1",
        "UPDATE source SET smem_bytes = 232449",
        "UPDATE run SET gflops = '{\"f32\": NaN}'",
        "UPDATE run SET gflops = '{\"f32\": 1e999}'",
        "UPDATE run SET gflops = '\"\"'",
    ],
)
def test_a_tampered_trial_is_refused_by_its_number(store: Store, path: Path, tampering: str) -> None:
    trial_id = store.add_trial(RUN, trial(500))
    plain_sql(path, tampering)
    with pytest.raises(StoreError, match=rf"^trial {trial_id} is not as this tsm2-tune stores it"):
        store.trial(trial_id)


@pytest.mark.parametrize(
    ("change", "family", "config", "tunables"),
    [
        ("family = 'bygone'", "bygone", C128.text, C128.tunables),
        (
            'config = \'tsm2:version=v3,threads=128\', tunables = \'{"version": "v3", "threads": 128}\'',
            "tsm2",
            "tsm2:version=v3,threads=128",
            {"version": "v3", "threads": 128},
        ),
    ],
)
def test_a_trial_of_another_version_is_shown_as_it_is_stored(
    store: Store, path: Path, change: str, family: str, config: str, tunables: dict[str, object]
) -> None:
    trial_id = store.add_trial(RUN, trial(500))
    plain_sql(path, f"UPDATE trial SET {change}")
    found = store.trial(trial_id).trial.config
    assert (found.family, found.text, found.tunables) == (family, config, tunables)
    assert [row.config for row in store.best()] == [line.config for line in store.listing()] == [config]


def test_a_winner_of_a_family_that_is_no_more_is_stale(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500))
    assert [row.stale for row in store.best()] == [0]
    plain_sql(path, "UPDATE trial SET family = 'bygone'")
    assert [row.stale for row in store.best()] == [1]


def test_trial_after_a_stamp_that_is_no_number_is_refused(store: Store, path: Path) -> None:
    store.add_trial(RUN, trial(500))
    plain_sql(path, "UPDATE trial SET stamp = 'x'")
    with pytest.raises(StoreError, match="the database has the stamp 'x': restore a copy"):
        store.add_trial(RUN, trial(500, configuration(64)))


def test_a_tampered_kernel_cannot_be_exported(store: Store, path: Path) -> None:
    trial_id = store.add_trial(RUN, trial(500))
    rows = store.best()
    assert store.sources(rows)[rows[0].trial_id].text == render(PROBLEM, C128).text
    plain_sql(path, "UPDATE paragraph SET text = 'evil'")
    with pytest.raises(StoreError, match=rf"^trial {trial_id} .*does not match its digest"):
        store.sources(rows)


@pytest.mark.parametrize("parameters", ["{", "[]", "7", "[" * 100_000])
def test_tampered_parameters_are_refused(store: Store, path: Path, parameters: str) -> None:
    trial_id = store.add_trial(RUN, trial(500))
    plain_sql(path, f"UPDATE trial SET tunables = '{parameters}'")
    with pytest.raises(StoreError, match=rf"^trial {trial_id} "):
        store.best()
    with pytest.raises(StoreError, match=rf"^trial {trial_id} "):
        store.history(GPU, PROBLEM, *TODAY).tried()


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE measurement SET median_us = 0",
        "UPDATE trial SET tunables = '{\"threads\": NaN}'",
        "UPDATE trial SET tunables = '{\"threads\": -Infinity}'",
        "UPDATE measurement SET median_us = 9e999",
        "UPDATE problem SET dtype = 'f8'",
        "UPDATE problem SET n = 'x'",
        "UPDATE run SET toolkit = x'00'",
    ],
)
def test_a_tampered_winner_is_refused(store: Store, path: Path, tampering: str) -> None:
    trial_id = store.add_trial(RUN, trial(500))
    plain_sql(path, tampering)
    with pytest.raises(StoreError, match=rf"^trial {trial_id} "):
        store.best()
