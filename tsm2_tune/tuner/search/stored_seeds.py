"""First candidates of a search ("seeds"): the fastest stored kernels of similar problems, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from sqlalchemy import func, select

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.seed_table import Choice, Measured, distance
from tsm2_tune.generator.space.seeds import NEIGHBOURS
from tsm2_tune.tuner.results import queries, records
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.records import PROBLEM_KEY, reading
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome, TuningRun

MOST_KERNELS = 3  # for each problem and device
_COLUMNS = (schema.trial.c.problem_id, schema.trial.c.config, schema.measurement.c.median_us)


def stored_seeds(store: Store, problem: Problem, limits: DeviceLimits, device: str) -> tuple[Measured, ...]:
    """Return the fastest stored kernels of the problems that are most similar to `problem`.

    Only problems with the same element type and op are considered, and for a batch only batches. Kernels of the
    present device come first. `limits` contains the properties of the present device. The properties of another
    device are read from its last run. Properties that are not stored are copied from `limits`.
    """
    trial = schema.trial.c
    key = schema.problem.c
    is_alike = key.batch > 1 if problem.is_batched else key.batch == 1
    alike = select(key.id, *PROBLEM_KEY).where(key.dtype == problem.dtype_name, key.op == problem.op, is_alike)
    found = {row["id"]: records.problem_of(row) for row in store.database.rows(alike)}
    nearest = sorted(found, key=lambda number: (distance(problem, found[number]), number))[:NEIGHBOURS]
    place = func.row_number().over(
        partition_by=(trial.device_name, trial.problem_id), order_by=schema.measurement.c.median_us
    )
    ranked = (
        select(schema.trial, schema.measurement.c.median_us, place.label("place"))
        .join(schema.measurement, queries.IS_FIRST)
        .where(trial.device_name.in_(store.devices_of_runs()), trial.problem_id.in_(nearest))  # in the index's order
        .where(trial.superseded == 0, trial.is_between == 0)
        .where(trial.outcome == Outcome.OK.value)
        .subquery()
    )
    columns = ranked.c
    query = select(columns.id, columns.device_name, columns.problem_id, columns.config, columns.median_us)
    rows = store.database.rows(
        query.where(columns.place <= MOST_KERNELS).order_by(columns.device_name != device, columns.device_name)
    )
    return tuple(_measured(store, rows, found, limits, device))


def _measured(
    store: Store, rows: Sequence[Row], problems: dict[int, Problem], limits: DeviceLimits, device: str
) -> Iterator[Measured]:
    for name, of_device in groupby(rows, key=lambda row: str(row["device_name"])):
        its = limits if name == device else _limits_of(store.newest_run(name), limits)
        choices = dict[int, list[Choice]]()
        for row in of_device:
            with reading(row["id"]):
                values = checked(row, _COLUMNS)
            config = parse_config(values["config"])
            if config is not None:  # else it belongs to another version
                choices.setdefault(values["problem_id"], []).append(Choice(config.early, values["median_us"]))
        for number, of_problem in choices.items():
            yield Measured(its, problems[number], tuple(sorted(of_problem, key=lambda one: one.us)))


def _limits_of(run: TuningRun, limits: DeviceLimits) -> DeviceLimits:
    """Return the properties of the run's device. Properties that are not stored are copied from `limits`."""
    capability = tuple(int(part) for part in run.identity.compute_capability.split(".") if part.isdecimal())
    return replace(
        limits,
        name=run.identity.name,
        compute_capability=capability if len(capability) == 2 else (0, 0),
        sms=run.sms or limits.sms,
        dram_gbytes_per_s=run.ceilings.read_gbytes_per_s,
    )
