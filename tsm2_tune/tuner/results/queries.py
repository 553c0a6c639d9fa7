"""Frequent queries of the store. Each query is built once and cached."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Float, Integer, Select, and_, bindparam, case, cast, func, literal, or_, select

from tsm2_tune.tuner.results import best_view, conditions
from tsm2_tune.tuner.results.records import PROBLEM_KEY
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Outcome

_TRIAL, _PROBLEM, _MEASURED = schema.trial.c, schema.problem.c, schema.measurement.c
_OWN = schema.trial.alias("own").c

# The problems of an element type and op that a search tuned in an L2 cache state.
SEARCHED = (
    select(func.min(_TRIAL.id).label("id"), *PROBLEM_KEY)
    .join(schema.problem, _PROBLEM.id == _TRIAL.problem_id)
    .where(conditions.OF_DEVICE, _TRIAL.cache == bindparam("cache"), _TRIAL.is_between == 0, conditions.IS_ALIKE)
    .group_by(_PROBLEM.id)
)
# The number of trials that a search counts, their seconds, and the end of the last trial of an ended search.
SEARCH_SUMMARY = select(
    func.min(_TRIAL.id).label("id"),
    func.count().label("trials"),
    func.coalesce(func.sum(_TRIAL.total_seconds), 0.0).label("total_seconds"),
    func.max(case((_TRIAL.search_ended.is_not(None), _TRIAL.ended_at))).label("ended_at"),
).where(conditions.TRIED)
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
    """Return the query for the rows of `best_view.winners`, sorted by device and problem.

    For each column in `given`, the query has a condition that the column equals a bound parameter of this name.
    """
    winners = best_view.winners(is_alike)
    view = winners.c
    query = select(winners).order_by(view.device, view.op, view.dtype, view.m, view.n, view.k)
    return query.where(*(view[name] == bindparam(name) for name in given))


@cache
def ill_marked(is_alike: bool | None) -> Select[Any]:
    """Return the query for the lowest id of a trial whose `is_between` is neither 0 nor 1."""
    among = () if is_alike is None else (best_view.condition(is_alike),)
    return select(func.min(_TRIAL.id)).where(_TRIAL.is_between.not_in((0, 1)), *among)


@cache
def outside_interval(is_alike: bool | None) -> Select[Any]:
    """Return the query for the lowest id of a trial with a median outside its confidence interval."""
    inside = and_(_MEASURED.low_us <= _MEASURED.median_us, _MEASURED.median_us <= _MEASURED.high_us)
    query = select(func.min(_MEASURED.trial_id)).where(~inside)
    if is_alike is None:
        return query
    return query.where(_MEASURED.trial_id.in_(select(_TRIAL.id).where(best_view.condition(is_alike))))


@cache
def current(is_alike: bool | None) -> Select[Any]:
    """Return the query for a device's trials whose kernel code has not changed, each with its newest median."""
    among = {None: (), False: (conditions.IS_PROBLEM,), True: (conditions.IS_ALIKE,)}[is_alike]
    return (
        select(schema.trial, *PROBLEM_KEY, _MEASURED.median_us)
        .join(schema.problem)
        .outerjoin(schema.measurement, conditions.is_newest(schema.measurement))
        .where(conditions.OF_DEVICE, _TRIAL.superseded == 0, *among)
        .order_by(_TRIAL.id)
    )


def _row_of() -> Select[Any]:
    """Return the query for one trial's row in the format of the view `best`. The bound parameter `trial_id` is the
    trial's id.

    The trial need not be a winner, but it must have a correct result. The column `ties` is always 1.
    """
    trial, problem, run, measured = (
        table.c for table in (schema.trial, schema.problem, schema.run, schema.measurement)
    )
    every, of_family = schema.measurement.alias().c, schema.trial.alias().c
    of_state = and_(every.trial_id == trial.id, every.cache == trial.cache)
    last = select(func.max(every.round)).where(of_state).scalar_subquery()
    newest = select(of_family.basis).where(
        of_family.device_name == trial.device_name,
        of_family.family == trial.family,
        of_family.cache == trial.cache,
        of_family.superseded == 0,
    )
    newest_basis = newest.order_by(of_family.stamp.desc(), of_family.basis.desc()).limit(1).scalar_subquery()
    columns: dict[str, Any] = {
        **best_view.SELECTED,
        "gbytes_per_s": cast(problem.least_bytes, Float) / measured.median_us * 1e-3,
        "percent_of_floor": 100 * measured.floor_us / measured.median_us,
        "ties": literal(1),
        "stale": cast(trial.basis != newest_basis, Integer),
        "verified_in_full": cast(trial.full_verdict.is_not(None), Integer),
    }
    return (
        select(*(columns[column.name].label(column.name) for column in best_view.best.c))
        .select_from(schema.trial)
        .join(schema.problem, problem.id == trial.problem_id)
        .join(schema.measurement, and_(measured.trial_id == trial.id, measured.round == last))
        .join(schema.run, run.id == measured.run_id)
        .where(trial.id == bindparam("trial_id"), trial.outcome == Outcome.OK.value, trial.verdict_correct == 1)
    )


ROW_OF = _row_of()
