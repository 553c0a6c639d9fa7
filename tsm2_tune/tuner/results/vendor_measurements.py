"""Measurements of vendor libraries (cuBLAS, cuBLASLt) in the database.

Each measurement is stored with the final comparison in which it was made, and read together with the fastest kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, exists, select

from tsm2_tune.tuner.measure.vendor.libraries import CUBLAS
from tsm2_tune.tuner.results import queries, records
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.columns import record_of, values_of
from tsm2_tune.tuner.results.logical_clock import FinalStamp
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import fetched
from tsm2_tune.tuner.results.trial import IN_FINALS, Cache, Measurement, VendorMeasurement
from tsm2_tune.tuner.results.upsert import add_times
from tsm2_tune.tuner.results.validation import Row, checked

KIND = "vendor measurement"  # the name of a row in messages
GEMM = "gemm"  # part of the name of the cuBLAS routines that PyTorch and CuPy call; not of syrk and gemv
VENDOR, SAMPLE = schema.vendor_measurement, schema.vendor_sample
_OF_TRIAL = select(schema.trial.c.problem_id).where(schema.trial.c.id == bindparam("trial_id")).scalar_subquery()
_OF_ROUND = (
    select(VENDOR)
    .where(
        VENDOR.c.problem_id == _OF_TRIAL,
        *(VENDOR.c[name] == bindparam(name) for name in ("run_id", "round", "cache")),
    )
    .order_by(VENDOR.c.id)
)
_SAMPLES = select(SAMPLE).where(SAMPLE.c.measurement_id == bindparam("measurement_id")).order_by(SAMPLE.c.ordinal)


def add(
    connection: Connection,
    measured: Sequence[VendorMeasurement],
    *,
    run_id: int,
    problem_id: int,
    round_: int,
    of_final: FinalStamp,
) -> None:
    """Store the vendor libraries' measurements in a final comparison and round. Replace earlier measurements of this
    round.
    """
    of_round = and_(VENDOR.c.run_id == run_id, VENDOR.c.problem_id == problem_id, VENDOR.c.round == round_)
    _remove(connection, of_round)
    place = {"run_id": run_id, "problem_id": problem_id, "round": round_, **of_final._asdict()}
    times = [
        (place | values_of(one, VENDOR) | values_of(one.measurement, VENDOR), one.measurement.samples_us)
        for one in measured
    ]
    add_times(connection, VENDOR, SAMPLE, times)


def beside(connection: Connection, winner: BestRow, rounds: Sequence[tuple[int, Measurement]]) -> BestRow:
    """Return the winner's row with times added for each L2 cache state in which the winner was timed.

    For each state, the times are the winner's newest time, and the time of the fastest vendor routine in the same
    final comparison. `rounds` contains all measurements of the winner. Raise StoreError for an invalid row.
    """
    newest = {measured.cache: (number, measured.median_us) for number, measured in rounds}
    changes = dict[str, Any]()
    for cache, (number, ours_us) in newest.items():
        found = tuple(_of_round(connection, winner, number, cache))
        fastest = min(found, key=lambda one: (not one.verdict.correct, one.measurement.median_us), default=None)
        right, vendor_us = (fastest.verdict.correct, fastest.measurement.median_us) if fastest else (False, None)
        x_cublas = vendor_us / ours_us if vendor_us is not None and right else None
        if cache in IN_FINALS:
            changes |= {f"{cache}_us": ours_us, f"{cache}_vendor_us": vendor_us, f"{cache}_x_cublas": x_cublas}
        if fastest is not None and cache == winner.cache:
            changes |= _named("vendor", fastest) | {"x_cublas": x_cublas}
            own = next((one for one in found if one.library == CUBLAS and GEMM in one.routine.lower()), None)
            changes |= {} if own is None else _named("cublas", own)
    return replace(winner, **changes)


def _named(name: str, one: VendorMeasurement) -> dict[str, Any]:
    """Return the four fields of a BestRow whose names begin with `name`, for this measurement."""
    facts = (one.measurement.median_us, int(one.verdict.correct), one.routine, one.version)
    return {f"{name}_{of}": fact for of, fact in zip(("us", "right", "routine", "version"), facts, strict=True)}


def _of_round(connection: Connection, winner: BestRow, round_: int, cache: Cache) -> Iterator[VendorMeasurement]:
    values = {"trial_id": winner.trial_id, "run_id": winner.run_id, "round": round_, "cache": cache.value}
    for row in fetched(connection, _OF_ROUND, values):
        with records.reading(row["id"], KIND):
            yield vendor_measurement(row, fetched(connection, _SAMPLES, {"measurement_id": row["id"]}))


def vendor_measurement(row: Row, samples: Sequence[Row]) -> VendorMeasurement:
    """Return the measurement in a row of `vendor_measurement`, with its time samples in order.

    Raise ValueError if the row or a sample is invalid.
    """
    values = checked(row, VENDOR.columns)
    return record_of(VendorMeasurement, values, measurement=records.timed(values, samples))


def of_finals(finals: Select[tuple[int, int]]) -> Select[Row]:
    """Return the query for the vendor libraries that were measured in these final comparisons.

    `versions` reads the rows of the query. `finals` selects (run id, round) of each final comparison.
    """
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


def _remove(connection: Connection, which: ColumnElement[bool]) -> None:
    numbers = select(VENDOR.c.id).where(which)
    connection.execute(delete(SAMPLE).where(SAMPLE.c.measurement_id.in_(numbers)))
    connection.execute(delete(VENDOR).where(VENDOR.c.id.in_(numbers)))
