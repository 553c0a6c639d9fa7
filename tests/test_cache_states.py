"""In which state of the L2 a time was measured: what brings it there, what is stored of it, and what tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.command import TUNE, run
from tests.databases import C128, C256
from tests.fabricated import (
    BASIS,
    FAKE_CODE,
    GPU,
    PROBLEM,
    host_run,
    measurement,
    plain_sql,
    trial,
    tuning_run,
    vendor_measurement,
)
from tests.on_host import ON_HOST
from tsm2_tune.generator.device.cards import PROFILES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.l2_state import L2_SIZES, L2Flush
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Final, Trial

pytestmark = pytest.mark.slow

RUN = tuning_run()
TODAY, DIRTY_TODAY = (("tsm2",), BASIS), (("tsm2",), "today, dirty")


def on_host(test: Any) -> Any:
    """The test with the marks of those that run kernels on the host."""
    for mark in ON_HOST:
        test = mark(test)
    return test


# --- What brings the L2 into a state ---


class Recording:
    """A device that has only memory and writes down what is started on it."""

    def __init__(self) -> None:
        self.limits = PROFILES["h200"]
        self.started: list[tuple[str, int]] = []  # kernels, and the bytes that their threads touch

    def allocate(self, size_bytes: int) -> Any:
        return SimpleNamespace(address=4096, size_bytes=size_bytes)

    def load(self, path: str, kernel: str) -> Any:
        def start(arguments: Any, *, blocks: int, threads: int) -> None:
            self.started.append((kernel, 64 * blocks * threads if kernel.startswith("flush") else 0))

        return start


@pytest.mark.parametrize(
    ("cache", "kernels"),
    [(Cache.CLEAN, ["flush_read"]), (Cache.DIRTY, ["flush_write"]), (Cache.WARM, ["the kernel", "rate_f32"])],
)
def test_what_ran_last_is_what_the_state_says(cache: Cache, kernels: list[str]) -> None:
    device = Recording()
    flush = L2Flush(cast(Device, device), "support")
    flush.bring(cache, lambda: device.started.append(("the kernel", 0)))
    assert [name for name, _ in device.started] == kernels
    for name, size_bytes in device.started:
        if name.startswith("flush"):
            assert L2_SIZES * device.limits.l2_bytes <= size_bytes < (L2_SIZES + 1) * device.limits.l2_bytes


@on_host
def test_a_flush_stays_in_its_buffer(support_path: str) -> None:
    """The host faults at the end of a buffer: every float4 is inside, also where the last block is not full."""
    device = HostDevice(support_path=support_path)
    device.limits = replace(device.limits, l2_bytes=350_007)
    flush, started = L2Flush(device, support_path), list[str]()
    written = np.zeros(flush.size_bytes // 4, np.float32)
    for cache in Cache:
        flush.bring(cache, lambda: started.append("the kernel"))
        device.synchronise()
        if cache is Cache.DIRTY:
            device.download(flush._buffer, written)
            assert (written == np.float32(1.23)).all()
    assert started == ["the kernel"]
    device.close()


def test_the_host_knows_one_state() -> None:
    gpu, host = (Target(spec, *[cast(Any, None)] * 3) for spec in ("0", "cpu"))
    assert gpu.caches(Cache.DIRTY, IN_FINALS) == (Cache.CLEAN, Cache.DIRTY)
    assert gpu.caches(Cache.CLEAN, IN_FINALS) == (Cache.DIRTY, Cache.CLEAN)
    assert gpu.caches(Cache.WARM, IN_FINALS) == (Cache.CLEAN, Cache.DIRTY, Cache.WARM)
    assert gpu.caches(Cache.DIRTY, ()) == (Cache.DIRTY,)
    for asked in Cache:
        assert gpu.cache(asked) is asked
        assert host.cache(asked) is Cache.CLEAN
        assert host.caches(asked, IN_FINALS) == (Cache.CLEAN,)


# --- What is stored ---


def timed(median_us: float, config: Any = C128, cache: Cache = Cache.DIRTY, **changes: Any) -> Trial:
    today = BASIS if cache is Cache.CLEAN else f"today, {cache}"
    found = replace(measurement(median_us), cache=cache)
    return trial(median_us, config, basis=today, measurement=found, cache=cache, **changes)


def in_both(*us: tuple[Any, float, float], vendor: tuple[float, float] | None = None) -> Final:
    """A final of these configurations, with what each takes with the L2 clean, and dirty."""
    measured = [
        (config, replace(measurement(times[place]), cache=cache))
        for place, cache in enumerate(IN_FINALS)
        for config, *times in us
    ]
    theirs = [vendor_measurement(one) for one in vendor or ()]
    in_states = zip(theirs, IN_FINALS, strict=False)
    return Final(
        PROBLEM,
        tuple(measured),
        tuple(replace(one, measurement=replace(one.measurement, cache=cache)) for one, cache in in_states),
    )


def test_times_in_different_cache_states_do_not_compete(store: Store) -> None:
    other = Problem(20480, 8, 20480, "f32")
    store.add_trial(RUN, timed(500, C128, Cache.DIRTY))
    store.add_trial(RUN, timed(400, C128, Cache.CLEAN))
    store.add_trial(RUN, timed(390, C256, Cache.CLEAN))
    store.add_trial(RUN, timed(300, C128, Cache.CLEAN, problem=other))
    store.add_trial(RUN, timed(200, C128, Cache.WARM, problem=other))
    found = {row.n: (row.cache, row.config, row.median_us, row.ties, row.stale) for row in store.best()}
    assert found == {16: ("dirty", C128.text, 500, 1, 0), 8: ("clean", C128.text, 300, 1, 0)}  # what programs see
    (row,) = store.best(cache=Cache.CLEAN, problem=PROBLEM)
    assert (row.cache, row.config, row.median_us, row.stale) == ("clean", C256.text, 390, 0)
    assert store.best(cache=Cache.WARM, problem=PROBLEM) == ()
    assert [one.config.text for one in store.history(GPU, PROBLEM, *DIRTY_TODAY).tried()] == [C128.text]
    assert (len(store.listing()), len(store.current(GPU))) == (5, 5)


def test_a_final_ranks_by_the_state_of_the_trials(store: Store) -> None:
    for config, us in ((C128, 500), (C256, 505)):
        store.add_trial(RUN, timed(us, config))
    assert store.add_final(RUN, in_both((C128, 440, 510), (C256, 450, 490), vendor=(600, 735)), *DIRTY_TODAY) == 2
    (row,) = store.best()
    assert (row.config, row.median_us, row.round, row.ties) == (C256.text, 490, 2, 1)
    assert (row.vendor_us, row.x_cublas) == (735, 1.5)
    assert (row.clean_us, row.clean_vendor_us, row.clean_x_cublas) == (450, 600, 600 / 450)
    assert (row.dirty_us, row.dirty_vendor_us, row.dirty_x_cublas) == (490, 735, 1.5)
    assert row.cublas_us == 735  # in the state that ranks
    tried = {
        one.config.text: (one.newest_us, one.is_new) for one in store.history(GPU, PROBLEM, *DIRTY_TODAY).tried()
    }
    assert tried == {C128.text: (510, False), C256.text: (490, False)}
    assert store.history(GPU, PROBLEM, *DIRTY_TODAY).final_configs() == {C128.text, C256.text}
    assert store.history(GPU, PROBLEM, *DIRTY_TODAY).vendor_of_last_final() == {("580.65", "cuBLAS", 130100)}
    assert [(one.cache, number) for number, one in store.trial(row.trial_id).rounds] == [
        (Cache.DIRTY, 0),
        (Cache.CLEAN, 1),
        (Cache.DIRTY, 2),
    ]
    assert store.add_final(RUN, in_both((C128, 440, 480), (C256, 450, 490)), *DIRTY_TODAY) == 4
    (row,) = store.best()
    assert (row.config, row.median_us, row.round) == (C128.text, 480, 4)
    assert (row.vendor_us, row.clean_us, row.clean_vendor_us) == (None, 440, None)


def test_a_line_about_a_winner_names_the_state(store: Store) -> None:
    store.add_trial(RUN, timed(500))
    store.add_trial(host_run(), trial(700, C128))
    host, gpu = sorted(store.best(), key=str, reverse=True)
    assert "500.0 us dirty, " in f"{gpu}{host}"
    assert "700.0 us, " in f"{gpu}{host}"  # an emulated kernel's time is of no L2


def test_a_kernel_is_verified_in_full_for_all_states(store: Store) -> None:
    store.add_trial(RUN, timed(400, C128, Cache.CLEAN, full_verdict="9 calls right"))
    store.add_trial(RUN, timed(500, C128, full_verdict=None))
    (row,) = store.best()
    assert row.verified_in_full == 0
    assert store.full_verdict(row, [BASIS, "today, dirty"]) == ("9 calls right", FAKE_CODE)
    assert store.full_verdict(row, ["yesterday", "today, dirty"]) is None


def test_each_states_times_are_beside_the_vendors_of_the_same_state(store: Store, path: Path) -> None:
    store.add_trial(RUN, timed(400, C128, Cache.CLEAN))
    store.add_final(RUN, in_both((C128, 410, 470), vendor=(615, 705)), *TODAY)
    (row,) = store.best()
    assert (row.cache, row.median_us, row.x_cublas, row.dirty_us, row.dirty_x_cublas) == ("clean", 410, 1.5, 470, 1.5)
    plain_sql(path, "UPDATE vendor_measurement SET cache = 'clean'")
    (row,) = store.best()
    assert (row.clean_vendor_us, row.dirty_vendor_us, row.dirty_x_cublas) == (615, None, None)


# --- What is said ---


@on_host
def test_on_the_host_a_state_has_no_effect_and_that_is_said(path: Path) -> None:
    said = run(*TUNE, "--db", str(path))
    assert (said.exit_code, "--cache" in said.output) == (0, False)
    said = run(*TUNE, "--db", str(path), "--cache", "dirty")
    assert said.exit_code == 0
    assert "--cache dirty has no effect here" in said.output
    assert "(0 new trials)" in said.output.replace("; ", ")")  # the same trials: nothing is measured otherwise
    with Store.open(path, create=False) as store:
        assert {row.cache for row in store.best()} == {"clean"}
