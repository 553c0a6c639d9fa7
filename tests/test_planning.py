"""`model`: what it prints of any problem on any card, and rates that come from a database."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import GPU, plain_sql, trial, tuning_run
from tsm2_tune.console.plan_tables import data_sheet_text
from tsm2_tune.generator.device.cards import DRIVER_NAMES, PROFILES
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.usefixtures("no_driver")

HOST_NAME = host_limits().name


def asked(*arguments: str) -> Any:
    result = run("model", *arguments, "--json")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output)
    return found


@pytest.fixture
def database(path: Path) -> str:
    """Two runs on a GPU, the newer one with other rates, and one on another machine's CPU."""
    with Store.open(path, create=True) as store:
        store.add_trial(tuning_run(), trial(500.0))
        store.add_trial(tuning_run(started_at="2026-02-03T00:00:00+00:00"), trial(400.0, basis="newer"))
    plain_sql(path, "UPDATE run SET read_gbytes_per_s = 4500 WHERE id = 2")
    return str(path)


def test_rates_that_nothing_measured_have_their_source() -> None:
    assert "assumed, since nothing was measured" in asked("--device", "cpu", "--shapes", "8x8x8")["rates"]
    here = replace(PROFILES["h200"], name="NVIDIA H200")
    assert data_sheet_text(here) == "driver: 132 multiprocessors at 1980 MHz, 4.81 TB/s"


def test_a_database_that_has_no_rates_is_refused(tmp_path: Path) -> None:
    empty, of_host = database_of(tmp_path / "empty.db"), tmp_path / "host.db"
    database_of(of_host, trial(), run=tuning_run("Some CPU", compute_capability=""))
    for path, device, said in (
        (empty, "h200", "tune first"),
        (str(of_host), "Some CPU", "the limits of the device 'Some CPU' are unknown on this machine: run this on a"),
    ):
        arguments = ("model", "--db", path, "--shapes", "8x8x8", "--dtype", "bf16", "--device", device)
        assert said in refused(*arguments)


def test_of_several_devices_the_one_that_is_here_is_meant(path: Path) -> None:
    with Store.open(path, create=True) as store:
        for name in (GPU, "Tesla K40c"):
            store.add_trial(tuning_run(name), trial())
    said = refused("model", "--db", str(path), "--shapes", "8x8x8")
    assert f"no trial of the device {HOST_NAME!r} in {path}: it has 'NVIDIA H200', 'Tesla K40c'" in said
    database_of(path, trial(), run=tuning_run(HOST_NAME))
    assert asked("--db", str(path), "--shapes", "8x8x8")["device"] == HOST_NAME
    assert asked("--db", str(path), "--shapes", "8x8x8", "--device", GPU)["device"] == "h200"


def test_every_card_has_the_name_that_its_driver_reports() -> None:
    assert list(DRIVER_NAMES) == list(PROFILES)
    assert len(set(DRIVER_NAMES.values())) == len(DRIVER_NAMES)
