"""The requests to a worker, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Measurement, Outcome, VendorMeasurement, Verdict
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import Check

WATCHED = "watched for races"  # Run.how of a kernel with race detection


@dataclass(frozen=True, slots=True)
class Attempt:
    """Load, verify and measure one kernel on one problem."""

    problem: Problem
    entry: Entry
    probes: tuple[Problem, ...]  # small problems on which the kernel is verified too
    seed: int
    effort: Effort
    cache: Cache = Cache.CLEAN  # the L2's state before each sample
    within_us: float | None = None  # the attempt ends if all of the first launches take longer; None: no limit
    support_path: str = ""  # the support kernels for the problem's type; "": those that the device was opened with


@dataclass(frozen=True, slots=True)
class FinalRound:
    """Time several kernels on one problem in turns, in each of these states of the L2."""

    problem: Problem
    entries: tuple[Entry, ...]
    seed: int
    effort: Effort
    vendor: bool = False  # whether the vendor's routines are timed with them
    caches: tuple[Cache, ...] = (Cache.CLEAN,)  # the last state decides the ranking, of the vendor's routines too
    support_path: str = ""  # as in Attempt


@dataclass(frozen=True, slots=True)
class FinalTimes:
    """The interleaved measurements of a final."""

    measurements: tuple[tuple[Measurement, ...], ...]  # by state, then by entry
    vendor: tuple[VendorMeasurement, ...] = ()  # one for each routine and state
    vendor_trouble: str = ""  # why the vendor was not timed although it was asked for


@dataclass(frozen=True, slots=True)
class Call:
    """A problem of a full verification, with its checks."""

    stage: str
    problem: Problem
    checks: tuple[Check, ...]
    padding: Mapping[str, int] = field(default_factory=dict)  # additional room for long lines, by operand
    is_large: bool = False  # may not fit in the device's memory
    splits: int | None = None  # splits of the launch; None: those of the configuration
    is_slow: bool = False  # a few blocks run long while most of a GPU is idle


@dataclass(frozen=True, slots=True)
class Run:
    """A compiled kernel with the calls to verify, and the problem of its repeated launches."""

    how: str  # how it was compiled, for messages
    entry: Entry
    bits: int  # index width
    calls: tuple[Call, ...]
    repeated: Problem | None = None
    launches: int = 0


@dataclass(frozen=True, slots=True)
class FullVerification:
    """Verify the kernel of a prospective winner by all of these runs."""

    problem: Problem
    runs: tuple[Run, ...]
    seed: int
    support_path: str = ""  # as in Attempt


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The outcome of an attempt, and what was found before it ended."""

    outcome: Outcome
    detail: str
    resources: LoadedResources | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    verified_code: str | None = None  # see Trial
