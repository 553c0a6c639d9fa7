"""`model`: what it prints of any problem on any card, and rates that come from a database."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command import refused, run
from tests.databases import database_of
from tests.fabricated import GPU, PROBLEM, plain_sql, trial, tuning_run
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


def test_the_papers_model_is_printed_as_before() -> None:
    found = asked("--device", "k40c", "--shapes", "20480x16x20480", "--dtype", "f64")
    assert found["tsm2"]["t2_threshold"] == pytest.approx(39.7, abs=0.05)
    assert found["tsm2"]["t2_threshold_fma"] == pytest.approx(found["tsm2"]["t2_threshold"] / 2)
    assert found["tsm2"]["bound"] == "memory"
    assert (found["tsm2"]["t1"], found["tsm2"]["t2"]) == (128, 16)
    assert found["unmodelled"] is None


def test_every_problem_is_modelled_in_a_line() -> None:
    found = run("model", "--device", "h200", "--shapes", "20480x20480x1,16x16x16", "--op", "nn,gram").output
    lines = found.splitlines()
    assert lines[0] == "h200, data sheet: 132 multiprocessors at 1980 MHz, 4.81 TB/s"
    assert "least bytes" in lines[1]
    (line,) = (line.split() for line in lines if line.startswith("16x16x16:f32:tx "))
    assert line[1:4] == ["2048", "4352", "2.125"]
    assert "TSM2's model does not cover 16x16x16:f32:tx: it covers A B with all three matrices" in found


def test_a_prediction_below_the_floor_is_explained() -> None:
    said = "TSM2's model counts reads of A, not of B and C"
    below = run("model", "--device", "h200", "--shapes", "1e7x8x8,20480x16x20480", "--dtype", "f32").output
    assert f"below the least time for 10000000x8x8:f32, 20480x16x20480:f32: {said}" in below
    assert said not in run("model", "--device", "p100", "--shapes", "20480x16x20480", "--dtype", "f64").output


def test_what_does_not_fit_the_memory_is_said() -> None:
    problem = ("--device", "s2050", "--shapes", "1e6x8192x8192")
    assert asked(*problem)["fits_memory"] is False
    assert "does not fit the memory" in run("model", *problem).output
    assert asked("--device", "s2050", "--shapes", "8x8x8")["fits_memory"] is True


def test_a_card_without_the_unit_is_refused() -> None:
    said = refused("model", "--device", "v100", "--shapes", "64x8x64", "--math", "tf32")
    assert "v100 has no tensor cores for --math tf32, which need compute capability 8.0 or newer" in said


def test_rates_that_nothing_measured_have_their_source() -> None:
    assert "assumed, since nothing was measured" in asked("--device", "cpu", "--shapes", "8x8x8")["rates"]
    here = replace(PROFILES["h200"], name="NVIDIA H200")
    assert data_sheet_text(here) == "driver: 132 multiprocessors at 1980 MHz, 4.81 TB/s"


def test_measured_rates_are_those_of_the_newest_run(database: str) -> None:
    for device in ((), ("--device", "h200"), ("--device", GPU)):
        found = asked("--db", database, "--shapes", PROBLEM.shape, *device)
        assert found["rates"] == f"measured 2026-02-03T00:00:00+00:00, {database}: read 4.5 TB/s, copy 3.6 TB/s"
        assert found["gflops"] == 60000
        assert found["memory_us"] == pytest.approx(PROBLEM.least_bytes / 4500e3, rel=1e-2)


def test_a_database_that_has_no_rates_is_refused(database: str, tmp_path: Path) -> None:
    shapes = ("--shapes", "8x8x8")
    said = refused("model", "--db", database, *shapes, "--device", "a100")
    assert f"no trial of the device 'NVIDIA A100-SXM4-80GB' in {database}: it has 'NVIDIA H200'" in said
    said = refused("model", "--db", database, *shapes, "--dtype", "bf16")
    assert "no peak rate of bf16 on h200" in said
    empty = tmp_path / "empty.db"
    database_of(empty)
    assert "tune first" in refused("model", "--db", str(empty), *shapes, "--device", "h200")
    assert "no database" in refused("model", "--db", str(tmp_path / "none.db"), *shapes)


def test_a_device_that_nobody_here_knows(path: Path) -> None:
    database_of(path, trial(), run=tuning_run("Some CPU", compute_capability=""))
    said = refused("model", "--db", str(path), "--shapes", "8x8x8")
    assert (
        "the limits of the device 'Some CPU' are unknown on this machine: run this on a machine with the device"
        in said
    )


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
