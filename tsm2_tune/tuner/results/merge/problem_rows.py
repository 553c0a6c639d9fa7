"""Read and write all rows of one problem on one device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    select,
    tuple_,
    update,
)

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import forget, loader, records, vendor_measurements
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.merge.union import RUN, Part, Round, RunKey, Timed, TrialKey, Tried, key_of, part_of
from tsm2_tune.tuner.results.storage import paragraphs, schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.paragraphs import Sources
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.trial import Measurement
from tsm2_tune.tuner.results.upsert import Times, add_all, add_alone, add_times, found_or_added

MOST_IN_BATCH = 64  # trials that are written together; a statement for each problem would take longer
_OF_PROBLEMS = select(schema.problem.c.id, *records.PROBLEM_KEY).where(
    tuple_(*records.PROBLEM_KEY).in_(bindparam("keys", expanding=True))
)
_UNIQUE = ("device_name", "problem_id", "config", "basis")  # of a trial
_PLACE_OF_TRIAL = _UNIQUE[:2]
_OF_PLACES = select(schema.trial.c.id, *(schema.trial.c[name] for name in _UNIQUE)).where(
    *(schema.trial.c[name].in_(bindparam(name, expanding=True)) for name in _PLACE_OF_TRIAL)
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
K = TypeVar("K")
T = TypeVar("T")
_Measured = tuple[Row, Sequence[Row]]  # the row of a measurement, with its samples in order
# Values of a row that is of a trial, with the trial's key and the ids of its problem's trials by key.
_OfTrial = tuple[dict[TrialKey, int], TrialKey, dict[str, Any]]
_Kernels = list[tuple[Row, Timed]]  # a trial's measurements in final comparisons, with their rows
IDS = frozenset({"id", "run_id", "problem_id", "device_name", "trial_id", "round", "final", "final_stamp"})


def own_columns(table: Table) -> list[Column[Any]]:
    """Return the columns whose values do not depend on a database's numbers of rows and finals."""
    return [one for one in table.columns if one.name not in IDS]


OWN = {one: own_columns(one) for one in (schema.trial, schema.measurement, schema.vendor_measurement)}


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


@dataclass(frozen=True, slots=True)
class Change:
    """All rows of one problem on one device, which a Writer stores instead of the rows in the database."""

    device_name: str
    problem: Problem
    part: Part
    is_new: bool  # whether the database has no such rows


def batches(parts: Sequence[tuple[K, Part]]) -> Iterator[Sequence[tuple[K, Part]]]:
    """Divide the parts into batches of at most MOST_IN_BATCH trials, or of a single part."""
    first = trials = 0
    for at, (_, part) in enumerate(parts):
        trials += len(part.trials)
        if trials > MOST_IN_BATCH and at > first:
            yield parts[first:at]
            first, trials = at, len(part.trials)
    if parts:
        yield parts[first:]


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
                vendor_measurements.vendor_measurement(row, samples)
                timed = self._timed(row, schema.vendor_measurement, samples)
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
            time = records.measurement(one, samples)
            timed = self._timed(one, schema.measurement, samples)
            if one["round"] > 0:
                finals.append((one, timed))
            else:
                firsts[one["round"]] = timed
                first = time if one["round"] == 0 else first
        source = self._one(schema.source, row["source_digest"], records.kernel_source)
        problem = self._one(schema.problem, row["problem_id"], records.stored_problem)
        records.trial(row, problem=problem, source=source, first=first)  # raises for an invalid row
        others = tuple(one for number, one in sorted(firsts.items(), reverse=True) if number < 0)
        run = self._run(row["run_id"])
        if run[RUN.index("device_name")] != row["device_name"]:
            raise ValueError("its run is on another device")
        return Tried(run, checked(row, OWN[schema.trial]), firsts.get(0), others), finals

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

    def _timed(self, row: Row, table: Table, samples: Sequence[Row]) -> Timed:
        samples_us = tuple(one["us"] for one in samples)
        return Timed(self._run(row["run_id"]), checked(row, OWN[table]), samples_us)

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


class Writer:
    """Writer of all rows of some problems at a time, in one transaction.

    `source` returns the row of a kernel source by its digest, for those that the database lacks.
    """

    def __init__(self, connection: Connection, source: Callable[[str], Row]) -> None:
        self._connection, self._source = connection, source
        self._runs: dict[RunKey, int] = {}
        self._digests: set[str] = set()  # digests of the kernels in the database

    def write(self, changes: Sequence[Change]) -> None:
        """Replace the rows of these problems. Trials keep their ids."""
        problems = self._problem_ids([one.problem for one in changes])
        digests = {tried.values["source_digest"] for one in changes for tried in one.part.trials.values()}
        paragraphs.add_sources(self._connection, digests - self._digests, self._source)
        self._digests |= digests
        new, times, vendor = list[_OfTrial](), list[tuple[_OfTrial, Sequence[float]]](), list[Times]()
        for one in changes:
            place: dict[str, Any] = {"device_name": one.device_name, "problem_id": problems[one.problem]}
            ids = {} if one.is_new else self._emptied(**place)
            for key, tried in sorted(one.part.trials.items(), key=lambda item: (item[1].values["stamp"], item[0])):
                values = {**tried.values, **place, "run_id": self._run_id(tried.run)}
                if key in ids:
                    self._connection.execute(update(schema.trial).where(schema.trial.c.id == ids[key]), values)
                else:
                    new.append((ids, key, values))
            times += (
                ((ids, key, self._values(number, timed, of)), timed.samples_us)
                for key, number, timed, of in _times_in_order(one.part)
            )
            vendor += (
                ({"problem_id": place["problem_id"], **self._values(number, timed, of)}, timed.samples_us)
                for number, of in enumerate(one.part.rounds, 1)
                for timed in of.vendor.values()
            )
        self._add_trials(new)
        of_trials = [({"trial_id": ids[key], **values}, samples_us) for (ids, key, values), samples_us in times]
        add_times(self._connection, schema.measurement, schema.sample, of_trials)
        add_times(self._connection, schema.vendor_measurement, schema.vendor_sample, vendor)

    def _emptied(self, device_name: str, problem_id: int) -> dict[TrialKey, int]:
        """Delete all measurements of this problem on this device, and duplicates of trials. Return the other
        trials' ids.
        """
        trial = schema.trial
        of_part = (trial.c.device_name == device_name, trial.c.problem_id == problem_id)
        ids, doubled = _ids(self._connection, and_(*of_part))
        forget.remove_measurements(self._connection, [*ids.values(), *doubled])
        self._connection.execute(delete(trial).where(trial.c.id.in_(doubled)))
        vendor, run = schema.vendor_measurement.c, schema.run.c
        of_device = vendor.run_id.in_(select(run.id).where(run.device_name == device_name))
        vendor_measurements.remove(self._connection, vendor.problem_id == problem_id, of_device)
        return ids

    def _add_trials(self, new: Sequence[_OfTrial]) -> None:
        """Insert trials, and add their ids to the ids of their problems' trials."""
        add_all(self._connection, schema.trial, [values for _, _, values in new])
        places = {name: list({values[name] for _, _, values in new}) for name in _PLACE_OF_TRIAL}
        found = {tuple(place): number for number, *place in self._connection.execute(_OF_PLACES, places)}
        for ids, key, values in new:
            ids[key] = found[tuple(values[name] for name in _UNIQUE)]

    def _problem_ids(self, problems: Sequence[Problem]) -> dict[Problem, int]:
        """Return the ids of the rows of these problems. Insert rows that do not exist."""
        known = problem_ids(self._connection, problems)
        if known.keys() != set(problems) and add_alone(self._connection, schema.problem):
            known = problem_ids(self._connection, problems)
        new = [one for one in dict.fromkeys(problems) if one not in known]
        add_all(self._connection, schema.problem, [records.problem_values(one) for one in new])
        return known | problem_ids(self._connection, new)

    def _run_id(self, run: RunKey) -> int:
        if run not in self._runs:
            self._runs[run] = found_or_added(self._connection, schema.run, dict(zip(RUN, run, strict=True)))
        return self._runs[run]

    def _values(self, number: int, timed: Timed, of: Round | None) -> dict[str, Any]:
        """Return the values of the measurement's row, without its trial or problem."""
        final = {"final": of and of.final, "final_stamp": of and of.stamp}
        return {**timed.values, "run_id": self._run_id(timed.run), "round": number, **final}


def _times_in_order(part: Part) -> Iterator[tuple[TrialKey, int, Timed, Round | None]]:
    """Yield (trial, round number, measurement, final comparison) for each measurement, in the order of insertion.

    Trials of no final come last: larger row ids mark them as newer than the finals.
    """
    in_finals = {key for one in part.rounds for key in one.timed}
    for is_late in (False, True):
        for key, tried in part.trials.items():
            if (key not in in_finals) == is_late:
                for number, timed in enumerate(tried.others, 1):
                    yield key, -number, timed, None
                if tried.first is not None:
                    yield key, 0, tried.first, None
        for number, one in () if is_late else enumerate(part.rounds, 1):
            for key, timed in one.timed.items():
                yield key, number, timed, one


def _ids(connection: Connection, of_part: ColumnElement[bool]) -> tuple[dict[TrialKey, int], Sequence[int]]:
    """Return the ids of the stored trials by key, and the ids of duplicate trials.

    Each trial gets a temporary `basis`, since two trials may exchange values in this unique column.
    """
    trial, found, doubled = schema.trial, dict[TrialKey, int](), list[int]()
    for row in connection.execute(select(trial).where(of_part).order_by(trial.c.superseded, trial.c.id)).mappings():
        if found.setdefault(key_of(row), row["id"]) != row["id"]:
            doubled.append(row["id"])
    connection.execute(update(trial).where(of_part).values(basis=cast(trial.c.id, Text)))
    return found, doubled
