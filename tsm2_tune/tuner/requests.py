"""What a worker is asked for, and how that ends."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.loaded import Entry
from tsm2_tune.tuner.measure import Effort
from tsm2_tune.tuner.trial import LoadedResources, Measurement, Outcome, VendorMeasurement, Verdict


@dataclass(frozen=True, slots=True)
class Attempt:
    """Load, verify and measure one kernel on one problem."""

    problem: Problem
    entry: Entry
    probes: tuple[Problem, ...]  # small problems to verify it on besides
    seed: int
    effort: Effort


@dataclass(frozen=True, slots=True)
class Rematch:
    """Measure several kernels on one problem again, interleaved."""

    problem: Problem
    entries: tuple[Entry, ...]
    seed: int
    effort: Effort
    vendor: bool = False  # whether the vendor's routines are measured with them


@dataclass(frozen=True, slots=True)
class Rematched:
    """What was measured, interleaved."""

    measurements: tuple[Measurement, ...]  # one an entry, in their order
    vendor: tuple[VendorMeasurement, ...] = ()
    vendor_trouble: str = ""  # why there is none of the vendor's, where it was asked for


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, with whatever it reached."""

    outcome: Outcome
    detail: str
    resources: LoadedResources | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
