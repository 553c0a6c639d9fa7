"""SQL conditions on rows of the tables `trial` and `measurement`.

The conditions contain bound parameters. `values` and `values_tried` return the values of these parameters. Each query
is built only once, since building a query takes longer than SQLite needs to execute it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, func, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.storage import schema

_TRIAL, _PROBLEM, _MEASURED = schema.trial.c, schema.problem.c, schema.measurement.c

IS_PROBLEM = and_(*(_PROBLEM[name] == bindparam(name) for name in ("op", "dtype", "m", "n", "k")))
IS_ALIKE = and_(*(_PROBLEM[name] == bindparam(name) for name in ("op", "dtype")))
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


def values(device_name: str, problem: Problem) -> dict[str, Any]:
    """Return the values of the bound parameters of the condition OF_PROBLEM (trials of a device and problem)."""
    return {"device_name": device_name, **records.problem_key(problem)}


def values_tried(device_name: str, problem: Problem, families: Collection[str], basis: str) -> dict[str, Any]:
    """Return the values of the bound parameters of the condition TRIED.

    TRIED selects the trials of a device and problem that have one of the families and the basis, and are not
    superseded.
    """
    return {**values(device_name, problem), "families": list(families), "basis": basis}


def is_newest(measurement: FromClause) -> ColumnElement[bool]:
    """Return the SQL condition that a row of `measurement` is the trial's latest measurement in the trial's L2 cache
    state.
    """
    measured = schema.measurement.alias()
    of_trial = and_(measured.c.trial_id == _TRIAL.id, measured.c.cache == _TRIAL.cache)
    last = select(func.max(measured.c.round)).where(of_trial).scalar_subquery()
    return and_(measurement.c.trial_id == _TRIAL.id, measurement.c.round == last)


NEWEST_FINAL = func.max(_MEASURED.final_stamp)


def last_round(trials: ColumnElement[bool]) -> Select[Any]:
    measured = schema.measurement.join(schema.trial)
    return select(func.max(_MEASURED.round)).select_from(measured).where(trials)
