"""Queries for claims and trials of configurations.

Each statement is built once, since building it takes longer than SQLite needs to execute it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, delete, func, or_, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.row_values import problem_key
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.results.validation import checked
from tsm2_tune.tuner.search.resume import Retries

# Values of `claim.config` that are no configurations: the problem's finals; its whole search; an ended search, which
# is recorded while any run lives; and, without a problem, a living run.
FINAL, SEARCH, SEARCHED, RUN = "final", "search", "searched", "run"
NO_CONFIGURATIONS = (FINAL, SEARCH, SEARCHED, RUN)

_TRIAL, _PROBLEM, _CLAIM = schema.trial.c, schema.problem.c, schema.claim.c
_JUDGED = (_TRIAL.id, _TRIAL.outcome, _TRIAL.compile_limit_seconds, _TRIAL.run_limit_seconds, _TRIAL.total_seconds)
_OF_PROBLEM = and_(
    _TRIAL.device_name == bindparam("device_name"),
    *(_PROBLEM[name] == bindparam(name) for name in ("op", "dtype", "m", "n", "k")),
)
_TRIED = (
    select(*_JUDGED)
    .join(schema.problem)
    .where(_OF_PROBLEM, _TRIAL.config == bindparam("config"), _TRIAL.basis == bindparam("basis"))
)
_TRIALS = (
    select(func.count())
    .select_from(schema.trial.join(schema.problem))
    .where(_OF_PROBLEM, _TRIAL.family.in_(bindparam("families", expanding=True)))
    .where(_TRIAL.basis == bindparam("basis"), _TRIAL.superseded == 0)
)
_IS_CLAIM = and_(*(column == bindparam(column.name) for column in schema.claim.primary_key.columns))
_CLAIMED = select(_CLAIM.owner, _CLAIM.beat_at, _CLAIM.attempts).where(_IS_CLAIM)
_SETTLED = delete(schema.claim).where(_IS_CLAIM)


@cache
def _owners(families: tuple[str, ...]) -> Select[tuple[str, float, int]]:
    """Return the query for (owner, last heartbeat, number of claims) of each owner of claims on a problem's
    configurations.

    A claim is counted if its configuration belongs to one of these kernel families and its basis equals the bound
    parameter `basis`.
    """
    of_families = (_CLAIM.config.startswith(f"{name}:", autoescape=True) for name in families)
    is_counted = and_(_CLAIM.basis == bindparam("basis"), or_(_CLAIM.config.in_(families), *of_families))
    return (
        select(_CLAIM.owner, func.max(_CLAIM.beat_at), func.sum(case((is_counted, 1), else_=0)))
        .where(_CLAIM.device_name == bindparam("device_name"), _CLAIM.problem == bindparam("problem"))
        .where(_CLAIM.config.not_in(NO_CONFIGURATIONS))
        .group_by(_CLAIM.owner)
    )


def is_tried(
    connection: Connection, device_name: str, problem: Problem, config: str, basis: str, retries: Retries
) -> bool:
    """Return whether the configuration has a stored trial that need not be repeated."""
    key = {"device_name": device_name, **problem_key(problem), "config": config, "basis": basis}
    row = connection.execute(_TRIED, key).mappings().first()
    if row is None:
        return False
    with records.reading(row["id"]):
        values = checked(row, _JUDGED)
        outcome, limits = Outcome(values["outcome"]), records.limits(values)
        return not retries.includes(values["id"], outcome, limits, values["total_seconds"])


def trials(connection: Connection, device_name: str, problem: Problem, families: Collection[str], basis: str) -> int:
    """Return the number of trials of these kernel families with this basis (compiler, flags and L2 cache state).

    Trials whose kernel code has changed are not counted.
    """
    key = {"device_name": device_name, **problem_key(problem), "families": list(families), "basis": basis}
    return int(connection.execute(_TRIALS, key).scalar_one())


def owners(
    connection: Connection, device_name: str, problem: Problem, families: Collection[str], basis: str
) -> Sequence[Any]:
    """Return (owner, last heartbeat, number of claims) for each owner of claims on the problem's configurations.

    Only claims for these kernel families and this basis (compiler, flags and L2 cache state) are counted.
    """
    key = {"device_name": device_name, "problem": problem.text, "basis": basis}
    return connection.execute(_owners(tuple(families)), key).all()


def claim_of(connection: Connection, device_name: str, problem: Problem, config: str, basis: str) -> Any:
    """Return the columns (owner, beat_at, attempts) of the claim; None if there is no claim."""
    return connection.execute(_CLAIMED, _key(device_name, problem, config, basis)).first()


def settle(connection: Connection, device_name: str, problem: Problem, config: str, basis: str) -> None:
    """Delete the claim on the configuration, whichever run owns it, since its trial is being stored."""
    connection.execute(_SETTLED, _key(device_name, problem, config, basis))


def is_claim(device_name: str, problem: Problem, config: str, basis: str) -> ColumnElement[bool]:
    """Return the SQL condition that a row of `claim` has these key columns."""
    return and_(*(_CLAIM[name] == value for name, value in _key(device_name, problem, config, basis).items()))


def _key(device_name: str, problem: Problem, config: str, basis: str) -> dict[str, str]:
    return {"device_name": device_name, "problem": problem.text, "config": config, "basis": basis}
