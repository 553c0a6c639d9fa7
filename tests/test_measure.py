"""When measuring ends, and in which state of the L2 a time is measured, stored and shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.call_log import logged
from tests.command import TUNE, completed, run
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
from tsm2_tune.tuner.device.cuda import MOST_FLUSHES, CudaDevice
from tsm2_tune.tuner.device.emulator.device import HostDevice
from tsm2_tune.tuner.device.interface import Device, LaunchConfig
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.measure.l2_state import L2_SIZES, L2Flush
from tsm2_tune.tuner.measure.timing import (
    FIRST_SAMPLES,
    MOST_FIRST_SAMPLES,
    Effort,
    measure,
    measure_interleaved,
    median_interval,
    quick_measure,
)
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Final, Trial


@pytest.mark.parametrize(
    ("count", "rank"),  # largest j with 2 P(X < j) <= 5 % for X binomial(count, 1/2): any table of the sign test
    [(5, 1), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6), (25, 8), (50, 18), (100, 40)],
)
def test_the_interval_is_that_of_the_sign_test(count: int, rank: int) -> None:
    samples = [float(value) for value in range(count, 0, -1)]
    assert median_interval(samples) == ((count + 1) / 2, float(rank), float(count + 1 - rank))


class FakeDevice:
    """Takes its times from a list; the launches tell which list."""

    def __init__(self, *times: Any) -> None:
        self.times = [itertools.cycle(ts) for ts in times]
        self.order: list[int] = []
        self.caches: list[Cache] = []

    def time_us(self, launch: Callable[[], Any], cache: Cache) -> float:
        which = launch()
        self.order.append(which)
        self.caches.append(cache)
        return float(next(self.times[which]))

    def synchronise(self) -> None: ...

    def sm_clock_mhz(self) -> float | None:
        return 1980.0


FAST = Effort(warm_up_seconds=0.0)
TWO: list[Any] = [lambda: 0, lambda: 1]  # launches of which each says which it is


class LateHost:
    """Fake of PyCUDA: the GPU is busy for a turn with each flush, and the host needs some turns to launch."""

    def __init__(self, turns: int) -> None:
        self.turns, self.flushes, self.calls = turns, 0, list[str]()
        self.Error = ZeroDivisionError
        self.device = CudaDevice.__new__(CudaDevice)
        self.device.drv, self.device._flush = self, cast(Any, SimpleNamespace(bring=self._bring))
        self.device._start, self.device._end = self._event("start"), self._event("end")

    def _event(self, name: str) -> Any:
        return SimpleNamespace(
            record=lambda: self.calls.append(f"record {name}"),
            query=lambda: logged(self.calls, f"query {name}", self.flushes < self.turns),
            synchronize=lambda: None,
            time_since=lambda other: 1e-3 * (10.0 if self.flushes >= self.turns else 500.0),
        )

    def _bring(self, cache: Cache, launch: Callable[[], Any]) -> None:
        self.flushes += 1

    def time_us(self) -> float:
        return self.device.time_us(lambda: self.calls.append("launch"))


@pytest.mark.parametrize(("turns", "flushes"), [(0, 1), (1, 1), (2, 3), (4, 7), (10**9, 2 * MOST_FLUSHES - 1)])
def test_a_sample_with_the_hosts_time_in_it_is_taken_again(turns: int, flushes: int) -> None:
    host = LateHost(turns)
    assert host.time_us() == (10.0 if turns < 10**9 else 500.0)
    assert host.flushes == flushes
    assert host.calls[:4] == ["record start", "launch", "query start", "record end"]


def test_noisy_times_need_many_samples_until_a_limit_ends_measuring() -> None:
    short = replace(FAST, limit_seconds=0.0)
    for times, effort, count in (([10.0], FAST, FAST.min_samples), ([10.0, 20.0], FAST, FAST.max_samples),
                                 ([1.0, 2.0], short, 3)):  # fmt: skip
        device = FakeDevice(times)
        measured = measure(device, lambda: 0, effort, Cache.WARM)  # type: ignore[arg-type]
        assert (len(measured.samples_us), measured.sm_clock_mhz, measured.cache) == (count, 1980.0, Cache.WARM)
        assert set(device.caches) == {Cache.WARM}


@pytest.mark.parametrize(("seconds", "count"), [(0.01, FIRST_SAMPLES), (0.0, MOST_FIRST_SAMPLES)])
def test_a_first_look_has_more_samples_of_what_is_fast(
    seconds: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(0.0, seconds)
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    device = FakeDevice([100.0, 90.0, 110.0])
    looked = quick_measure(device, lambda: 0, Cache.DIRTY)  # type: ignore[arg-type]
    assert len(looked.samples_us) == count
    assert (min(looked.samples_us), looked.cache, set(device.caches)) == (90.0, Cache.DIRTY, {Cache.DIRTY})


def test_the_clock_is_read_however_early_sampling_ends() -> None:
    device, short = FakeDevice([1.0, 2.0], [2e6]), replace(FAST, limit_seconds=0.0)
    found = measure_interleaved(device, TWO, short)[Cache.CLEAN]  # type: ignore[arg-type]
    assert [(len(one.samples_us), one.sm_clock_mhz) for one in found] == [(1, 1980.0), (1, 1980.0)]
    fast, slow = measure_interleaved(device, TWO, FAST)[Cache.CLEAN]  # type: ignore[arg-type]
    assert (len(fast.samples_us), len(slow.samples_us)) == (FAST.max_samples, 1)  # who takes long has one turn
    assert (slow.median_us, slow.sm_clock_mhz) == (2e6, 1980.0)


class Throttled(FakeDevice):
    """The clock after each sample is the next of a list; a time is longer by as much as the clock is lower."""

    def __init__(self, clocks: list[float | None]) -> None:
        super().__init__([10.0])
        self.clocks, self.now = iter(clocks), 1980.0
        self.read = 0

    def time_us(self, launch: Callable[[], Any], cache: Cache) -> float:
        clock = next(self.clocks, 1980.0)
        self.now = 0.0 if clock is None else clock
        return super().time_us(launch, cache) * (1980.0 / self.now if self.now else 1.0)

    def sm_clock_mhz(self) -> float | None:
        self.read += 1
        return self.now or None


ALL_SAMPLES = Effort(warm_up_seconds=0.0, min_samples=9, max_samples=9, limit_seconds=60.0)


@pytest.mark.parametrize(
    ("clocks", "longest_us", "slowed", "clock_mhz", "read"),
    [
        ([1980.0, 1200.0, 1980.0, 1200.0], 10.0, 0, 1980.0, 9 + 2),  # the slow ones are replaced
        ([1980.0, 1965.0, 1950.0] * 3, 10.0 * 1980 / 1950, 0, 1965.0, 9),  # it wavers by a step
        ([*[1980.0] * 6, *[1200.0] * 90], 10.0 * 1980 / 1200, 3, 1980.0, 9 + 4),  # in half of the turns
        ([None] * 9, 10.0, None, None, 9),
    ],
)
def test_samples_of_a_clock_that_had_dropped_are_replaced_or_counted(
    clocks: list[float | None], longest_us: float, slowed: int | None, clock_mhz: float | None, read: int
) -> None:
    device = Throttled(clocks)
    (found,) = measure_interleaved(cast(Any, device), [lambda: cast(Any, 0)], ALL_SAMPLES)[Cache.CLEAN]
    assert (len(found.samples_us), max(found.samples_us)) == (9, longest_us)
    assert (found.slowed, found.sm_clock_mhz, device.read) == (slowed, clock_mhz, read)


def test_each_takes_its_turn_in_every_state() -> None:
    device, states = FakeDevice([1.0], [2.0]), (Cache.CLEAN, Cache.DIRTY)
    found = measure_interleaved(device, TWO, FAST, states)  # type: ignore[arg-type]
    assert list(found) == [Cache.CLEAN, Cache.DIRTY]
    for cache, measured in found.items():
        assert [(one.median_us, one.cache) for one in measured] == [(1.0, cache), (2.0, cache)]
    of_turns = list(zip(device.caches, device.order, strict=True))
    first = [(Cache.CLEAN, 0), (Cache.CLEAN, 1), (Cache.DIRTY, 0), (Cache.DIRTY, 1)]
    assert of_turns[:8] == [*first, *first[1:], first[0]]


# --- States of the L2 ---


def on_host(test: Any) -> Any:
    """The test with the marks of those that run kernels on the host."""
    for mark in ON_HOST:
        test = mark(test)
    return test


RUN = tuning_run()
TODAY, DIRTY_TODAY = (("tsm2",), BASIS), (("tsm2",), "today, dirty")


class Recording:
    """A device that has only memory and writes down what is started on it."""

    def __init__(self) -> None:
        self.limits = PROFILES["h200"]
        self.started: list[tuple[str, int]] = []  # kernels, and the bytes that their threads touch

    def allocate(self, size_bytes: int) -> Any:
        return SimpleNamespace(address=4096, size_bytes=size_bytes)

    def load(self, path: str, kernel: str) -> Any:
        def start(arguments: Any, config: LaunchConfig) -> None:
            touched_bytes = 64 * config.blocks * config.threads
            self.started.append((kernel, touched_bytes if kernel.startswith("flush") else 0))

        return start


@pytest.mark.parametrize(
    ("cache", "kernels"),
    [(Cache.CLEAN, ["flush_read"]), (Cache.DIRTY, ["flush_write"]), (Cache.WARM, ["the kernel", "rate_f32"])],
)
def test_what_ran_last_is_what_the_state_says(cache: Cache, kernels: list[str]) -> None:
    device = Recording()
    flush = L2Flush(cast(Device, device), b"support")
    flush.bring(cache, lambda: device.started.append(("the kernel", 0)))
    assert [name for name, _ in device.started] == kernels
    for name, size_bytes in device.started:
        if name.startswith("flush"):
            assert L2_SIZES * device.limits.l2_bytes <= size_bytes < (L2_SIZES + 1) * device.limits.l2_bytes


@on_host
def test_a_flush_stays_in_its_buffer(support_code: bytes) -> None:
    """The host faults at the end of a buffer: every float4 is inside, also where the last block is not full."""
    device = HostDevice(support_code=support_code)
    device.limits = replace(device.limits, l2_bytes=350_007)
    flush, started = L2Flush(device, support_code), list[str]()
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
    states = list(enumerate(IN_FINALS))
    measured = [(one, replace(measurement(times[at]), cache=cache)) for at, cache in states for one, *times in us]
    theirs = [(vendor_measurement(us), cache) for us, cache in zip(vendor or (), IN_FINALS, strict=False)]
    in_states = (replace(one, measurement=replace(one.measurement, cache=cache)) for one, cache in theirs)
    return Final(PROBLEM, tuple(measured), tuple(in_states))


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
    store.add_trial(host_run(), trial(700, C128))
    lines = "".join(map(str, store.best()))
    assert "500.0 us dirty, " in lines
    assert "700.0 us, " in lines  # an emulated kernel's time is of no L2


def test_a_kernel_is_verified_in_full_for_all_states(store: Store) -> None:
    store.add_trial(RUN, timed(400, C128, Cache.CLEAN, full_verdict="9 calls right"))
    store.add_trial(RUN, timed(500, C128, full_verdict=None))
    (row,) = store.best()
    assert row.verified_in_full == 0
    assert store.full_verdict(row, [BASIS, "today, dirty"]) == ("9 calls right", FAKE_CODE)
    assert store.full_verdict(row, ["yesterday", "today, dirty"]) is None


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


def test_each_states_times_are_beside_the_vendors_of_the_same_state(store: Store, path: Path) -> None:
    store.add_trial(RUN, timed(400, C128, Cache.CLEAN))
    store.add_final(RUN, in_both((C128, 410, 470), vendor=(615, 705)), *TODAY)
    (row,) = store.best()
    assert (row.cache, row.median_us, row.x_cublas, row.dirty_us, row.dirty_x_cublas) == ("clean", 410, 1.5, 470, 1.5)
    plain_sql(path, "UPDATE vendor_measurement SET cache = 'clean'")
    (row,) = store.best()
    assert (row.clean_vendor_us, row.dirty_vendor_us, row.dirty_x_cublas) == (615, None, None)


@on_host
def test_on_the_host_a_state_has_no_effect_and_that_is_said(path: Path) -> None:
    said = run(*TUNE, "--db", str(path))
    assert (said.exit_code, "--cache" in said.output) == (0, False)
    said = completed(*TUNE, "--db", str(path), "--cache", "dirty")
    assert "--cache dirty has no effect here" in said.output
    assert "(0 new trials)" in said.output.replace("; ", ")")  # the same trials: nothing is measured otherwise
    with Store.open(path, create=False) as store:
        assert {row.cache for row in store.best()} == {"clean"}
