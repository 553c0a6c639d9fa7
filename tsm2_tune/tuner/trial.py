"""The records of the tuner: what was compiled, what verification said, what was measured, how a try ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.plain import plain
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.roofline import Ceilings
from tsm2_tune.generator.source import KernelSource

MOST_TEXT = 1000  # characters of a name


def in_a_line(text: str) -> str:
    """The text as a name may be in a row: whatever cannot be printed is a space, and it is not too long."""
    return "".join(c if c.isprintable() else " " for c in text)[:MOST_TEXT]


class Outcome(StrEnum):
    """How a try ended, decided by where it failed and never by words in a message."""

    OK = "ok"  # right, and measured
    BEHIND = "behind"  # its first launches took so long that it cannot win: not verified, and not timed any further
    COMPILE_FAILED = "compile-failed"  # the compiler refused the text
    LAUNCH_FAILED = "launch-failed"  # the driver refused to load or to start the kernel
    WRONG_RESULT = "wrong-result"  # verification rejected what it computed
    TIMED_OUT = "timed-out"  # compiling or running passed its limit
    CRASHED = "crashed"  # the kernel faulted, or the worker that ran it died
    INTERRUPTED = "interrupted"  # the machine ended it, not the kernel: no verdict, and it is tried again


class Cache(StrEnum):
    """The state of the L2 when a timed kernel starts."""

    CLEAN = "clean"  # what ran last read more than the L2 holds: neither the operands nor anything to write back
    DIRTY = "dirty"  # what ran last wrote more than that: lines to write back, as in most programs
    WARM = "warm"  # what ran last was the kernel itself: operands that fit are there


IN_FINALS = (Cache.CLEAN, Cache.DIRTY)  # states that every final on a GPU measures
PREFERRED = (Cache.DIRTY, Cache.CLEAN, Cache.WARM)  # of a problem with winners in several states, the one to use


@dataclass(frozen=True, slots=True)
@plain
class Binary:
    """A compiled kernel on disk, with what the compiler said it uses."""

    path: str  # cubin for a GPU, shared library for the host
    kernel: str  # entry point
    spill_bytes: int  # stores and loads of spilled registers, per thread; 0 where the compiler does not tell
    compile_seconds: float  # 0 when it came from the cache


@dataclass(frozen=True, slots=True)
@plain
class CompileFailure:
    """Why there is no binary."""

    outcome: Outcome  # compile-failed, timed-out or interrupted
    detail: str


@dataclass(frozen=True, slots=True)
@plain
class LoadedResources:
    """The resources of a loaded kernel, as the driver reports them."""

    registers: int
    local_bytes: int  # per thread: spills and arrays that are indexed at run time
    smem_bytes: int  # static plus dynamic, per block
    blocks_per_sm: int  # the driver's own occupancy


@dataclass(frozen=True, slots=True)
@plain
class Verdict:
    """Comparison of every element with the reference."""

    correct: bool  # whether every element was within its bound
    worst_ratio: float  # largest error over its bound; infinite where a value is NaN or should be exact
    detail: str  # one sentence: the worst element where wrong, what was checked where right


@dataclass(frozen=True, slots=True)
@plain
class Measurement:
    """Times of one kernel on one problem, in microseconds."""

    samples_us: tuple[float, ...]  # in the order in which they were taken; none of a summary
    median_us: float  # of the samples
    low_us: float  # where the 95 % confidence interval of the median begins, by order statistics
    high_us: float  # where it ends
    sm_clock_mhz: float | None  # while measuring; None where the device does not tell
    cache: Cache = Cache.CLEAN  # the state of the L2 before each sample
    summary_of: int | None = None  # samples of which no more is known, as from a text; None where they are here
    slowed: int | None = None  # samples of a final that were taken while the clock had dropped; None: not counted


@dataclass(frozen=True, slots=True)
@plain
class TimeLimits:
    """How long a trial may take, in seconds, before it counts as timed out."""

    compile_seconds: float
    run_seconds: float  # for each stage: loading, verification, timing

    def exceed(self, others: TimeLimits | None) -> bool:
        """Whether what timed out under the others may end under these; so it may where the others are not known."""
        if others is None:
            return True
        return self.compile_seconds > others.compile_seconds or self.run_seconds > others.run_seconds


@dataclass(frozen=True, slots=True)
@plain
class Trial:
    """One try of one configuration on one problem."""

    problem: Problem  # what was computed
    config: KernelConfig  # how
    basis: str  # digest of what its time rests on besides the kernel: compiler, flags, state of the L2
    source: KernelSource  # the CUDA text, its entry point and its launch
    outcome: Outcome  # how it ended
    detail: str  # one sentence: what was checked, or what went wrong
    resources: LoadedResources | None  # of the loaded kernel; None where it was not loaded
    spill_bytes: int | None  # stores and loads of spilled registers, per thread; None where it was not compiled
    guideline_broken: str | None  # the guideline that the real occupancy breaks, if any
    verdict: Verdict | None  # None where it did not come to that
    measurement: Measurement | None  # None where it gave no right result
    floor_us: float  # the least time that the measured ceilings allow
    compile_seconds: float  # 0 where it came from the cache
    total_seconds: float  # since the trial before it ended, or the search began: together what a budget has spent
    limits: TimeLimits | None = None  # None of a trial from before they were stored
    full_verdict: str | None = None  # what the full verification of its kernel tried; None where there was none
    verified_code: str | None = None  # digests of the machine code that this is of, by each width of index
    cache: Cache = Cache.CLEAN  # what its measurement is of, or was to be
    is_between: bool = False  # of no search: tried to know what its kernel takes at a shape between tuned ones
    strategy: str | None = None  # of the search that tried it; None where none did, or where nobody stored it
    space_configurations: int | None = None  # in the space of that search; None as for the strategy
    hung: bool = False  # it timed out, and did not end on small problems either; not stored


@dataclass(frozen=True, slots=True)
@plain
class VendorMeasurement:
    """A routine of the vendor's on one problem, measured in turns with finalists, in one state of the L2."""

    library: str  # cuBLAS or cuBLASLt
    version: int  # as the library tells it: 130100 is 13.1.0
    routine: str  # cublasSgemm, or cublasLtMatmul #3: the third of the algorithms that its heuristic names
    verdict: Verdict  # by the bounds that hold for our kernels
    measurement: Measurement


@dataclass(frozen=True, slots=True)
@plain
class Final:
    """The finalists of one problem measured again, interleaved, in each of some states of the L2."""

    problem: Problem  # whose finalists they are
    measurements: tuple[tuple[KernelConfig, Measurement], ...]  # each finalist once a state
    vendor: tuple[VendorMeasurement, ...] = ()  # in the same rounds


@dataclass(frozen=True, slots=True)
@plain
class DeviceIdentity:
    """Which device, and with which tools: the facts that a number must travel with."""

    name: str  # results are pooled by this name
    uuid: str  # of the GPU; "" for the host
    compute_capability: str  # "9.0"; "" for the host
    driver: str  # its version; "host" for the host
    toolkit: str  # the compiler and its version
    flags: str  # compiler flags, as one line


@dataclass(frozen=True, slots=True)
@plain
class TuningRun:
    """One invocation on one device."""

    identity: DeviceIdentity
    ceilings: Ceilings
    seed: int
    version: str  # of tsm2-tune
    started_at: str  # ISO 8601, UTC
    sms: int | None = None  # multiprocessors; None of a run from before they were stored
