"""The performance model of the TSM2 paper (sections 3.6.2 and 3.6.3).

The paper's symbols are: t1, the threads of a block; t2, the columns of C that a thread accumulates; and t3, the
elements of A that a thread prefetches.

Units. The paper gives no unit for its concurrencies. In this module they count elements (a thread has t3 elements in
flight). So the throughputs in Little's law are elements of A, and FMAs, per clock per multiprocessor. A utilisation
is at most 1.

Constants. The paper measures latencies and the register overhead but does not print the results. In this module the
latencies come from published microbenchmarks (`architecture`), and the overhead comes from a compiler's report (C0,
below).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tsm2_tune.errors import InputError
from tsm2_tune.generator.device.architecture import FLOPS_PER_FMA, architecture_of, peak_gflops
from tsm2_tune.generator.device.cards import PUBLISHED_PEAKS, PublishedPeak
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.dtypes import FMA_DTYPES, dtype_named
from tsm2_tune.generator.problem import Problem

# C0, the registers of a thread besides those of the formula. For Algorithm 4 with t2 = t3 = 1, leading dimensions,
# alpha, beta and bounds checks, nvcc 13.0 uses 16 to 20 more (sm_75 and sm_90, f32 and f64).
OVERHEAD_REGISTERS = 20
LARGEST_PREFETCH = 32  # the largest t3; the paper gives no bound
STEP = 0.1  # step length of gradient descent, section 3.6.3
STOP = 1e-4  # stopping threshold of gradient descent, section 3.6.3
PREFERRED_T1 = 128  # t1 that the paper's profiling chose on K40c and P100, sections 4.2 and 4.4

Point = tuple[float, float]  # (t2, t3)
Bound = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The parameters that Algorithm 5 of the paper chooses for a problem, and the model's numbers for them."""

    t2_threshold: float  # as published
    t2_threshold_fma: float  # with an FMA consistently counted as two operations
    bound: Bound  # by the published threshold
    t1: int  # threads per block; the paper profiles it instead
    t2: int  # columns of C per thread
    t3: int  # elements of A that a thread prefetches
    threads_per_sm: int  # MaxOccup, rounded down to whole warps in each register partition
    memory_utilisation: float
    arithmetic_utilisation: float
    time_us: float  # the longer of the model's memory and arithmetic times


@lru_cache  # called a thousand times in a gradient descent
def peaks(limits: DeviceLimits, dtype_name: str) -> PublishedPeak:
    """Return the peak rates of a device for an element type.

    For the GPUs that the paper measured, return the peak rates that the paper states. For all others the arithmetic
    rate is multiprocessors x cores x clock x 2.
    """
    published = PUBLISHED_PEAKS.get((limits.name, dtype_named(dtype_name).name))
    if published is not None:
        return published
    return PublishedPeak(peak_gflops(limits, dtype_name), limits.dram_gbytes_per_s, "cores x clock x 2")


def registers_per_thread(dtype_name: str, *, t2: float, t3: float) -> float:
    """Return the paper's R_thread, the registers of a thread. Section 3.6.2.

    R_thread = (3 t2 + 2 t3) x bytes per element / bytes per register + C0
    """
    return (3 * t2 + 2 * t3) * dtype_named(dtype_name).registers + OVERHEAD_REGISTERS


def max_threads_per_sm(limits: DeviceLimits, dtype_name: str, *, t2: float, t3: float) -> float:
    """Return the paper's MaxOccup, the resident threads of a multiprocessor, not rounded. Section 3.6.2.

    MaxOccup = min(HW_MAX, R_SM / R_thread, S_SM / S_thread). S_thread = t2 x bytes per element: a block of t1 threads
    has a t1 x t2 tile of B in shared memory.
    """
    return min(
        limits.threads_per_sm,
        limits.registers_per_sm / registers_per_thread(dtype_name, t2=t2, t3=t3),
        limits.smem_bytes_per_sm / (t2 * dtype_named(dtype_name).element_bytes),
    )


def whole_threads_per_sm(limits: DeviceLimits, dtype_name: str, *, t2: float, t3: float) -> int:
    """Return MaxOccup, rounded down to equally many whole warps in each register partition, at least one.

    The paper does not say how to round MaxOccup. A multiprocessor allocates registers to warps within partitions.
    Most chips have four partitions, so the result is usually a multiple of 128 threads.
    """
    unit = limits.warp_threads * architecture_of(limits.compute_capability).register_partitions
    return max(1, math.floor(max_threads_per_sm(limits, dtype_name, t2=t2, t3=t3)) // unit) * unit


def memory_utilisation(limits: DeviceLimits, dtype_name: str, *, t2: float, t3: float) -> float:
    """Return the paper's Util_mem, the utilisation of the memory bandwidth, at most 1. Section 3.6.2.

    By Little's law it is the number of elements of A in flight, divided by latency x throughput.
    """
    bytes_per_clock = peaks(limits, dtype_name).gbytes_per_s * 1e3 / (limits.sms * limits.sm_clock_mhz)
    elements_per_clock = bytes_per_clock / dtype_named(dtype_name).element_bytes
    latency = architecture_of(limits.compute_capability).memory_latency_clocks
    in_flight = max_threads_per_sm(limits, dtype_name, t2=t2, t3=t3) * t3
    return min(1.0, in_flight / (latency * elements_per_clock))


def arithmetic_utilisation(limits: DeviceLimits, dtype_name: str, *, t2: float, t3: float) -> float:
    """Return the paper's Util_comp, the utilisation of the FMA units, at most 1. Section 3.6.2.

    By Little's law it is the number of independent FMAs, divided by latency x throughput.
    """
    flops_per_clock = peaks(limits, dtype_name).gflops * 1e3 / (limits.sms * limits.sm_clock_mhz)
    latency = architecture_of(limits.compute_capability).fma_latency_clocks(dtype_name)
    concurrent = max_threads_per_sm(limits, dtype_name, t2=t2, t3=t3) * t3 * t2 * dtype_named(dtype_name).parts
    return min(1.0, concurrent / (latency * flops_per_clock / FLOPS_PER_FMA))


def t2_threshold(limits: DeviceLimits, dtype_name: str) -> float:
    """Return the paper's t2_threshold, above which the inner loop is compute-bound. Section 3.6.2.

    t2_threshold = Peak Perf. / Peak Band. x bytes per element, as published. This formula counts t2 operations per
    element of A, although Peak Perf. counts an FMA as two operations. A complex product counts as four real products.
    """
    peak = peaks(limits, dtype_name)
    dtype = dtype_named(dtype_name)
    return peak.gflops / peak.gbytes_per_s * dtype.element_bytes / dtype.parts**2


def t2_threshold_fma(limits: DeviceLimits, dtype_name: str) -> float:
    """Return half of `t2_threshold`: the threshold if an FMA counts as two operations everywhere in the formula.

    The paper counts an FMA as two operations in Peak Perf., but as one operation per element of A.
    """
    return t2_threshold(limits, dtype_name) / FLOPS_PER_FMA


def memory_time_us(problem: Problem, limits: DeviceLimits, *, t2: float, t3: float) -> float:
    """Return the paper's memory time in microseconds. Algorithm 5, lines 2 to 4.

    The time is m k (n / t2) x bytes per element / (Peak Band. x Util_mem). Line 12 of the algorithm prints n n k / t2
    where it must mean m k n / t2.
    """
    read_bytes = problem.m * problem.k * (problem.n / t2) * problem.dtype.element_bytes
    utilisation = memory_utilisation(limits, problem.dtype_name, t2=t2, t3=t3)
    return read_bytes / (peaks(limits, problem.dtype_name).gbytes_per_s * 1e3 * utilisation)


def arithmetic_time_us(problem: Problem, limits: DeviceLimits, *, t2: float, t3: float) -> float:
    """Return the paper's arithmetic time in microseconds. Algorithm 5, lines 7 to 9.

    The time is 2 m k n / (Peak Perf. x Util_comp). For complex numbers it is 8 m k n / (Peak Perf. x Util_comp).
    """
    utilisation = arithmetic_utilisation(limits, problem.dtype_name, t2=t2, t3=t3)
    return problem.flops / (peaks(limits, problem.dtype_name).gflops * 1e3 * utilisation)


@dataclass(frozen=True, slots=True)
class Region:
    """The points (t2, t3) that a gradient descent may reach.

    The points fulfil least_t2 <= t2 <= most_t2, 1 <= t3 <= LARGEST_PREFETCH, and t2_weight t2 + t3_weight t3 <= most.
    `most` is the limit of a thread's registers, without the overhead C0.
    """

    least_t2: float
    most_t2: float
    t2_weight: float
    t3_weight: float
    most: float

    @classmethod
    def of(cls, limits: DeviceLimits, dtype_name: str, *, least_t2: float, most_t2: float) -> Region | None:
        """Return the region with t2 in this range and R_thread within a thread's limit; None if the region is empty.

        The paper limits registers per multiprocessor, but not per thread. A kernel that exceeds the limit per thread
        spills registers.
        """
        registers = dtype_named(dtype_name).registers
        most = architecture_of(limits.compute_capability).registers_per_thread - OVERHEAD_REGISTERS
        region = cls(least_t2, most_t2, 3 * registers, 2 * registers, most)
        region = cls(least_t2, min(most_t2, region.t2_within(1)), 3 * registers, 2 * registers, most)
        return region if region.least_t2 <= region.most_t2 else None

    def t2_within(self, t3: float) -> float:
        """Return the largest t2 that the registers allow with this t3."""
        return (self.most - self.t3_weight * t3) / self.t2_weight

    def projected(self, point: Point) -> Point:
        """Return the point projected into the region."""
        t2, t3 = point
        over = self.t2_weight * t2 + self.t3_weight * t3 - self.most
        if over > 0:
            scale = over / (self.t2_weight**2 + self.t3_weight**2)
            t2, t3 = t2 - scale * self.t2_weight, t3 - scale * self.t3_weight
        t2 = min(max(t2, self.least_t2), self.most_t2)
        most_t3 = (self.most - self.t2_weight * t2) / self.t3_weight
        return t2, min(max(t3, 1.0), LARGEST_PREFETCH, most_t3)

    def rounded(self, point: Point) -> tuple[int, int]:
        """Return (t2, t3) rounded to integers.

        t2 is at most `most_t2`. t3 is at most as large as the registers allow with this t2.
        """
        t2 = max(1, min(math.floor(point[0] + 0.5), math.floor(self.most_t2)))
        most_t3 = math.floor((self.most - self.t2_weight * t2) / self.t3_weight)
        return t2, max(1, min(math.floor(point[1] + 0.5), most_t3))


def descended(time: Callable[[Point], float], region: Region) -> Point:
    """Return the end point of gradient descent on (t2, t3) from (1, 1). Algorithm 5, section 3.6.3.

    The paper gives the start, the step 0.1 and the threshold 1e-4, but not the unit of the time. So this function
    minimizes log(time), which has the same minima and no unit. A step has length 0.1 along the negative gradient and
    is projected into the region. The length is halved until the step reduces log(time) by at least 1e-4. The descent
    ends if no step of length 1e-4 or more reduces it by so much.
    """
    point = region.projected((1.0, 1.0))
    value = math.log(time(point))
    while True:
        slopes = _slopes(time, region, point)
        norm = math.hypot(*slopes)
        if norm == 0:
            return point
        step = STEP
        while step >= STOP:
            moved = region.projected((point[0] - step * slopes[0] / norm, point[1] - step * slopes[1] / norm))
            gain = value - math.log(time(moved))
            if gain >= STOP:
                break
            step /= 2
        else:
            return point
        point, value = moved, value - gain


def _slopes(time: Callable[[Point], float], region: Region, point: Point) -> tuple[float, float]:
    """Return the gradient of log(time) along t2 and t3, by central differences within the region.

    A component is 0 if the region allows no step along it. The differences span a whole step, since log(time) has
    kinks.
    """
    slopes = []
    for axis in ((1.0, 0.0), (0.0, 1.0)):
        ends = [
            region.projected((point[0] + side * STEP / 2 * axis[0], point[1] + side * STEP / 2 * axis[1]))
            for side in (-1, 1)
        ]
        span = (ends[1][0] - ends[0][0]) * axis[0] + (ends[1][1] - ends[0][1]) * axis[1]
        rise = math.log(time(ends[1])) - math.log(time(ends[0]))
        slopes.append(rise / span if span > 0 else 0.0)
    return slopes[0], slopes[1]


def unmodelled(problem: Problem) -> str | None:
    """Return why the paper's model does not cover the problem; None if the model covers it."""
    if problem.dtype_name not in FMA_DTYPES:
        return f"it covers fused multiply-adds, in {', '.join(FMA_DTYPES)}"
    if problem.is_batched:
        return "it covers single products"
    return None if problem.op == "nn" else "it covers A B with all three matrices column-major, op nn"


@lru_cache(maxsize=1024)  # called twice for each problem of a plan
def choose(problem: Problem, limits: DeviceLimits) -> ModelChoice:
    """Return the t1, t2 and t3 that the paper's Algorithm 5 chooses, with the model's numbers for them.

    Two lines of the algorithm are corrected: line 9 has the bound t2 <= n instead of k, and line 12 has m k n / t2.

    For all latencies, t2 x MaxOccup never decreases with t2, so the memory branch always ends at the largest t2 of
    its range. At t2_threshold the memory branch predicts half the time of the arithmetic branch, since the published
    threshold counts an FMA inconsistently. So for a compute-bound problem the memory branch wins if its Util_mem is
    above one half.

    The choices that the paper states in sections 4.2 and 4.4 differ from these: t3 = 4 for n = 16 on K40c; t2 = 8 on
    M40, where the threshold gives 6; and t2 = 4 on P100, which is not the largest t2 of its range.

    Raise InputError for a problem that the model does not cover.
    """
    why_not = unmodelled(problem)
    if why_not is not None:
        raise InputError(f"TSM2's model does not cover {problem.text}: {why_not}")
    threshold = t2_threshold(limits, problem.dtype_name)
    bound: Bound = "memory" if problem.n <= threshold else "compute"

    def memory_time(point: Point) -> float:
        return memory_time_us(problem, limits, t2=point[0], t3=point[1])

    def arithmetic_time(point: Point) -> float:
        return arithmetic_time_us(problem, limits, t2=point[0], t3=point[1])

    branches = [(memory_time, 1.0, min(problem.n, max(1.0, threshold)))]
    if bound == "compute":
        branches.append((arithmetic_time, max(1.0, threshold), float(problem.n)))
    ends = []
    for time, least_t2, most_t2 in branches:
        region = Region.of(limits, problem.dtype_name, least_t2=least_t2, most_t2=most_t2)
        if region is not None:
            point = descended(time, region)
            # The threshold does not bound the rounded t2, which may exceed it by less than 1.
            wide = Region.of(limits, problem.dtype_name, least_t2=1.0, most_t2=problem.n) or region
            ends.append((time(point), wide.rounded(point)))
    _, (t2, t3) = min(ends)
    return _choice(problem, limits, bound, t2, t3)


def _choice(problem: Problem, limits: DeviceLimits, bound: Bound, t2: int, t3: int) -> ModelChoice:
    dtype_name = problem.dtype_name
    threads = whole_threads_per_sm(limits, dtype_name, t2=t2, t3=t3)
    return ModelChoice(
        t2_threshold=t2_threshold(limits, dtype_name),
        t2_threshold_fma=t2_threshold_fma(limits, dtype_name),
        bound=bound,
        t1=min(t1_candidates(limits, threads), key=lambda t1: (abs(t1 - PREFERRED_T1), -t1)),
        t2=t2,
        t3=t3,
        threads_per_sm=threads,
        memory_utilisation=memory_utilisation(limits, dtype_name, t2=t2, t3=t3),
        arithmetic_utilisation=arithmetic_utilisation(limits, dtype_name, t2=t2, t3=t3),
        time_us=max(memory_time_us(problem, limits, t2=t2, t3=t3), arithmetic_time_us(problem, limits, t2=t2, t3=t3)),
    )


def t1_candidates(limits: DeviceLimits, threads_per_sm: int) -> tuple[int, ...]:
    """Return the block sizes that the paper profiles: multiples of a warp that divide MaxOccup. Section 3.6.3."""
    largest = min(threads_per_sm, limits.threads_per_block)
    return tuple(
        t1 for t1 in range(limits.warp_threads, largest + 1, limits.warp_threads) if threads_per_sm % t1 == 0
    )
