"""Tests of a module's choice for shapes that were not tuned, and of the basis that it states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.fabricated import (
    BASIS,
    GPU,
    device_array,
    final,
    host_run,
    imported,
    trial,
    tuning_run,
    vendor_measurement,
)
from tests.measured_plans.helpers import module_of_all
from tests.recording_driver import recording
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.families.stream_a import StreamAFmaConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.tuner.export.gathered import rates_of
from tsm2_tune.tuner.export.module import exported_module
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.slow

SMS = 132


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return a module of two shapes, the vendor slower at one and faster at the other, for a GPU and a host."""
    config = StreamAFmaConfig(64, 1, 8, 16, 4, 13, 1, 4)
    wide, tall = Problem(20480, 8, 20480, "f32"), Problem(20480, 8, 640, "f32")
    folder = tmp_path_factory.mktemp("module")
    with Store.open(folder / "results.db", create=True) as store:
        for run in (tuning_run(sms=SMS), replace(host_run(), sms=2)):
            for problem, us in ((wide, 380.0), (tall, 30.0)):
                store.add_trial(run, trial(us, config, problem=problem, source=render(problem, config)))
        for problem, us, vendor_us in ((wide, 380.0, 600.0), (tall, 30.0, 20.0)):
            vendor = (vendor_measurement(vendor_us),)
            store.add_final(
                tuning_run(sms=SMS), final((config, us), problem=problem, vendor=vendor), ("stream_a_fma",), BASIS
            )
        return imported(exported_module(store, store.best()), folder)


def test_a_choice_says_what_it_rests_on(module: ModuleType) -> None:
    exact = module.match(20480, 8, 20480, "f32", GPU)
    assert str(exact) == (
        f"{exact.winner.config} with 13 splits: tuned for this shape; with the L2 clean 380.0 us measured,"
        " cublasSgemm 600.0 us"
    )
    near = module.match(10000, 8, 20480, "f32", GPU)
    assert near.launch.blocks(10000, 8) >= 0.9 * SMS
    assert near.launch.splits != near.winner.launch.splits
    assert near.expected_us == pytest.approx(190, rel=0.15)
    assert near.vendor_us == pytest.approx(300, rel=0.15)
    assert str(near) == (
        f"{near.winner.config} with {near.launch.splits} splits: measured at 20480x8x20480;"
        f" with the L2 clean {near.expected_us:.1f} us predicted, from 380.0 us there"
        " and times at 1 other shape,"
        f" cuBLAS's gemm {near.vendor_us:.1f} us"
    )
    assert not near.is_vendor_chosen
    assert module.match(20480, 8, 700, "f32", GPU).is_vendor_chosen


def test_wide_c_is_computed_transposed_where_predicted_faster(tmp_path: Path) -> None:
    both_orders = module_of_all(tmp_path)  # kernels for column-major operands and one for row-major operands
    recording(both_orders)
    for m, n, op in ((16, 10**6, "ttt"), (16, 2 * 10**6, "ttt"), (20480, 8, "nn"), (10**6, 16, "nn")):
        shapes = enumerate(((m, 16), (16, n), (m, n)), start=1)
        found = both_orders.choice(*(device_array(one, at=at << 40) for at, one in shapes), fallback="error")
        assert (found.winner.op, found.is_transposed) == (op, op == "ttt")
        assert (f", by op ttt as the transposed product {n}x{m}x16: " in str(found)) == found.is_transposed


def test_on_a_host_a_launch_is_fitted_and_no_time_expected(module: ModuleType) -> None:
    found = module.match(10000, 8, 20480, "f32")
    assert (found.winner.device, found.expected_us, found.vendor_us) == ("Some CPU", None, None)
    assert found.launch.splits < 13  # two multiprocessors


def test_rates_are_the_medians_of_the_devices_runs(tmp_path: Path) -> None:
    with Store.open(tmp_path / "results.db", create=True) as store:
        old = tuning_run(started_at="2020-01-01T00:00:00+00:00")  # without multiprocessors, by an older tsm2-tune
        problem, config = Problem(512, 8, 512, "f32"), StreamAFmaConfig(64, 1, 8, 16, 4, 13, 1, 4)
        store.add_trial(old, trial(50.0, config, problem=problem, source=render(problem, config)))
        (record,) = store.winning(store.best()).values()
    run = record.run
    runs = [
        replace(
            run,
            started_at=f"2020-01-0{day}",
            ceilings=replace(run.ceilings, read_gbytes_per_s=rate, gflops=tuple(of.items())),
        )
        for day, rate, of in ((1, 4000.0, {"f32": 3.0}), (2, 1000.0, {"f32": 5.0, "f64": 7.0}), (3, 3000.0, {}))
    ]
    rates = rates_of([*runs, runs[1]])[GPU]
    assert rates.multiprocessors == PROFILES["h200"].sms == SMS
    assert (rates.read_gbytes_per_s, rates.gflops) == (3000.0, {"f32": 4.0, "f64": 7.0})
