"""What a worker is asked for, and how that ends."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.loaded import Entry
from tsm2_tune.tuner.measure import Effort
from tsm2_tune.tuner.trial import Cache, LoadedResources, Measurement, Outcome, VendorMeasurement, Verdict


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


@dataclass(frozen=True, slots=True)
class Rematch:
    """Measure several kernels on one problem again, interleaved, in each of the states of the L2."""

    problem: Problem
    entries: tuple[Entry, ...]
    seed: int
    effort: Effort
    vendor: bool = False  # whether the vendor's routines are measured with them
    caches: tuple[Cache, ...] = (Cache.CLEAN,)  # the last one ranks, also the vendor's routines


@dataclass(frozen=True, slots=True)
class Rematched:
    """What was measured, interleaved."""

    measurements: tuple[tuple[Measurement, ...], ...]  # of each state: one an entry, in their order
    vendor: tuple[VendorMeasurement, ...] = ()  # each once a state
    vendor_trouble: str = ""  # why there is none of the vendor's, where it was asked for


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, with whatever it reached."""

    outcome: Outcome
    detail: str
    resources: LoadedResources | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
