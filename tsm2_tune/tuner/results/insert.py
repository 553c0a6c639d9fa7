"""Insert trials and measurements. If a row exists already, it is used or replaced, and not inserted a second time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from tsm2_tune.errors import StoreError, shown
from tsm2_tune.tuner.results import forget, loader, logical_clock, queries, records, vendor_measurements
from tsm2_tune.tuner.results.columns import fields_of, nested_of, values_of
from tsm2_tune.tuner.results.domains import COUNT, checked
from tsm2_tune.tuner.results.storage import paragraphs, schema
from tsm2_tune.tuner.results.trial import Cache, Final, Measurement, Outcome, TimeLimits, Trial, TuningRun
from tsm2_tune.tuner.results.upsert import add_times, added, found, found_or_added
from tsm2_tune.tuner.search.resume import Retries

_LAST_ROUND = queries.last_round(queries.OF_PROBLEM).add_columns(queries.NEWEST_FINAL)
_FINALIST = select(schema.trial.c.id).where(queries.TRIED, schema.trial.c.config == bindparam("config"))


class Kept(NamedTuple):
    """The trial that is stored. `is_new` is false if an earlier one of the configuration was kept instead."""

    trial_id: int
    is_new: bool


def add_trials(
    connection: Connection, run_id: int, device_name: str, trials: Sequence[Trial], retries: Retries | None
) -> list[Kept]:
    """Store the trials, but keep an earlier trial of a configuration unless it is repeated. Return those stored."""
    problems = dict.fromkeys(trial.problem for trial in trials)
    ids = {one: found_or_added(connection, schema.problem, records.problem_values(one)) for one in problems}
    return [
        _add_trial(connection, run_id, device_name, ids[trial.problem], trial, retries or Retries(trial.limits))
        for trial in trials
    ]


def _add_trial(
    connection: Connection, run_id: int, device_name: str, problem_id: int, trial: Trial, retries: Retries
) -> Kept:
    paragraphs.add_sources(connection, [trial.source.digest], lambda _: records.source_values(trial.source))
    key = {"device_name": device_name, "problem_id": problem_id, "config": trial.config.text, "basis": trial.basis}
    values = {
        "run_id": run_id,
        **key,
        **records.trial_values(trial),
        "stamp": logical_clock.next_trial_stamp(connection),
    }
    trial_id = found(connection, schema.trial, key)
    if trial_id is None:
        trial_id = added(connection, schema.trial, values)
    elif not _replace(connection, trial_id, values, retries):
        return Kept(trial_id, is_new=False)
    if trial.measurement is not None:
        add_measurement(connection, trial_id, trial.measurement, run_id=run_id, round_=0, floor_us=trial.floor_us)
    return Kept(trial_id, is_new=True)


def _replace(connection: Connection, trial_id: int, values: dict[str, Any], retries: Retries) -> bool:
    """Replace the values of the trial's row and delete its measurements, if `retries` says that it is repeated.

    Return whether it was. After a time-out the row gets the longer limits, and the sum of both durations.
    """
    with records.reading(trial_id):
        old = checked(loader.row_of(connection, schema.trial, trial_id), schema.trial.columns)
        limits, seconds = nested_of(TimeLimits, old), old["total_seconds"]
        if not retries.includes(trial_id, Outcome(old["outcome"]), limits, seconds):
            return False
    if old["outcome"] == Outcome.TIMED_OUT:
        values["total_seconds"] += seconds
        for name in (one.column for one in fields_of(TimeLimits) if values[one.column] is not None):
            values[name] = max(values[name], old[name] or 0.0)
    forget.remove_measurements(connection, [trial_id])
    connection.execute(update(schema.trial).where(schema.trial.c.id == trial_id).values(values))
    return True


def add_measurement(
    connection: Connection,
    trial_id: int,
    measured: Measurement,
    *,
    run_id: int,
    round_: int,
    floor_us: float,
    of_final: logical_clock.FinalStamp | None = None,
) -> None:
    """Insert the measurement and its samples."""
    place = {"trial_id": trial_id, "run_id": run_id, "round": round_, "floor_us": floor_us}
    of = of_final._asdict() if of_final else {}
    values = place | values_of(measured, schema.measurement) | of
    add_times(connection, schema.measurement, schema.sample, [(values, measured.samples_us)])


def add_final(
    connection: Connection, place: str, run_id: int, run: TuningRun, final: Final, tried: Mapping[str, Any]
) -> int:
    """Insert the measurements of a final comparison. Return the number of its last round.

    The comparison has one round for each L2 cache state. `tried` contains the parameters of queries.TRIED, the
    query for a configuration's trial. Raise StoreError if a configuration has no trial, or if a stored round is not a
    number.
    """
    previous, stamp = connection.execute(_LAST_ROUND, queries.values(run.identity.name, final.problem)).one()
    if previous is not None and not (isinstance(previous, int) and COUNT.contains(previous + 1)):
        raise StoreError(f"{place} has a final of the round {shown(previous)}: restore a copy of it")
    round_ = 1 if previous is None else 1 + previous
    floor_us = run.ceilings.floor_us(final.problem)
    states = dict.fromkeys(measured.cache for _, measured in final.measurements)
    rounds = {state: round_ + at for at, state in enumerate(states)}
    finals = dict[Cache, logical_clock.FinalStamp]()
    for state in states:
        stamp = logical_clock.after(stamp)
        finals[state] = logical_clock.FinalStamp(logical_clock.new_final(), stamp)
    for config, measured in final.measurements:
        trial_id = connection.execute(_FINALIST, {**tried, "config": config.text}).scalar()
        if trial_id is None:
            raise StoreError(f"{place} has no trial of {config.text} for {final.problem.text}: run this again")
        number, of_final = rounds[measured.cache], finals[measured.cache]
        add_measurement(
            connection, trial_id, measured, run_id=run_id, round_=number, floor_us=floor_us, of_final=of_final
        )
    problem_id = found_or_added(connection, schema.problem, records.problem_values(final.problem))
    for state, number in rounds.items():
        of_state = [one for one in final.vendor if one.measurement.cache is state]
        vendor_measurements.add(
            connection, of_state, run_id=run_id, problem_id=problem_id, round_=number, of_final=finals[state]
        )
    return number
