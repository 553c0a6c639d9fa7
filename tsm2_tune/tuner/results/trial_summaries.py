"""Summaries of stored trials, each from one row: for the search, for an audit and for a list of all trials."""

from __future__ import annotations

from dataclasses import dataclass

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import domains
from tsm2_tune.tuner.results.columns import nested_of, record_of
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.records import PROBLEM_KEY, check_interval, config_in, is_of_this_version, reading
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.schema import column
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Outcome, TimeLimits, Verdict

MEDIAN_US = schema.nullable(schema.measurement.c.median_us)  # NULL if the trial was not measured
NEWEST = (  # NULL likewise
    column("newest_us", domains.TIME_US, nullable=True),
    column("newest_high_us", domains.QUANTITY, nullable=True),
    column("is_new", domains.FLAG, nullable=True),
)
_LISTED = (*schema.trial.columns, *PROBLEM_KEY, MEDIAN_US)


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """The values of a stored trial that the search needs."""

    id: int
    config: KernelConfig
    outcome: Outcome
    median_us: float | None  # median of its first measurement
    newest_us: float | None  # the median of its newest measurement
    newest_high_us: float | None  # upper end of that median's interval
    is_new: bool  # first measured after the problem's last final comparison
    total_seconds: float
    limits: TimeLimits | None  # None if they were not stored
    ended_at: str | None  # ISO 8601, UTC; None if its search has not ended


@dataclass(frozen=True, slots=True)
class CurrentTrial:
    """The values of a current trial (see `Store.current`) that an audit and an export need."""

    id: int
    problem: Problem
    config: KernelConfig
    cache: Cache  # the L2 cache state in which it was timed
    resources: LoadedResources | None  # None if the kernel was not loaded
    spill_bytes: int | None
    median_us: float | None  # newest median; None if its result was wrong or it was not measured
    basis: str
    source_digest: str
    is_verified_in_full: bool
    is_between: bool  # whether no search tried it


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One line of the list of all trials, with the stored texts: unknown families can be listed too."""

    id: int
    device: str
    problem: str
    config: str
    outcome: str
    cache: str  # the L2 cache state in which it was timed
    median_us: float | None  # median of its first measurement
    detail: str


def current_trial(row: Row) -> CurrentTrial:
    """Return the summary of a row of `trial` joined with its problem and newest median, maybe of another version."""
    with reading(row["id"]):
        values = checked(row, _LISTED)
        is_right = Outcome(values["outcome"]) is Outcome.OK and values["verdict_correct"] == 1
        return record_of(
            CurrentTrial,
            values,
            config=config_in(values),
            median_us=values["median_us"] if is_right else None,
            is_verified_in_full=values["full_verdict"] is not None,
        )


def trial_line(row: Row) -> TrialLine:
    """Return the line for a row of `trial` joined with its problem and the median of its first measurement."""
    with reading(row["id"]):
        values = checked(row, _LISTED)
        return record_of(TrialLine, values, device=values["device_name"], problem=record_of(Problem, values).text)


def stored_trial(row: Row, problem: Problem) -> StoredTrial:
    """Return the summary of a row of `trial` with its first median and the values in NEWEST."""
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, MEDIAN_US, *NEWEST])
        ended_at = None if values["search_ended"] is None else values["ended_at"]
        found = record_of(StoredTrial, values, config=config_in(values), ended_at=ended_at)
        if not is_of_this_version(found.config, problem):
            raise ValueError(f"{found.config.family} has no configuration {found.config.text} for {problem.text}")
        verdict, times = nested_of(Verdict, values), (found.newest_us, found.newest_high_us)
        if found.outcome is Outcome.OK and (verdict is None or not verdict.correct or None in times):
            raise ValueError("it is ok, but has no right result or time")
        if found.newest_us is not None:
            check_interval(0.0, found.newest_us, values["newest_high_us"])
        return found
