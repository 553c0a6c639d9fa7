"""Requests to a worker, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.measure.timing import Effort
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Measurement, Outcome, VendorMeasurement, Verdict
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import Check

WATCHED = "watched for races"  # how a kernel is compiled


@dataclass(frozen=True, slots=True)
class Attempt:
    """Load, verify and measure one kernel on one problem."""

    problem: Problem
    entry: Entry
    probes: tuple[Problem, ...]  # small problems to verify it on besides
    seed: int
    effort: Effort
    cache: Cache = Cache.CLEAN  # before each sample
    # Where each of a few first launches takes longer than this, the attempt ends there. None: whatever it takes.
    within_us: float | None = None
    support_path: str = ""  # the tuner's own kernels of its type; "": those that the device was opened with


@dataclass(frozen=True, slots=True)
class Rematch:
    """Measure several kernels on one problem again, interleaved, in each of the states of the L2."""

    problem: Problem
    entries: tuple[Entry, ...]
    seed: int
    effort: Effort
    vendor: bool = False  # whether the vendor's routines are measured with them
    caches: tuple[Cache, ...] = (Cache.CLEAN,)  # the last one ranks, also the vendor's routines
    support_path: str = ""  # as of an Attempt


@dataclass(frozen=True, slots=True)
class Rematched:
    """The interleaved measurements of a final."""

    measurements: tuple[tuple[Measurement, ...], ...]  # of each state: one an entry, in their order
    vendor: tuple[VendorMeasurement, ...] = ()  # each once a state
    vendor_trouble: str = ""  # why there is none of the vendor's, where it was asked for


@dataclass(frozen=True, slots=True)
class Call:
    """A small problem with its checks."""

    stage: str
    problem: Problem
    checks: tuple[Check, ...]
    padding: Mapping[str, int] = field(default_factory=dict)  # of lines longer than other problems' checks make them
    is_large: bool = False  # so that a device may have no room for it
    splits: int | None = None  # splits of the launch; None: those of the configuration
    is_slow: bool = False  # so that a few blocks take long, while most of a GPU has nothing to do


@dataclass(frozen=True, slots=True)
class Run:
    """A compiled kernel, the calls that it makes, and the problem of which it makes many launches."""

    how: str  # it was compiled, to say of each call
    entry: Entry
    bits: int  # of its index
    calls: tuple[Call, ...]
    repeated: Problem | None = None
    launches: int = 0


@dataclass(frozen=True, slots=True)
class FullVerification:
    """A request: verify the kernel of a configuration that may win, in these runs."""

    problem: Problem
    runs: tuple[Run, ...]
    seed: int
    support_path: str = ""  # as of an Attempt


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, with whatever it reached."""

    outcome: Outcome
    detail: str
    resources: LoadedResources | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    verified_code: str | None = None  # of a full verification, see Trial
