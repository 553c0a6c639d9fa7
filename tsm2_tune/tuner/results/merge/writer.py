"""Write all rows of one problem on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    select,
    update,
)

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import forget, records, vendor_measurements
from tsm2_tune.tuner.results.domains import Row
from tsm2_tune.tuner.results.merge.reader import MOST_IN_BATCH, problem_ids
from tsm2_tune.tuner.results.merge.union import (
    RUN,
    Part,
    Round,
    RunKey,
    Timed,
    TrialKey,
    key_of,
)
from tsm2_tune.tuner.results.storage import paragraphs, schema
from tsm2_tune.tuner.results.upsert import Times, add_all, add_alone, add_times, found_or_added

_UNIQUE = ("device_name", "problem_id", "config", "basis")  # of a trial
_PLACE_OF_TRIAL = _UNIQUE[:2]
_OF_PLACES = select(schema.trial.c.id, *(schema.trial.c[name] for name in _UNIQUE)).where(
    *(schema.trial.c[name].in_(bindparam(name, expanding=True)) for name in _PLACE_OF_TRIAL)
)
K = TypeVar("K")
# Values of a row that is of a trial, with the trial's key and the ids of its problem's trials by key.
_OfTrial = tuple[dict[TrialKey, int], TrialKey, dict[str, Any]]


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
