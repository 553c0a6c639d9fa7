"""Conditions on rows of `trial` and `measurement`, of which the store's queries are made."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, func, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner import rows, schema


def is_problem(columns: Any, problem: Problem) -> ColumnElement[bool]:
    return and_(*(columns[name] == value for name, value in rows.problem_key(problem).items()))


def problem_id(problem: Problem) -> ColumnElement[int]:
    return select(schema.problem.c.id).where(is_problem(schema.problem.c, problem)).scalar_subquery()


def of_problem(device_name: str, problem: Problem) -> ColumnElement[bool]:
    """Whether a row of `trial` is of this device and problem."""
    return and_(schema.trial.c.device_name == device_name, schema.trial.c.problem_id == problem_id(problem))


def of_kernels(families: Collection[str], basis: str) -> ColumnElement[bool]:
    """Whether a row of `trial` is of these families and this basis, and its kernel is made so still."""
    trial = schema.trial.c
    return and_(trial.family.in_(list(families)), trial.basis == basis, trial.superseded == 0)


def tried(device_name: str, problem: Problem, families: Collection[str], basis: str) -> ColumnElement[bool]:
    """The same of this device and problem alone."""
    return and_(of_problem(device_name, problem), of_kernels(families, basis))


def is_first() -> ColumnElement[bool]:
    """Whether a row of `measurement` is the first of a row of `trial`."""
    return and_(schema.measurement.c.trial_id == schema.trial.c.id, schema.measurement.c.round == 0)


def is_newest(measurement: FromClause) -> ColumnElement[bool]:
    """Whether a row of `measurement`, or of an alias of it, is the last of a row of `trial` in that one's state."""
    measured, trial = schema.measurement.alias(), schema.trial.c
    of_trial = and_(measured.c.trial_id == trial.id, measured.c.cache == trial.cache)
    last = select(func.max(measured.c.round)).where(of_trial).scalar_subquery()
    return and_(measurement.c.trial_id == schema.trial.c.id, measurement.c.round == last)


def last_round(trials: ColumnElement[bool]) -> Select[Any]:
    measured = schema.measurement.join(schema.trial)
    return select(func.max(schema.measurement.c.round)).select_from(measured).where(trials)
