"""A trial's row as `best` has those of winners: by its newest measurement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Float, Integer, Select, and_, cast, func, literal, select

from tsm2_tune.tuner import schema
from tsm2_tune.tuner.trial import Outcome


def row_of(trial_id: int) -> Select[Any]:
    """The query: columns as schema.best has them, of a trial that is ok and verified; it ties with nobody."""
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
    newest_basis = newest.order_by(of_family.ended_at.desc(), of_family.id.desc()).limit(1).scalar_subquery()
    columns = {
        **{column.name: column for column in (*trial, *problem, *run, *measured)},
        "device": trial.device_name,
        "cache": trial.cache,
        "parameters": trial.tunables,
        "floor_us": measured.floor_us,
        "gbytes_per_s": cast(problem.least_bytes, Float) / measured.median_us * 1e-3,
        "percent_of_floor": 100 * measured.floor_us / measured.median_us,
        "ties": literal(1),
        "stale": cast(trial.basis != newest_basis, Integer),
        "verified_in_full": cast(trial.full_verdict.is_not(None), Integer),
        "trial_id": trial.id,
        "run_id": measured.run_id,
        "tuned_at": run.started_at,
    }
    return (
        select(*(columns[column.name].label(column.name) for column in schema.best.c))
        .select_from(schema.trial)
        .join(schema.problem, problem.id == trial.problem_id)
        .join(schema.measurement, and_(measured.trial_id == trial.id, measured.round == last))
        .join(schema.run, run.id == measured.run_id)
        .where(trial.id == trial_id, trial.outcome == Outcome.OK.value, trial.verdict_correct == 1)
    )
