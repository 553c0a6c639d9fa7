"""Dataclasses of the tuner: compiled kernels, verification results, measurements, trials and tuning runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.scalars import plain
from tsm2_tune.generator.source import KernelSource

MOST_TEXT = 1000  # characters of a name


def in_a_line(text: str) -> str:
    """Return the text with spaces instead of unprintable characters, and at most MOST_TEXT characters long."""
    return "".join(c if c.isprintable() else " " for c in text)[:MOST_TEXT]


def count_text(count: int, noun: str) -> str:
    """Return a count in words, such as "1 shape" or "3 shapes"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Outcome(StrEnum):
    """How a trial (one configuration, compiled and executed once) ended. The failed step determines the outcome."""

    OK = "ok"  # correct, and timed
    BEHIND = "behind"  # its first launches were too slow to win: neither verified nor timed further
    COMPILE_FAILED = "compile-failed"  # the compiler refused the source
    LAUNCH_FAILED = "launch-failed"  # the driver refused to load or launch the kernel
    WRONG_RESULT = "wrong-result"  # verification rejected the result
    TIMED_OUT = "timed-out"  # compiling or running exceeded its time limit
    CRASHED = "crashed"  # the kernel faulted, or the worker that ran it died
    INTERRUPTED = "interrupted"  # ended by a cause outside the kernel: the next run repeats it


class Cache(StrEnum):
    """The state of the GPU's L2 cache when a timed kernel starts."""

    CLEAN = "clean"  # the last kernel read more than the L2 holds: it has neither the operands nor dirty lines
    DIRTY = "dirty"  # the last kernel wrote more than the L2 holds: it has lines to write back, as in most programs
    WARM = "warm"  # the last kernel was the timed one: the L2 has its operands as far as they fit


IN_FINALS = (Cache.CLEAN, Cache.DIRTY)  # states in which finalists are timed again on a GPU
PREFERRED = (Cache.DIRTY, Cache.CLEAN, Cache.WARM)  # the order of choice if a problem has winners in several states


@dataclass(frozen=True, slots=True)
@plain
class Binary:
    """A compiled kernel: its binary, and the numbers that the compiler reported."""

    code: bytes = field(repr=False)  # cubin for a GPU, shared library for the host
    kernel: str  # entry point
    spill_bytes: int  # stores and loads of spilled registers, per thread; 0 if the compiler does not report them
    compile_seconds: float  # 0 if it came from the cache


@dataclass(frozen=True, slots=True)
@plain
class CompileFailure:
    """The failure of a compilation."""

    outcome: Outcome  # compile-failed, timed-out or interrupted
    detail: str


@dataclass(frozen=True, slots=True)
@plain
class LoadedResources:
    """The resources of a loaded kernel, as the CUDA driver reports them."""

    registers: int
    local_bytes: int  # local memory per thread: spills, and arrays that are indexed at run time
    smem_bytes: int  # static plus dynamic, per block
    blocks_per_sm: int  # the driver's own occupancy


@dataclass(frozen=True, slots=True)
@plain
class Verdict:
    """The result of a verification: every element of C was compared with a reference result."""

    correct: bool  # whether every element was within its bound
    worst_ratio: float  # largest error over its bound; infinite for a wrong NaN or an inexact integer
    detail: str  # one sentence: the worst element if wrong, the checks if correct


@dataclass(frozen=True, slots=True)
@plain
class Measurement:
    """The measured times of one kernel on one problem, in microseconds."""

    samples_us: tuple[float, ...]  # in the order of measuring; empty for a summary
    median_us: float  # the median of the samples
    low_us: float  # lower end of the median's 95 % confidence interval, by order statistics
    high_us: float  # upper end
    sm_clock_mhz: float | None  # the SM clock while measuring; None if the device does not report it
    cache: Cache = Cache.CLEAN  # the L2 cache state before each sample
    summary_of: int | None = None  # number of samples, if they were not stored; None if `samples_us` has them
    slowed: int | None = None  # number of samples at a reduced SM clock; None if not counted


@dataclass(frozen=True, slots=True)
@plain
class TimeLimits:
    """The time limits of a trial, in seconds."""

    compile_seconds: float
    run_seconds: float  # for each stage: loading, verification, timing

    def exceed(self, others: TimeLimits | None) -> bool:
        """Return whether one of these limits is longer than the same limit in `others`. Return True if `others` is
        None.

        A trial that timed out under `others` may succeed under these limits.
        """
        if others is None:
            return True
        return self.compile_seconds > others.compile_seconds or self.run_seconds > others.run_seconds


@dataclass(frozen=True, slots=True)
@plain
class Trial:
    """The result of one configuration that was compiled, verified and timed for one problem."""

    problem: Problem  # the problem
    config: KernelConfig  # the configuration
    basis: str  # digest of compiler, flags and L2 cache state; only equal ones are compared
    source: KernelSource  # the CUDA source, its entry point and its launch
    outcome: Outcome  # how it ended
    detail: str  # one sentence: the checks that were made, or the failure
    resources: LoadedResources | None  # of the loaded kernel; None if it was not loaded
    spill_bytes: int | None  # stores and loads of spilled registers, per thread; None if it was not compiled
    guideline_broken: str | None  # the guideline that the loaded kernel's occupancy violates, if any
    verdict: Verdict | None  # None if it was not verified
    measurement: Measurement | None  # None if it gave no correct result
    floor_us: float  # the least time that the measured ceilings allow
    compile_seconds: float  # 0 if it came from the cache
    total_seconds: float  # time since the previous trial, or the start of the search; a budget counts these
    limits: TimeLimits | None = None  # None for older trials
    full_verdict: str | None = None  # the calls of the verification for other shapes; None if there was none
    verified_code: str | None = None  # digests of that verification's machine code, one for each index width
    cache: Cache = Cache.CLEAN  # the L2 cache state for its measurement
    is_between: bool = False  # no search tried it: its kernel was only timed at this untuned shape
    strategy: str | None = None  # strategy of the search; None if no search tried it, or if it was not stored
    space_configurations: int | None = None  # size of the search's space; None as for the strategy
    hung: bool = False  # it timed out for small problems too; not stored


@dataclass(frozen=True, slots=True)
@plain
class VendorMeasurement:
    """The time of a vendor library's routine for one problem, interleaved with the kernels."""

    library: str  # cuBLAS or cuBLASLt
    version: int  # the library's version number: 130100 is 13.1.0
    routine: str  # cublasSgemm, or cublasLtMatmul #3: the third algorithm of its heuristic
    verdict: Verdict  # by the error bounds for our kernels
    measurement: Measurement


@dataclass(frozen=True, slots=True)
@plain
class Final:
    """A final comparison: the fastest configurations (finalists) of one problem, timed again, interleaved, in one or
    more L2 cache states.
    """

    problem: Problem  # the finalists' problem
    measurements: tuple[tuple[KernelConfig, Measurement], ...]  # each finalist once for each L2 cache state
    vendor: tuple[VendorMeasurement, ...] = ()  # the vendor's routines in the same rounds


@dataclass(frozen=True, slots=True)
@plain
class DeviceIdentity:
    """The device, its driver, and the compiler: the facts on which a measured time depends."""

    name: str  # devices with the same name share results
    uuid: str  # the GPU's UUID; "" for the host
    compute_capability: str  # "9.0"; "" for the host
    driver: str  # the driver's version; "host" for the host
    toolkit: str  # the compiler and its version
    flags: str  # compiler flags, as one line


@dataclass(frozen=True, slots=True)
@plain
class TuningRun:
    """One execution of the tuner on one device."""

    identity: DeviceIdentity
    ceilings: Ceilings
    seed: int
    version: str  # tsm2-tune's version
    started_at: str  # ISO 8601, UTC
    sms: int | None = None  # multiprocessors; None for older runs
