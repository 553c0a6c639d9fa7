"""Timing of kernels: warm up, prepare the L2 before each sample, and sample until the median is known precisely."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.results.trial import Cache, Measurement

CONFIDENCE = 0.95  # level of the median's confidence interval
# Limits of a quick measurement, which shows whether a kernel can win: minimum and maximum number of samples, seconds.
# For 359 kernels of 5 to 200 us on an H100, the fastest of these samples was at most 1.007 times the median of many.
FIRST_SAMPLES, MOST_FIRST_SAMPLES, FIRST_SECONDS = 3, 10, 0.002
# A sample of a final is "slowed" if the SM clock after it is below the kernel's median clock by more than this share
# (one step of an H100's clock is 15 of 1,980 MHz). Replacing slowed samples takes at most REPLACING of the limits.
CLOCK_MARGIN = 0.03
REPLACING = 0.5


@dataclass(frozen=True, slots=True)
class Effort:
    """Conditions that end the sampling of times: the median is known within `spread`, or a limit is reached."""

    spread: float = 0.005  # half-width of the median's confidence interval, relative to the median
    min_samples: int = 9
    max_samples: int = 100
    limit_seconds: float = 1.0
    warm_up_seconds: float = 0.02  # duration of untimed launches, at least one, before the first sample


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the lower and the upper end of its 95 % confidence interval.

    For every distribution, the number X of samples below the true median is binomial(count, 1/2). So the interval
    between the j-th smallest and the j-th largest sample contains the true median with probability 1 - 2 P(X < j).
    The interval has the largest j with a probability of at least 95 %. With fewer than six samples no j reaches 95 %,
    and the interval is the whole range. Source: David and Nagaraja, "Order Statistics", section 7.1.
    """
    ordered = sorted(samples)
    count = len(ordered)
    outside, j = 0.0, 0  # outside = P(X < j)
    while True:
        term = math.comb(count, j) / 2**count
        if 2 * (outside + term) > 1 - CONFIDENCE:
            break
        outside, j = outside + term, j + 1
    rank = max(j, 1)
    return statistics.median(ordered), ordered[rank - 1], ordered[count - rank]


def measurement(samples: Sequence[float], sm_clock_mhz: float | None, cache: Cache = Cache.CLEAN) -> Measurement:
    """Return a Measurement of samples in microseconds: their median and its confidence interval."""
    median, low, high = median_interval(samples)
    return Measurement(tuple(samples), median, low, high, sm_clock_mhz, cache)


def precise_enough(samples: Sequence[float], spread: float) -> bool:
    """Return whether both ends of the median's confidence interval are within `spread` of the median (relative)."""
    median, low, high = median_interval(samples)
    return max(high - median, median - low) <= spread * median


def warm_up(device: Device, launch: Callable[[], None], seconds: float) -> None:
    """Launch and synchronise repeatedly until `seconds` have passed, at least once."""
    end = time.perf_counter() + seconds
    while True:
        launch()
        device.synchronise()
        if time.perf_counter() >= end:
            return


def measure(device: Device, launch: Callable[[], None], effort: Effort, cache: Cache = Cache.CLEAN) -> Measurement:
    """Time `launch` until a condition of `effort` is met. The L2 is in state `cache` before each sample."""
    warm_up(device, launch, effort.warm_up_seconds)
    samples: list[float] = []
    end = time.perf_counter() + effort.limit_seconds
    clock = None
    while len(samples) < effort.max_samples:
        samples.append(device.time_us(launch, cache))
        if len(samples) == effort.min_samples:
            clock = device.sm_clock_mhz()
        if len(samples) < min(3, effort.min_samples):
            continue
        if time.perf_counter() >= end:
            break
        if len(samples) >= effort.min_samples and precise_enough(samples, effort.spread):
            break
    return measurement(samples, clock if clock is not None else device.sm_clock_mhz(), cache)


def quick_measure(device: Device, launch: Callable[[], None], cache: Cache = Cache.CLEAN) -> Measurement:
    """Return a measurement of a few samples after one untimed launch, to detect a kernel that is far too slow."""
    warm_up(device, launch, 0.0)
    samples: list[float] = []
    end = time.perf_counter() + FIRST_SECONDS
    while len(samples) < FIRST_SAMPLES or (len(samples) < MOST_FIRST_SAMPLES and time.perf_counter() < end):
        samples.append(device.time_us(launch, cache))
    return measurement(samples, None, cache)


def measure_interleaved(
    device: Device,
    launches: Sequence[Callable[[], None]],
    effort: Effort,
    caches: Sequence[Cache] = (Cache.CLEAN,),
) -> dict[Cache, tuple[Measurement, ...]]:
    """Time several launches, interleaved, in every L2 state, so that clock drift affects all launches equally.

    For each L2 state, return one measurement for each element of `launches`, in the same order. Each round of timing
    starts with a different launch. A launch that takes longer than `effort.limit_seconds` is timed once per state.
    Samples taken at a reduced SM clock are replaced by new samples while time remains. `Measurement.slowed` is the
    number of samples at a reduced clock that could not be replaced.
    """
    for launch in launches:
        warm_up(device, launch, effort.warm_up_seconds)
    timed = [_Timed(launch, cache) for cache in caches for launch in launches]
    start = time.perf_counter()
    end = start + effort.limit_seconds * len(timed)
    for turn in range(effort.max_samples):
        for step in range(len(timed)):
            which = timed[(turn + step) % len(timed)]
            if turn > 0 and which.samples[0] > effort.limit_seconds * 1e6:
                continue
            which.take(device)
        if turn + 1 < min(3, effort.min_samples):
            continue
        if time.perf_counter() >= end:
            break
        if turn + 1 >= effort.min_samples and all(precise_enough(one.samples, effort.spread) for one in timed):
            break
    _replace_slowed(device, timed, effort, end + REPLACING * (end - start))
    found = [one.measurement for one in timed]
    return {cache: tuple(found[at * len(launches) :][: len(launches)]) for at, cache in enumerate(caches)}


class _Timed:
    """A launch in one L2 state, with its samples and the SM clock after each sample."""

    def __init__(self, launch: Callable[[], None], cache: Cache) -> None:
        self._launch, self._cache = launch, cache
        self.samples: list[float] = []
        self._clocks: list[float | None] = []

    def take(self, device: Device) -> None:
        """Time the launch once more and store the sample."""
        self.samples.append(device.time_us(self._launch, self._cache))
        self._clocks.append(device.sm_clock_mhz())

    def replace(self, device: Device) -> None:
        """Time the launch again. If the clock is not reduced, replace the first slowed sample by the new sample."""
        at, usual = self.slowed[0], self._usual_mhz or 0.0
        us, mhz = device.time_us(self._launch, self._cache), device.sm_clock_mhz()
        if mhz is not None and mhz >= (1 - CLOCK_MARGIN) * usual:
            self.samples[at], self._clocks[at] = us, mhz

    @property
    def _usual_mhz(self) -> float | None:
        known = [mhz for mhz in self._clocks if mhz is not None]
        return statistics.median(known) if known else None

    @property
    def slowed(self) -> list[int]:
        """Indices of the samples after which the SM clock was reduced."""
        usual = self._usual_mhz or 0.0
        return [at for at, mhz in enumerate(self._clocks) if mhz is not None and mhz < (1 - CLOCK_MARGIN) * usual]

    @property
    def measurement(self) -> Measurement:
        slowed = None if self._usual_mhz is None else len(self.slowed)
        return replace(measurement(self.samples, self._usual_mhz, self._cache), slowed=slowed)


def _replace_slowed(device: Device, timed: Sequence[_Timed], effort: Effort, end: float) -> None:
    """Replace slowed samples until the time `end` (of time.perf_counter). Each launch gets one new sample in turn."""
    for _ in range(int(REPLACING * effort.max_samples)):
        slowed = [one for one in timed if one.slowed]
        if not slowed or time.perf_counter() >= end:
            return
        for one in slowed:
            one.replace(device)
