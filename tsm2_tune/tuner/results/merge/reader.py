"""Read all rows of one problem on one device, or of many problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Select,
    Table,
    bindparam,
    func,
    select,
    tuple_,
)

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import loader, records, vendor_measurements
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.merge.union import (
    RUN,
    Part,
    Round,
    RunKey,
    Timed,
    TrialKey,
    Tried,
    device_of,
    part_of,
)
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.paragraphs import Sources
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.trial import Measurement

MOST_IN_BATCH = 64  # trials that are written together; a statement for each problem would take longer
_OF_PROBLEMS = select(schema.problem.c.id, *records.PROBLEM_KEY).where(
    tuple_(*records.PROBLEM_KEY).in_(bindparam("keys", expanding=True))
)
_OF_PROBLEM = (
    schema.trial.c.device_name == bindparam("device_name"),
    schema.trial.c.problem_id.in_(bindparam("problem_ids", expanding=True)),
)
_COUNTS = select(schema.trial.c.problem_id, func.count()).where(*_OF_PROBLEM).group_by(schema.trial.c.problem_id)
_TRIALS = select(schema.trial).where(*_OF_PROBLEM).order_by(schema.trial.c.id)
_MEASUREMENTS = select(schema.measurement).join(schema.trial).where(*_OF_PROBLEM)
_OF_VENDOR = (
    select(schema.vendor_measurement)
    .join(schema.run)
    .where(schema.run.c.device_name == bindparam("device_name"))
    .where(schema.vendor_measurement.c.problem_id.in_(bindparam("problem_ids", expanding=True)))
    .order_by(schema.vendor_measurement.c.id)
)


def _samples(samples: Table, measurements: Select[Any], table: Table) -> Select[Any]:
    """Return the query for the samples, in order, of the rows of `table` that the query `measurements` returns."""
    of_query = samples.c.measurement_id.in_(measurements.with_only_columns(table.c.id).order_by(None))
    return select(samples).where(of_query).order_by(*samples.primary_key)


_SAMPLES = _samples(schema.sample, _MEASUREMENTS, schema.measurement)
_SAMPLES_OF_VENDOR = _samples(schema.vendor_sample, _OF_VENDOR, schema.vendor_measurement)
Place = tuple[str, Problem]  # a device and a problem
T = TypeVar("T")
_Measured = tuple[Row, Sequence[Row]]  # the row of a measurement, with its samples in order
_Kernels = list[tuple[Row, Timed]]  # a trial's measurements in final comparisons, with their rows
IDS = frozenset({"id", "run_id", "problem_id", "device_name", "trial_id", "round", "final", "final_stamp"})


def own_columns(table: Table) -> list[Column[Any]]:
    """Return the columns whose values do not depend on a database's numbers of rows and finals."""
    return [one for one in table.columns if one.name not in IDS]


_TABLES = (schema.trial, schema.measurement, schema.vendor_measurement)
_OWN = {table: tuple(one.name for one in own_columns(table)) for table in _TABLES}


def _own(values: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return the values of the columns that `own_columns` returns."""
    return {name: values[name] for name in _OWN[table]}


def places(connection: Connection) -> list[Place]:
    """Return each (device, problem) that has trials. Raise StoreError if a row is damaged."""
    trial = schema.trial.c
    query = (
        select(func.min(trial.id).label("id"), trial.device_name, *records.PROBLEM_KEY)
        .join(schema.problem)
        .group_by(trial.device_name, schema.problem.c.id)
    )
    found = fetched(connection, query.order_by(trial.device_name, *records.PROBLEM_KEY))
    return [(records.value_of(row, trial.device_name), records.problem_of(row)) for row in found]


def problem_ids(connection: Connection, problems: Iterable[Problem]) -> dict[Problem, int]:
    """Return the ids of the rows of these problems, at most MOST_IN_BATCH, without those that have no row."""
    of_key = {tuple(records.problem_key(one).values()): one for one in problems}
    rows = connection.execute(_OF_PROBLEMS, {"keys": list(of_key)}) if of_key else ()
    return {of_key[tuple(key)]: number for number, *key in rows}


def parts_of(database: Database, every: Sequence[Place]) -> Iterator[tuple[Place, Part]]:
    """Yield all rows of each of these devices and problems. Some problems are read in one transaction.

    Raise StoreError if a row is damaged.
    """
    known = dict[tuple[Table, Any], Any]()
    for device_name, same in groupby(every, key=itemgetter(0)):
        problems = [problem for _, problem in same]
        for first in range(0, len(problems), MOST_IN_BATCH):
            some = problems[first : first + MOST_IN_BATCH]
            with database.transaction() as connection:
                found = Reader(connection, known=known).parts(device_name, some)
                yield from (((device_name, problem), part) for problem, part in zip(some, found, strict=True))


class Reader:
    """Reader of all rows of one problem on one device, or of several problems.

    A damaged row is passed to `tell` and skipped; without `tell` its error is raised. Readers of one database may
    share `known`, to which a reader adds what several trials refer to: runs, problems and kernels.
    """

    def __init__(
        self,
        connection: Connection,
        tell: Callable[[StoreError], object] | None = None,
        known: dict[tuple[Table, Any], Any] | None = None,
    ) -> None:
        self._connection, self._tell = connection, tell
        self._known = {} if known is None else known

    def part(self, device_name: str, problem: Problem) -> Part:
        """Return all rows of this problem on this device. Raise StoreError if a row is damaged."""
        (found,) = self.parts(device_name, [problem])
        return found

    def parts(self, device_name: str, problems: Sequence[Problem]) -> Iterator[Part]:
        """Yield all rows of each of these problems, at most MOST_IN_BATCH, on this device.

        Problems with at most MOST_IN_BATCH trials in all are read together. Raise StoreError if a row is damaged.
        """
        ids = problem_ids(self._connection, problems)
        asked = {"device_name": device_name, "problem_ids": list(ids.values())}
        counts = dict[int | None, int](map(tuple, self._connection.execute(_COUNTS, asked)))
        some, trials = list[int | None](), 0
        for number in map(ids.get, problems):
            trials += counts.get(number, 0)
            if trials > MOST_IN_BATCH and some:
                yield from self._parts(device_name, some)
                some, trials = [], counts.get(number, 0)
            some.append(number)
        yield from self._parts(device_name, some)

    def _parts(self, device_name: str, problem_ids: Sequence[int | None]) -> Iterator[Part]:
        """Yield all rows of each of these problems on this device, read together. None is a problem without rows."""
        asked = {"device_name": device_name, "problem_ids": [one for one in problem_ids if one is not None]}
        measured = defaultdict[int, list[_Measured]](list)
        for row, samples in self._times(_MEASUREMENTS, _SAMPLES, asked):
            measured[row["trial_id"]].append((row, samples))
        rows = fetched(self._connection, _TRIALS, asked)
        digests = dict.fromkeys(row["source_digest"] for row in rows)
        new = [one for one in digests if (schema.source, one) not in self._known]
        self._sources = Sources(self._connection, new)
        trials, rounds = defaultdict[int, list[Tried]](list), defaultdict[int, list[Round]](list)
        for row in rows:
            with self._reading(row["id"]):
                tried, finals = self._tried(row, measured[row["id"]])
                key = tried.key
                rounds[row["problem_id"]] += [self._round(one, {key: timed}, {}) for one, timed in finals]
                trials[row["problem_id"]].append(tried)
        for row, samples in self._times(_OF_VENDOR, _SAMPLES_OF_VENDOR, asked):
            with self._reading(row["id"], vendor_measurements.KIND):
                values = checked(row, schema.vendor_measurement.columns)
                vendor_measurements.vendor_measurement(values, samples)
                timed = self._timed(values, schema.vendor_measurement, samples)
                rounds[row["problem_id"]].append(self._round(row, {}, {row["library"]: timed}))
        yield from (Part() if one is None else part_of(trials[one], rounds[one]) for one in problem_ids)

    def source(self, digest: str) -> Row:
        """Return the row of the kernel source with this digest, and its text. Raise KeyError if there is none."""
        return Sources(self._connection, [digest]).row(digest)

    def _round(self, row: Row, timed: Mapping[TrialKey, Timed], vendor: Mapping[str, Timed]) -> Round:
        """Return a Round with this single measurement. Rounds of the same final comparison are joined later."""
        if row["final"] is None or row["final_stamp"] is None:
            raise ValueError(f"round {row['round']} does not belong to a final")
        return Round(self._run(row["run_id"]), row["final"], row["final_stamp"], timed, vendor)

    def _tried(self, row: Row, measured: Sequence[_Measured]) -> tuple[Tried, _Kernels]:
        """Return the trial in this row, and the rows of its measurements in final comparisons."""
        firsts, finals = dict[int, Timed](), list[tuple[Row, Timed]]()
        first: Measurement | None = None
        for one, samples in measured:
            of_time = checked(one, schema.measurement.columns)
            time = records.timed(of_time, samples)
            timed = self._timed(of_time, schema.measurement, samples)
            if one["round"] > 0:
                finals.append((one, timed))
            else:
                firsts[one["round"]] = timed
                first = time if one["round"] == 0 else first
        source = self._one(schema.source, row["source_digest"], records.kernel_source)
        problem = self._one(schema.problem, row["problem_id"], records.stored_problem)
        values = checked(row, schema.trial.columns)
        records.trial(values, problem=problem, source=source, first=first)  # raises for an invalid row
        others = tuple(one for number, one in sorted(firsts.items(), reverse=True) if number < 0)
        run = self._run(row["run_id"])
        if device_of(run) != row["device_name"]:
            raise ValueError("its run is on another device")
        return Tried(run, _own(values, schema.trial), firsts.get(0), others), finals

    @contextmanager
    def _reading(self, number: int, kind: str = "trial") -> Iterator[None]:
        """Convert an error to a StoreError that names the row, and pass it to `tell` if there is one."""
        try:
            with records.reading(number, kind):
                yield
        except StoreError as error:
            if self._tell is None:
                raise
            self._tell(error)

    def _times(self, query: Select[Any], of_samples: Select[Any], asked: Mapping[str, Any]) -> Iterator[_Measured]:
        """Yield the rows that the query returns, each with its samples in order."""
        found = defaultdict[int, list[Row]](list)
        for row in fetched(self._connection, of_samples, asked):
            found[row["measurement_id"]].append(row)
        for row in fetched(self._connection, query, asked):
            yield row, found[row["id"]]

    def _timed(self, values: Mapping[str, Any], table: Table, samples: Sequence[Row]) -> Timed:
        samples_us = tuple([one["us"] for one in samples])
        return Timed(self._run(values["run_id"]), _own(values, table), samples_us)

    def _run(self, number: int) -> RunKey:
        return self._one(schema.run, number, _run_key)

    def _one(self, table: Table, key: Any, convert: Callable[[Row], T]) -> T:
        """Return the converted row with this primary key. Raise KeyError if there is no such row."""
        if (table, key) not in self._known:
            is_source = table is schema.source
            row = self._sources.row(key) if is_source else loader.row_of(self._connection, table, key)
            self._known[table, key] = convert(row)
        found: T = self._known[table, key]
        return found


def _run_key(row: Row) -> RunKey:
    """Return the values of a row of `run`. Raise ValueError or TypeError if it is invalid."""
    records.tuning_run(row)
    return tuple(row[name] for name in RUN)
