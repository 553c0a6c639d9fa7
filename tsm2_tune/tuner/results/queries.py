"""Frequent queries of the store, and their conditions on rows of `trial` and `measurement`.

Each query is built only once, since building a query takes longer than SQLite needs to execute it. The conditions
contain bound parameters, whose values are returned by `values` and `values_tried`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Integer, Select, and_, bindparam, exists, func, or_, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import best_view, records
from tsm2_tune.tuner.results.records import PROBLEM_KEY
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Outcome

_TRIAL, _PROBLEM, _MEASURED = schema.trial.c, schema.problem.c, schema.measurement.c
_OWN = schema.trial.alias("own").c

IS_PROBLEM = and_(*(_PROBLEM[name] == bindparam(name) for name in ("op", "dtype", "m", "n", "k", "batch")))
IS_ALIKE = and_(
    *(_PROBLEM[name] == bindparam(name) for name in ("op", "dtype")),
    (_PROBLEM.batch == 1) == (bindparam("batch", type_=Integer()) == 1),
)
PROBLEM_ID = select(_PROBLEM.id).where(IS_PROBLEM).scalar_subquery()
# Conditions on a row of `trial`: it has the device; it has the device and the problem; it has one of the families;
# it has the basis and is not superseded; all of these.
OF_DEVICE = _TRIAL.device_name == bindparam("device_name")
OF_PROBLEM = and_(OF_DEVICE, _TRIAL.problem_id == PROBLEM_ID)
OF_FAMILIES = _TRIAL.family.in_(bindparam("families", expanding=True))
OF_BASIS = and_(_TRIAL.basis == bindparam("basis"), _TRIAL.superseded == 0)
TRIED = and_(OF_PROBLEM, OF_FAMILIES, OF_BASIS)
# Condition that a row of `measurement` is its trial's first measurement.
IS_FIRST = and_(_MEASURED.trial_id == _TRIAL.id, _MEASURED.round == 0)

_HEX, _HEX_DIGITS = "0123456789abcdef", 64  # the digits and the length of a SHA-256
_RIGHT = and_(_TRIAL.verdict_correct == 1, exists().where(IS_FIRST))
# Conditions that no valid trial meets. The outcome is checked when the row is read.
CONTRADICTIONS: dict[str, ColumnElement[bool]] = {
    "is ok, but has no right result or time": and_(_TRIAL.outcome == Outcome.OK.value, ~func.coalesce(_RIGHT, False)),
    "has a right result and is wrong": and_(
        _TRIAL.outcome == Outcome.WRONG_RESULT.value, _TRIAL.verdict_correct == 1
    ),
    "was behind and so not verified, but has a verdict": and_(
        _TRIAL.outcome == Outcome.BEHIND.value,
        or_(_TRIAL.verdict_correct.is_not(None), _TRIAL.full_verdict.is_not(None)),
    ),
    "has a basis that is not a digest, so no trial is compared with it": or_(
        func.length(_TRIAL.basis) != _HEX_DIGITS, func.ltrim(_TRIAL.basis, _HEX) != ""
    ),
    "has its time in another state of the L2": exists().where(
        _MEASURED.trial_id == _TRIAL.id, _MEASURED.round <= 0, _MEASURED.cache != _TRIAL.cache
    ),
    "was interrupted, but is stored": _TRIAL.outcome == Outcome.INTERRUPTED.value,
    "has a time by a run on another device": exists().where(
        _MEASURED.trial_id == _TRIAL.id,
        _MEASURED.run_id == schema.run.c.id,
        schema.run.c.device_name != _TRIAL.device_name,
    ),
}


def values(device_name: str, problem: Problem) -> dict[str, Any]:
    """Return the values of the bound parameters of the condition OF_PROBLEM (trials of a device and problem)."""
    return {"device_name": device_name, **records.problem_key(problem)}


def values_tried(device_name: str, problem: Problem, families: Collection[str], basis: str) -> dict[str, Any]:
    """Return the values of the bound parameters of the condition TRIED."""
    return {**values(device_name, problem), "families": list(families), "basis": basis}


def is_newest(measurement: FromClause) -> ColumnElement[bool]:
    """Return the condition that a row of `measurement` is the trial's latest in the trial's L2 cache state."""
    measured = schema.measurement.alias()
    of_trial = and_(measured.c.trial_id == _TRIAL.id, measured.c.cache == _TRIAL.cache)
    last = select(func.max(measured.c.round)).where(of_trial).scalar_subquery()
    return and_(measurement.c.trial_id == _TRIAL.id, measurement.c.round == last)


NEWEST_FINAL = func.max(_MEASURED.final_stamp)


def last_round(trials: ColumnElement[bool]) -> Select[Any]:
    measured = schema.measurement.join(schema.trial)
    return select(func.max(_MEASURED.round)).select_from(measured).where(trials)


# The problems of an element type and op that a search tuned in an L2 cache state.
SEARCHED = (
    select(func.min(_TRIAL.id).label("id"), *PROBLEM_KEY)
    .join(schema.problem, _PROBLEM.id == _TRIAL.problem_id)
    .where(OF_DEVICE, _TRIAL.cache == bindparam("cache"), _TRIAL.is_between == 0, IS_ALIKE)
    .group_by(_PROBLEM.id)
)
# All trials, each with its problem and the median of its first measurement.
LISTING = (
    select(schema.trial, *PROBLEM_KEY, _MEASURED.median_us)
    .join(schema.problem)
    .outerjoin(schema.measurement, IS_FIRST)
    .order_by(_TRIAL.id)
)
# The result of the full verification of a kernel and configuration, from trials with one of these bases.
_OWN_BASIS = select(_OWN.basis).where(_OWN.id == bindparam("trial_id")).scalar_subquery()
FULL_VERDICT = (
    select(_TRIAL.id, _TRIAL.full_verdict, _TRIAL.verified_code)
    .where(*(_TRIAL[name] == bindparam(name) for name in ("device_name", "source_digest", "config")))
    .where(or_(_TRIAL.basis == _OWN_BASIS, _TRIAL.basis.in_(bindparam("bases", expanding=True))))
    .where(_TRIAL.full_verdict.is_not(None))
    .order_by(_TRIAL.verified_code.is_(None))
    .limit(1)
)


@cache
def best(is_alike: bool | None, given: tuple[str, ...]) -> Select[Any]:
    """Return the query for the rows of `best_view.winners` with bound values in the columns `given`, sorted."""
    winners = best_view.winners(is_alike)
    view = winners.c
    query = select(winners).order_by(view.device, view.op, view.dtype, view.m, view.n, view.k, view.batch)
    return query.where(*(view[name] == bindparam(name) for name in given))


@cache
def hidden(is_alike: bool | None) -> tuple[tuple[Select[Any], str], ...]:
    """Return queries for the lowest id of a trial that other queries would skip, each with the reason."""
    among = () if is_alike is None else (best_view.condition(is_alike),)
    inside = and_(_MEASURED.low_us <= _MEASURED.median_us, _MEASURED.median_us <= _MEASURED.high_us)
    outside = select(func.min(_MEASURED.trial_id)).where(~inside)
    if among:
        outside = outside.where(_MEASURED.trial_id.in_(select(_TRIAL.id).where(*among)))
    unknown = or_(_TRIAL.is_between.not_in((0, 1)), _TRIAL.outcome.not_in([one.value for one in Outcome]))
    ill_marked = select(func.min(_TRIAL.id)).where(unknown, *among)
    return (outside, "a median is not in its interval"), (
        ill_marked,
        "it has an outcome or is_between of no known kind",
    )


@cache
def current(is_alike: bool | None) -> Select[Any]:
    """Return the query for a device's trials whose kernel code has not changed, each with its newest median."""
    among = {None: (), False: (IS_PROBLEM,), True: (IS_ALIKE,)}[is_alike]
    return (
        select(schema.trial, *PROBLEM_KEY, _MEASURED.median_us)
        .join(schema.problem)
        .outerjoin(schema.measurement, is_newest(schema.measurement))
        .where(OF_DEVICE, _TRIAL.superseded == 0, *among)
        .order_by(_TRIAL.id)
    )


# One trial's row in the format of the view `best`. The bound parameter `trial_id` is the trial's id.
ROW_OF = select(best_view.of_trial())
