"""Read and write the rows of one problem on one device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    and_,
    cast,
    delete,
    func,
    insert,
    select,
    update,
)

from tsm2_tune.errors import StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner import brief, forgetting, rows, schema, stored
from tsm2_tune.tuner.database import fetched
from tsm2_tune.tuner.domains import Row, checked
from tsm2_tune.tuner.importing.union import RUN, Part, Round, RunKey, Timed, TrialKey, Tried, key_of, part_of
from tsm2_tune.tuner.trial import Measurement
from tsm2_tune.tuner.vendor import storing

FINAL = ("final", "final_stamp")
_Kernels = list[tuple[Row, Timed]]  # times of a trial in finals, with their rows
IDS = frozenset({"id", "run_id", "problem_id", "device_name", "trial_id", "round", *FINAL})


def places(connection: Connection) -> list[tuple[str, Problem]]:
    """Return each device and problem that has trials. Raise StoreError for a damaged row."""
    trial = schema.trial.c
    query = (
        select(func.min(trial.id).label("id"), trial.device_name, *stored.PROBLEM_KEY)
        .join(schema.problem)
        .group_by(trial.device_name, schema.problem.c.id)
    )
    found = fetched(connection, query.order_by(trial.device_name, *stored.PROBLEM_KEY))
    return [(brief.device_name(row), brief.problem_of(row)) for row in found]


class Reader:
    """Reads parts of one database, each in a transaction, since one transaction may not read the whole of a large
    file.

    With `tell`, a damaged row is left out and its error passed to `tell`. Without it the error is raised.
    """

    def __init__(self, connection: Connection, tell: Callable[[StoreError], object] | None = None) -> None:
        self._connection, self._tell = connection, tell
        self._runs: dict[int, RunKey] = {}
        self._rows: dict[tuple[str, Any], Row] = {}

    def part(self, device_name: str, problem: Problem) -> Part:
        """Return all rows of this device and problem. Raise StoreError for a damaged row."""
        trial, problem_id = schema.trial, _problem_id(self._connection, problem)
        of_part = and_(trial.c.device_name == device_name, trial.c.problem_id == problem_id)
        measured = self._measured(of_part)
        trials, rounds = list[Tried](), list[Round]()
        for row in fetched(self._connection, select(trial).where(of_part).order_by(trial.c.id)):
            with self._reading(row["id"]):
                tried, finals = self._tried(row, measured[row["id"]])
                rounds += [self._round(one, {tried.key: timed}, {}) for one, timed in finals]
                trials.append(tried)
        rounds += self._vendor(device_name, problem_id)
        return part_of(trials, rounds)

    def source(self, digest: str) -> Row:
        """Return the kernel with this digest. Raise KeyError if a damaged file lacks it."""
        return self._one(schema.source, digest)

    def _measured(self, of_part: ColumnElement[bool]) -> dict[int, list[tuple[Row, Sequence[Row]]]]:
        """Return the rows of `measurement` by trial, each with its samples in order."""
        table = schema.measurement
        samples = self._samples(schema.sample, select(table.c.id).join(schema.trial).where(of_part))
        found = defaultdict[int, list[tuple[Row, Sequence[Row]]]](list)
        for row in fetched(self._connection, select(table).join(schema.trial).where(of_part)):
            found[row["trial_id"]].append((row, samples[row["id"]]))
        return found

    def _round(self, row: Row, timed: Mapping[TrialKey, Timed], vendor: Mapping[str, Timed]) -> Round:
        """Return the final that the row of a time belongs to, with that time alone."""
        if row["final"] is None or row["final_stamp"] is None:
            raise ValueError(f"round {row['round']} is of no final")
        return Round(self._run(row["run_id"]), row["final"], row["final_stamp"], timed, vendor)

    def _tried(self, row: Row, measured: Sequence[tuple[Row, Sequence[Row]]]) -> tuple[Tried, _Kernels]:
        """Return a trial, and its times in finals."""
        firsts, finals = dict[int, Timed](), list[tuple[Row, Timed]]()
        first: Measurement | None = None
        for one, samples in measured:
            time = stored.measurement(one, samples)
            timed = self._timed(one, schema.measurement, samples)
            if one["round"] > 0:
                finals.append((one, timed))
            else:
                firsts[one["round"]] = timed
                first = time if one["round"] == 0 else first
        source = self.source(row["source_digest"])
        problem = self._one(schema.problem, row["problem_id"])
        stored.trial(row, problem=problem, source=source, first=first)  # is as it was stored
        others = tuple(one for number, one in sorted(firsts.items(), reverse=True) if number < 0)
        tried = Tried(self._run(row["run_id"]), _values(row, schema.trial), firsts.get(0), others)
        return tried, finals

    def _vendor(self, device_name: str, problem_id: int) -> Iterator[Round]:
        """Yield each time of the vendor as a final of its own."""
        table, run = schema.vendor_measurement, schema.run.c
        of_part = and_(table.c.problem_id == problem_id, run.device_name == device_name)
        samples = self._samples(schema.vendor_sample, select(table.c.id).join(schema.run).where(of_part))
        for row in fetched(self._connection, select(table).join(schema.run).where(of_part).order_by(table.c.id)):
            with self._reading(row["id"], storing.KIND):
                storing.vendor_measurement(row, samples[row["id"]])
                yield self._round(row, {}, {row["library"]: self._timed(row, table, samples[row["id"]])})

    @contextmanager
    def _reading(self, number: int, kind: str = "trial") -> Iterator[None]:
        """Convert errors as stored.reading does, then pass them to `tell` if there is one."""
        try:
            with stored.reading(number, kind):
                yield
        except StoreError as error:
            if self._tell is None:
                raise
            self._tell(error)

    def _samples(self, table: Table, of: Select[Any]) -> dict[int, list[Row]]:
        """Return the samples of these measurements, in order."""
        query = select(table).where(table.c.measurement_id.in_(of)).order_by(table.c.measurement_id, table.c.ordinal)
        found = defaultdict[int, list[Row]](list)
        for row in fetched(self._connection, query):
            found[row["measurement_id"]].append(row)
        return found

    def _timed(self, row: Row, table: Table, samples: Sequence[Row]) -> Timed:
        return Timed(self._run(row["run_id"]), _values(row, table), tuple(one["us"] for one in samples))

    def _run(self, number: int) -> RunKey:
        if number not in self._runs:
            row = self._one(schema.run, number)
            stored.tuning_run(row)
            self._runs[number] = tuple(row[name] for name in RUN)
        return self._runs[number]

    def _one(self, table: Table, key: Any) -> Row:
        """Return the row with this primary key. Raise KeyError if a damaged file lacks it."""
        (column,) = table.primary_key.columns
        place = (table.name, key)
        if place not in self._rows:
            found = fetched(self._connection, select(table).where(column == key))
            if not found:
                raise KeyError(f"no {table.name} {key}")
            self._rows[place] = found[0]
        return self._rows[place]


def write(
    connection: Connection, device_name: str, problem: Problem, part: Part, source: Callable[[str], Row]
) -> None:
    """Replace the database's rows of the device and problem by this part.

    Trials keep their ids. `source` returns the kernel of a digest that the database lacks.
    """
    trial, kernel = schema.trial, schema.source.c
    problem_id = _added_once(connection, schema.problem, rows.problem_values(problem))
    of_part = (trial.c.device_name == device_name, trial.c.problem_id == problem_id)
    ids, doubled = _ids(connection, and_(*of_part))
    forgetting.remove_measurements(connection, [*ids.values(), *doubled])
    connection.execute(delete(trial).where(trial.c.id.in_(doubled)))
    _remove_vendor(connection, device_name, problem_id)
    runs: dict[RunKey, int] = {}

    def run_id(key: RunKey) -> int:
        if key not in runs:
            runs[key] = _added_once(connection, schema.run, dict(zip(RUN, key, strict=True)))
        return runs[key]

    for key, tried in sorted(part.trials.items(), key=lambda item: (item[1].values["stamp"], item[0])):
        digest = tried.values["source_digest"]
        if connection.execute(select(kernel.digest).where(kernel.digest == digest)).first() is None:
            row = source(digest)
            connection.execute(insert(schema.source), {one.name: row[one.name] for one in kernel})
        values = {**tried.values, "run_id": run_id(tried.run), "device_name": device_name, "problem_id": problem_id}
        if key in ids:
            connection.execute(update(trial).where(trial.c.id == ids[key]), values)
        else:
            ids[key] = connection.execute(insert(trial).returning(trial.c.id), values).scalar_one()

    def add(key: TrialKey, number: int, timed: Timed, of: Round | None = None) -> None:
        final = (None, None) if of is None else (of.final, of.stamp)
        place = {
            "trial_id": ids[key],
            "run_id": run_id(timed.run),
            "round": number,
            **dict(zip(FINAL, final, strict=True)),
        }
        _add(connection, schema.measurement, schema.sample, place, timed)

    # Times of trials that were in no final get the greatest ids, which mark those trials as new to the next final.
    in_finals = {key for one in part.rounds for key in one.timed}
    for is_late in (False, True):
        for key, tried in part.trials.items():
            if (key not in in_finals) == is_late:
                for number, timed in enumerate(tried.others, 1):
                    add(key, -number, timed)
                if tried.first is not None:
                    add(key, 0, tried.first)
        for number, one in () if is_late else enumerate(part.rounds, 1):
            for key, timed in one.timed.items():
                add(key, number, timed, one)
            for timed in one.vendor.values():
                place: dict[str, Any] = {"problem_id": problem_id, "run_id": run_id(timed.run), "round": number}
                place |= dict(zip(FINAL, (one.final, one.stamp), strict=True))
                _add(connection, schema.vendor_measurement, schema.vendor_sample, place, timed)


def _ids(connection: Connection, of_part: ColumnElement[bool]) -> tuple[dict[TrialKey, int], Sequence[int]]:
    """Return the ids of the stored trials by key, and the ids of duplicates.

    Each basis becomes the trial's id until it is written again, so that two trials may exchange theirs.
    """
    trial, found, doubled = schema.trial, dict[TrialKey, int](), list[int]()
    for row in connection.execute(select(trial).where(of_part).order_by(trial.c.superseded, trial.c.id)).mappings():
        if found.setdefault(key_of(row), row["id"]) != row["id"]:
            doubled.append(row["id"])
    connection.execute(update(trial).where(of_part).values(basis=cast(trial.c.id, Text)))
    return found, doubled


def _values(row: Row, table: Table) -> dict[str, Any]:
    """Return the row's values without ids. Raise TypeError or ValueError for a wrong one."""
    values = checked(row, table.columns)
    return {name: value for name, value in values.items() if name not in IDS}


def _problem_id(connection: Connection, problem: Problem) -> int:
    """Return the problem's id, or -1 if the database lacks it."""
    key = (schema.problem.c[name] == value for name, value in rows.problem_key(problem).items())
    found = connection.execute(select(schema.problem.c.id).where(*key)).scalar()
    return -1 if found is None else int(found)


def _added_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    """Return the id of the row with these values. Add the row if there is none."""
    same = (table.c[name].is_not_distinct_from(value) for name, value in values.items())
    found = connection.execute(select(table.c.id).where(*same)).scalar()
    if found is None:
        found = connection.execute(insert(table).returning(table.c.id), values).scalar_one()
    return int(found)


def _remove_vendor(connection: Connection, device_name: str, problem_id: int) -> None:
    table, sample, run = schema.vendor_measurement, schema.vendor_sample, schema.run.c
    of_device = table.c.run_id.in_(select(run.id).where(run.device_name == device_name))
    numbers = select(table.c.id).where(table.c.problem_id == problem_id, of_device)
    connection.execute(delete(sample).where(sample.c.measurement_id.in_(numbers)))
    connection.execute(delete(table).where(table.c.problem_id == problem_id, of_device))


def _add(connection: Connection, table: Table, samples: Table, place: Mapping[str, Any], timed: Timed) -> None:
    number = connection.execute(insert(table).returning(table.c.id), {**timed.values, **place}).scalar_one()
    every = [{"measurement_id": number, "ordinal": at, "us": us} for at, us in enumerate(timed.samples_us)]
    if every:
        connection.execute(insert(samples), every)
