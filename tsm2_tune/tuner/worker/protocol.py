"""Messages between the tuner and its worker process: requests, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Measurement, Outcome, VendorMeasurement, Verdict
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import Check

WATCHED = "watched for races"  # value of Run.how for a kernel compiled with race detection


@dataclass(frozen=True, slots=True)
class Attempt:
    """Request to load, verify and time one kernel on one problem."""

    problem: Problem
    entry: Entry
    probes: tuple[Problem, ...]  # small problems on which the kernel is verified first
    seed: int
    effort: Effort
    cache: Cache = Cache.CLEAN  # state of the L2 cache before each sample
    within_us: float | None = None  # the attempt ends if every one of the first launches takes longer; None: no limit
    support_code: bytes = field(default=b"", repr=False)  # kernels that verify the type, if the worker lacks them


@dataclass(frozen=True, slots=True)
class FinalRound:
    """Request to time several kernels on one problem, interleaved, for each L2 state in `caches`."""

    problem: Problem
    entries: tuple[Entry, ...]
    seed: int
    effort: Effort
    vendor: bool = False  # whether the vendor's routines are timed too
    caches: tuple[Cache, ...] = (Cache.CLEAN,)  # the last state decides the ranking
    support_code: bytes = field(default=b"", repr=False)  # as in Attempt


@dataclass(frozen=True, slots=True)
class FinalTimes:
    """Result of a FinalRound: times of kernels that were measured interleaved."""

    measurements: tuple[tuple[Measurement, ...], ...]  # one tuple per L2 state, one measurement per kernel
    vendor: tuple[VendorMeasurement, ...] = ()  # one for each routine and state
    vendor_trouble: str = ""  # why the vendor's routines were not timed although the request wanted them


@dataclass(frozen=True, slots=True)
class Call:
    """One problem on which a full verification launches a kernel, with the checks of the result."""

    stage: str
    problem: Problem
    checks: tuple[Check, ...]
    padding: Mapping[str, int] = field(default_factory=dict)  # elements added to the leading dimension, by operand
    is_large: bool = False  # may not fit in the device's memory
    splits: int | None = None  # number of split-k slices; None: the configuration's
    is_slow: bool = False  # a few blocks run long while most of a GPU is idle


@dataclass(frozen=True, slots=True)
class Run:
    """One compiled kernel of a full verification, with the problems on which it is verified."""

    how: str  # how it was compiled, for messages
    entry: Entry
    bits: int  # index width
    calls: tuple[Call, ...]
    repeated: Problem | None = None  # problem of the repeated launches
    launches: int = 0  # number of repeated launches


@dataclass(frozen=True, slots=True)
class FullVerification:
    """Request to verify one kernel thoroughly before it becomes the winner."""

    problem: Problem
    runs: tuple[Run, ...]
    seed: int
    support_code: bytes = field(default=b"", repr=False)  # as in Attempt


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Outcome of an Attempt, with all results obtained before it ended."""

    outcome: Outcome
    detail: str
    resources: LoadedResources | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    verified_code: str | None = None  # as in Trial
