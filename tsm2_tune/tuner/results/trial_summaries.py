"""Summaries of stored trials, each from one row: for the search, for an audit and for a list of all trials."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Column, Float, Integer, Text

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.columns import nested_of
from tsm2_tune.tuner.results.records import (
    PROBLEM_KEY,
    check_interval,
    config_of,
    is_of_this_version,
    reading,
)
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Cache, LoadedResources, Outcome, TimeLimits, Verdict
from tsm2_tune.tuner.results.validation import Row, checked

MEDIAN_US = Column("median_us", Float)  # NULL if the trial was not measured
NEWEST = (Column("newest_us", Float), Column("newest_high_us", Float), Column("is_new", Integer))  # NULL likewise


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


@dataclass(frozen=True, slots=True)
class CurrentTrial:
    """The values of a current trial that an audit and an export need.

    A trial is current if its kernel code has not changed, and if it was made with the newest compiler and flags of
    its kernel family for the device and problem.
    """

    id: int
    problem: Problem
    config: KernelConfig
    cache: Cache  # the L2 cache state in which it was timed
    compiled: LoadedResources | None  # None if the kernel was not loaded
    spill_bytes: int | None
    median_us: float | None  # newest median; None if its result was wrong or it was not measured
    basis: str
    source_digest: str
    is_verified_in_full: bool
    is_between: bool  # whether no search tried it


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One line of the list of all trials. It contains the stored texts, so that unknown kernel families can be listed
    too.
    """

    id: int
    device: str
    problem: str
    config: str
    outcome: str
    cache: str  # the L2 cache state in which it was timed
    median_us: float | None  # median of its first measurement
    detail: str


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """The trials of a problem that a search counts."""

    trials: int
    total_seconds: float
    ended_at: str | None  # end of the last trial of a search that has ended, ISO 8601, UTC; None if none has


SUMMARY = (Column("trials", Integer), Column("total_seconds", Float), Column("ended_at", Text))


def search_summary(row: Row) -> SearchSummary:
    """Return the summary in the row of the query `queries.SEARCH_SUMMARY`."""
    with reading(row["id"]):
        return SearchSummary(**checked(row, SUMMARY))


def current_trial(row: Row) -> CurrentTrial:
    """Return the summary of a row of `trial` that is joined with its problem and with the median of its newest
    measurement.

    The configuration may be from another version of this program.
    """
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, *PROBLEM_KEY, MEDIAN_US])
        is_right = Outcome(values["outcome"]) is Outcome.OK and values["verdict_correct"] == 1
        return CurrentTrial(
            id=values["id"],
            problem=Problem(values["m"], values["n"], values["k"], values["dtype"], values["op"]),
            config=config_of(values["family"], values["config"], values["tunables"]),
            cache=Cache(values["cache"]),
            compiled=nested_of(LoadedResources, values),
            spill_bytes=values["spill_bytes"],
            median_us=values["median_us"] if is_right else None,
            basis=values["basis"],
            source_digest=values["source_digest"],
            is_verified_in_full=values["full_verdict"] is not None,
            is_between=bool(values["is_between"]),
        )


def trial_line(row: Row) -> TrialLine:
    """Return the line for a row of `trial` that is joined with its problem and with the median of its first
    measurement.
    """
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, *PROBLEM_KEY, MEDIAN_US])
        problem = Problem(values["m"], values["n"], values["k"], values["dtype"], values["op"])
        return TrialLine(
            id=values["id"],
            device=values["device_name"],
            problem=problem.text,
            config=values["config"],
            outcome=values["outcome"],
            cache=values["cache"],
            median_us=values["median_us"],
            detail=values["detail"],
        )


def stored_trial(row: Row, problem: Problem) -> StoredTrial:
    """Return the summary of a row of `trial`.

    The row must also contain the first measurement's median (`median_us`) and the values in NEWEST.
    """
    with reading(row["id"]):
        values = checked(row, [*schema.trial.columns, MEDIAN_US, *NEWEST])
        config = config_of(values["family"], values["config"], values["tunables"])
        if not is_of_this_version(config, problem):
            raise ValueError(f"{config.family} has no configuration {config.text} for {problem.text}")
        verdict, outcome = nested_of(Verdict, values), Outcome(values["outcome"])
        newest_us, newest_high_us = values["newest_us"], values["newest_high_us"]
        if outcome is Outcome.OK and (verdict is None or not verdict.correct or None in (newest_us, newest_high_us)):
            raise ValueError("it is ok, but has no right result or time")
        if newest_us is not None:
            check_interval(0.0, newest_us, newest_high_us)
        return StoredTrial(
            id=values["id"],
            config=config,
            outcome=outcome,
            median_us=values["median_us"],
            newest_us=newest_us,
            newest_high_us=newest_high_us,
            is_new=bool(values["is_new"]),
            total_seconds=values["total_seconds"],
            limits=nested_of(TimeLimits, values),
        )


def problem_of(row: Row) -> Problem:
    """Return the problem in a row of `trial` that is joined with its row of `problem`."""
    with reading(row["id"]):
        values = checked(row, PROBLEM_KEY)
        return Problem(values["m"], values["n"], values["k"], values["dtype"], values["op"])


def device_name(row: Row) -> str:
    """Return the device's name in a row of `trial`."""
    with reading(row["id"]):
        return str(checked(row, [schema.trial.c.device_name])["device_name"])


def age(row: Row) -> tuple[int, str]:
    """Return the key by which the rows of `trial` are sorted by age: time stamp and basis."""
    with reading(row["id"]):
        values = checked(row, [schema.trial.c.stamp, schema.trial.c.basis])
        return values["stamp"], values["basis"]


def config_text(row: Row) -> str:
    """Return the configuration's text in a row of `trial`."""
    with reading(row["id"]):
        return str(checked(row, [schema.trial.c.config])["config"])
