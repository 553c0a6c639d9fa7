"""The median and its confidence interval; when measuring ends."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.call_log import logged
from tsm2_tune.tuner.device.cuda import MOST_FLUSHES, CudaDevice
from tsm2_tune.tuner.measure.timing import (
    FIRST_SAMPLES,
    MOST_FIRST_SAMPLES,
    Effort,
    measure,
    measure_interleaved,
    median_interval,
    quick_measure,
)
from tsm2_tune.tuner.results.trial import Cache


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
THREE: list[Any] = [lambda: 0, lambda: 1, lambda: 2]  # launches of which each says which it is
TWO = THREE[:2]


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


def test_steady_times_need_few_samples_and_noisy_ones_many() -> None:
    steady = measure(FakeDevice([10.0]), lambda: 0, FAST)  # type: ignore[arg-type]
    assert len(steady.samples_us) == FAST.min_samples
    assert steady.median_us == 10.0
    assert steady.sm_clock_mhz == 1980.0
    noisy = measure(FakeDevice([10.0, 20.0]), lambda: 0, FAST)  # type: ignore[arg-type]
    assert len(noisy.samples_us) == FAST.max_samples


def test_a_time_limit_ends_measuring() -> None:
    short = Effort(warm_up_seconds=0.0, limit_seconds=0.0)
    assert len(measure(FakeDevice([1.0, 2.0]), lambda: 0, short).samples_us) == 3  # type: ignore[arg-type]


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


def test_finalists_take_turns() -> None:
    device = FakeDevice([1.0], [2.0], [3.0])
    found = measure_interleaved(device, THREE, FAST)[Cache.CLEAN]  # type: ignore[arg-type]
    assert [one.median_us for one in found] == [1.0, 2.0, 3.0]
    assert device.order[:9] == [0, 1, 2, 1, 2, 0, 2, 0, 1]


def test_the_clock_is_read_however_early_sampling_ends() -> None:
    device, short = FakeDevice([1.0, 2.0], [2e6]), Effort(warm_up_seconds=0.0, limit_seconds=0.0)
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


def interleaved(device: FakeDevice, effort: Effort) -> Any:
    (found,) = measure_interleaved(cast(Any, device), [lambda: cast(Any, 0)], effort)[Cache.CLEAN]
    return found


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
    found = interleaved(device, ALL_SAMPLES)
    assert (len(found.samples_us), max(found.samples_us)) == (9, longest_us)
    assert (found.slowed, found.sm_clock_mhz, device.read) == (slowed, clock_mhz, read)


def test_a_trial_is_of_one_state() -> None:
    device = FakeDevice([10.0])
    assert measure(device, lambda: 0, FAST, Cache.WARM).cache is Cache.WARM  # type: ignore[arg-type]
    assert set(device.caches) == {Cache.WARM}


def test_each_takes_its_turn_in_every_state() -> None:
    device, states = FakeDevice([1.0], [2.0]), (Cache.CLEAN, Cache.DIRTY)
    found = measure_interleaved(device, TWO, FAST, states)  # type: ignore[arg-type]
    assert list(found) == [Cache.CLEAN, Cache.DIRTY]
    for cache, measured in found.items():
        assert [(one.median_us, one.cache) for one in measured] == [(1.0, cache), (2.0, cache)]
    of_turns = list(zip(device.caches, device.order, strict=True))
    first = [(Cache.CLEAN, 0), (Cache.CLEAN, 1), (Cache.DIRTY, 0), (Cache.DIRTY, 1)]
    assert of_turns[:8] == [*first, *first[1:], first[0]]
