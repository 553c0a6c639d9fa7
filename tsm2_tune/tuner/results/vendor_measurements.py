"""Measurements of vendor libraries (cuBLAS, cuBLASLt) in the database.

Each measurement is stored with the final comparison in which it was made, and read together with the fastest kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, exists, select

from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS
from tsm2_tune.tuner.results import queries, records
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.columns import record_of, values_of
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.logical_clock import FinalStamp
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Measurement, VendorMeasurement
from tsm2_tune.tuner.results.upsert import add_times

KIND = "vendor measurement"  # the name of a row in messages
GEMM = "gemm"  # part of the name of the cuBLAS routines that PyTorch and CuPy call; not of syrk and gemv
VENDOR, SAMPLE = schema.vendor_measurement, schema.vendor_sample
_PROBLEMS = select(schema.trial.c.id, schema.trial.c.problem_id).where(
    schema.trial.c.id.in_(bindparam("trial_ids", expanding=True))
)
_OF_RUNS = (
    select(VENDOR)
    .where(VENDOR.c.problem_id.in_(bindparam("problem_ids", expanding=True)))
    .where(VENDOR.c.run_id.in_(bindparam("run_ids", expanding=True)))
    .order_by(VENDOR.c.id)
)
_SAMPLES = (
    select(SAMPLE)
    .where(SAMPLE.c.measurement_id.in_(bindparam("measurement_ids", expanding=True)))
    .order_by(SAMPLE.c.ordinal)
)
Rounds = Sequence[tuple[int, Measurement]]  # a kernel's measurements with the numbers of their rounds, ascending
Key = tuple[int, int, int, str]  # problem, run, round, L2 cache state


def add(
    connection: Connection,
    measured: Sequence[VendorMeasurement],
    *,
    run_id: int,
    problem_id: int,
    round_: int,
    of_final: FinalStamp,
) -> None:
    """Store the vendor's measurements in a round of a final comparison, instead of earlier ones."""
    of_round = (VENDOR.c.run_id == run_id, VENDOR.c.problem_id == problem_id, VENDOR.c.round == round_)
    remove(connection, *of_round)
    place = {"run_id": run_id, "problem_id": problem_id, "round": round_, **of_final._asdict()}
    times = [
        (place | values_of(one, VENDOR) | values_of(one.measurement, VENDOR), one.measurement.samples_us)
        for one in measured
    ]
    add_times(connection, VENDOR, SAMPLE, times)


def remove(connection: Connection, *which: ColumnElement[bool]) -> int:
    """Delete the measurements that meet the conditions, and their samples. Return the number of measurements."""
    numbers = select(VENDOR.c.id).where(*which)
    connection.execute(delete(SAMPLE).where(SAMPLE.c.measurement_id.in_(numbers)))
    return connection.execute(delete(VENDOR).where(*which)).rowcount


def with_vendor_times(connection: Connection, winners: Sequence[tuple[BestRow, Rounds]]) -> Iterator[BestRow]:
    """Yield the winners' rows with the vendor's times in each L2 cache state in which the winner was timed.

    These are of the final comparison of the winner's newest time in the state. Raise StoreError for an invalid row.
    """
    newest = [{one.cache: (number, one.median_us) for number, one in rounds} for _, rounds in winners]
    trial_ids = [row.trial_id for row, _ in winners]
    problems = {row.id: row.problem_id for row in connection.execute(_PROBLEMS, {"trial_ids": trial_ids})}
    keys = [
        {cache: (problems[row.trial_id], row.run_id, number, cache.value) for cache, (number, _) in states.items()}
        for (row, _), states in zip(winners, newest, strict=True)
    ]
    stored = _stored(connection, {key for of_winner in keys for key in of_winner.values()})
    for (row, _), states, of_state in zip(winners, newest, keys, strict=True):
        changes = dict[str, Any]()
        for cache, (_, ours_us) in states.items():
            changes |= _times_in_state(row, cache, ours_us, tuple(_read(stored[of_state[cache]])))
        yield replace(row, **changes)


def _times_in_state(
    winner: BestRow, cache: Cache, ours_us: float, found: Sequence[VendorMeasurement]
) -> dict[str, Any]:
    """Return the fields of the winner's row for this state of the L2 cache."""
    changes = dict[str, Any]()
    fastest = min(found, key=lambda one: (not one.verdict.correct, one.measurement.median_us), default=None)
    right, vendor_us = (fastest.verdict.correct, fastest.measurement.median_us) if fastest else (False, None)
    x_cublas = vendor_us / ours_us if vendor_us is not None and right else None
    if cache in IN_FINALS:
        changes |= {f"{cache}_us": ours_us, f"{cache}_vendor_us": vendor_us, f"{cache}_x_cublas": x_cublas}
    if fastest is not None and cache == winner.cache:
        changes |= _named("vendor", fastest) | {"x_cublas": x_cublas}
        own = next((one for one in found if one.library == CUBLAS and GEMM in one.routine.lower()), None)
        changes |= {} if own is None else _named("cublas", own)
    return changes


def _named(name: str, one: VendorMeasurement) -> dict[str, Any]:
    """Return the four fields of a BestRow whose names begin with `name`, for this measurement."""
    facts = (one.measurement.median_us, int(one.verdict.correct), one.routine, one.version)
    return {f"{name}_{of}": fact for of, fact in zip(("us", "right", "routine", "version"), facts, strict=True)}


def _stored(connection: Connection, keys: Collection[Key]) -> Mapping[Key, Sequence[tuple[Row, Sequence[Row]]]]:
    """Return the rows of these rounds and states, each with the rows of its samples, in the order of their ids."""
    asked = {"problem_ids": [*{problem for problem, *_ in keys}], "run_ids": [*{run for _, run, *_ in keys}]}
    rows = defaultdict[Key, list[Row]](list)
    for row in fetched(connection, _OF_RUNS, asked):
        key = (row["problem_id"], row["run_id"], row["round"], row["cache"])
        if key in keys:
            rows[key].append(row)
    samples = defaultdict[int, list[Row]](list)
    for sample in fetched(
        connection, _SAMPLES, {"measurement_ids": [row["id"] for some in rows.values() for row in some]}
    ):
        samples[sample["measurement_id"]].append(sample)
    return defaultdict(list, {key: [(row, samples[row["id"]]) for row in some] for key, some in rows.items()})


def _read(rows: Iterable[tuple[Row, Sequence[Row]]]) -> Iterator[VendorMeasurement]:
    for row, samples in rows:
        with records.reading(row["id"], KIND):
            yield vendor_measurement(checked(row, VENDOR.columns), samples)


def vendor_measurement(values: Mapping[str, Any], samples: Sequence[Row]) -> VendorMeasurement:
    """Return the measurement with checked values of a row. Raise ValueError if its samples contradict it."""
    return record_of(VendorMeasurement, values, measurement=records.timed(values, samples))


def of_finals(finals: Select[tuple[int, int]]) -> Select[Row]:
    """Return the query, which `versions` reads, for the libraries measured in these finals (run id, round)."""
    run = schema.run.c
    columns = (VENDOR.c.id, run.driver, VENDOR.c.library, VENDOR.c.library_version)
    rounds = finals.subquery()
    is_of_round = and_(rounds.c.run_id == VENDOR.c.run_id, rounds.c.round == VENDOR.c.round)
    return (
        select(*columns)
        .join(schema.run, run.id == VENDOR.c.run_id)
        .where(VENDOR.c.problem_id == queries.PROBLEM_ID, run.device_name == bindparam("device_name"))
        .where(exists().where(is_of_round))
    )


# The query for `median_us`: the fastest correct routine in the problem's newest final comparison that has a correct
# routine in the given L2 cache state.
NEWEST_RIGHT = (
    select(VENDOR.c.id, VENDOR.c.median_us)
    .join(schema.run, schema.run.c.id == VENDOR.c.run_id)
    .where(VENDOR.c.problem_id == queries.PROBLEM_ID, schema.run.c.device_name == bindparam("device_name"))
    .where(VENDOR.c.cache == bindparam("cache"), VENDOR.c.verdict_correct == 1)
    .order_by(VENDOR.c.round.desc(), VENDOR.c.median_us)
    .limit(1)
)


def versions(rows: Collection[Row]) -> frozenset[tuple[str, str, int]]:
    """Return the set of (driver, library, library version) in the rows."""
    found = set()
    for row in rows:
        with records.reading(row["id"], KIND):
            values = checked(row, (schema.run.c.driver, VENDOR.c.library, VENDOR.c.library_version))
            found.add((values["driver"], values["library"], values["library_version"]))
    return frozenset(found)
