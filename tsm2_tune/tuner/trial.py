"""The records of the tuner: what was compiled, what verification said, what was measured, how a try ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import DTYPES, Problem
from tsm2_tune.generator.render import KernelSource


class Outcome(StrEnum):
    """How a try ended, decided by where it failed and never by words in a message."""

    OK = "ok"
    COMPILE_FAILED = "compile-failed"  # the compiler refused the text
    LAUNCH_FAILED = "launch-failed"  # the driver refused to load or to start the kernel
    WRONG_RESULT = "wrong-result"  # verification rejected what it computed
    TIMED_OUT = "timed-out"  # compiling or running passed its limit
    CRASHED = "crashed"  # the kernel faulted, or the worker that ran it died


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel on disk, with what the compiler said it uses."""

    path: str  # cubin for a GPU, shared library for the host
    kernel: str  # entry point
    spill_bytes: int  # stores and loads of spilled registers, per thread; 0 where the compiler does not tell
    compile_seconds: float  # 0 when it came from the cache


@dataclass(frozen=True, slots=True)
class CompileFailure:
    """Why there is no binary."""

    timed_out: bool
    detail: str


@dataclass(frozen=True, slots=True)
class LoadedResources:
    """What a loaded kernel really uses, as the driver reports it."""

    registers: int
    local_bytes: int  # per thread: spills and arrays that are indexed at run time
    smem_bytes: int  # static plus dynamic, per block
    blocks_per_sm: int  # the driver's own occupancy


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of every element with the reference."""

    correct: bool
    worst_ratio: float  # largest error over its bound; infinite where a value is NaN or should be exact
    detail: str  # one sentence: the worst element where wrong, what was checked where right


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one kernel on one problem, in microseconds."""

    samples_us: tuple[float, ...]
    median_us: float
    low_us: float  # 95 % confidence interval of the median, by order statistics
    high_us: float
    sm_clock_mhz: float | None  # while measuring; None where the device does not tell


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates measured on the device in this run, in 1e9 a second."""

    read_gbytes_per_s: float  # streaming read
    copy_gbytes_per_s: float  # bytes read plus bytes written
    gflops: tuple[tuple[str, float], ...]  # dtype name -> rate of the fastest unit, two operations an FMA

    def floor_us(self, problem: Problem) -> float:
        """The least time for the problem in microseconds: the larger of its memory and arithmetic times.

        Memory: bytes read at the read ceiling plus bytes written at the rate w for which a copy, one byte
        written for each byte read, takes what was measured: 2/copy = 1/read + 1/w.
        """
        read, copy = self.read_gbytes_per_s, self.copy_gbytes_per_s
        us_per_written_kb = max(2 / copy - 1 / read, 1 / read)
        memory_us = (problem.read_bytes / read + problem.written_bytes * us_per_written_kb) * 1e-3
        arithmetic_us = problem.flops / dict(self.gflops)[problem.dtype_name] * 1e-3
        return max(memory_us, arithmetic_us)


def gflops_by_dtype(
    fma: Mapping[str, float], mma: Mapping[str, float] | None = None
) -> tuple[tuple[str, float], ...]:
    """Each element type's rate, from those of arithmetic in registers (`Dtype.rate_name`) and of the tensor cores.

    It is that of the faster way. Complex products are computed with real FMAs, or with the f64 tensor cores: c128's
    by four real products, c64's, whose digits f64 holds twice, by three. Four are counted either way.
    """
    mma = mma or {}
    ways = {"c128": mma.get("f64", 0.0), "c64": mma.get("f64", 0.0) * 4 / 3, "3xtf32": mma.get("tf32", 0.0)}
    rates = []
    for dtype in DTYPES.values():
        tensor_gflops = ways.get(dtype.name, mma.get(dtype.name, 0.0))
        rates.append((dtype.name, max(fma[dtype.rate_name], tensor_gflops) / dtype.tensor_products))
    return tuple(rates)


@dataclass(frozen=True, slots=True)
class Trial:
    """One try of one configuration on one problem."""

    problem: Problem
    config: KernelConfig
    basis: str  # digest of what would make this try stale: family template, compiler and version, flags
    source: KernelSource
    outcome: Outcome
    detail: str
    resources: LoadedResources | None
    spill_bytes: int | None
    guideline_broken: str | None  # the guideline that the real occupancy breaks, if any
    verdict: Verdict | None
    measurement: Measurement | None
    floor_us: float
    compile_seconds: float
    total_seconds: float  # since the trial before it ended, or the search began: together what a budget has spent


@dataclass(frozen=True, slots=True)
class Final:
    """The finalists of one problem measured again, interleaved."""

    problem: Problem
    measurements: tuple[tuple[KernelConfig, Measurement], ...]


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Which device, and with which tools: the facts that a number must travel with."""

    name: str  # results are pooled by this name
    uuid: str
    compute_capability: str  # "9.0"; "" for the host
    driver: str
    toolkit: str  # the compiler and its version
    flags: str  # compiler flags, as one line


@dataclass(frozen=True, slots=True)
class TuningRun:
    """One invocation on one device."""

    identity: DeviceIdentity
    ceilings: Ceilings
    seed: int
    version: str  # of tsm2-tune
    started_at: str  # ISO 8601, UTC
