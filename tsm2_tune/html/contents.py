"""Read the data of an HTML page from a database: winners, trials, and the last run on each device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import queries, records
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.columns import fields_of, record_of
from tsm2_tune.tuner.results.domains import Row, checked, tunables
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Outcome, TuningRun, in_a_line

TIMED = (Outcome.OK, Outcome.BEHIND)  # outcomes with a time; BEHIND has the time of its first launches only
TIMES = ("median_us", "low_us", "high_us")  # columns of a trial's first measurement; NULL without a measurement


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial (an attempt to verify and time one kernel on one problem) with its first measurement."""

    id: int
    device: str
    problem: Problem
    family: str
    config: str
    tunables: Mapping[str, int | str]
    basis: str
    cache: str
    outcome: Outcome
    detail: str
    registers: int | None
    spill_bytes: int | None
    smem_bytes: int | None
    blocks_per_sm: int | None
    guideline_broken: str | None
    median_us: float | None  # None if the kernel was not timed, or is wrong
    low_us: float | None
    high_us: float | None
    floor_us: float
    total_seconds: float
    ended_at: str
    is_between: bool
    superseded: bool
    strategy: str | None  # strategy of the search that tried the configuration; None without a search or if unknown
    space_configurations: int | None  # number of configurations in that search's space; None if unknown
    search_ended: str | None  # why that search ended; None if it was interrupted or if unknown

    @property
    def is_compared(self) -> bool:
        """Whether the trial has a time, and this version of the program still generates the same kernel."""
        return self.median_us is not None and not self.superseded


@dataclass(frozen=True, slots=True)
class Contents:
    """The selected contents of one database."""

    name: str  # name of its file
    runs: tuple[TuningRun, ...]  # the last run on each device
    winners: tuple[BestRow, ...]
    trials: tuple[TrialRow, ...]


def contents(store: Store, device: str | None, is_chosen: Callable[[Problem], bool], cache: Cache | None) -> Contents:
    """Read the winners and trials of this device and L2 state (None: of all), of the problems that are chosen."""
    devices = [one for one in store.devices() if device in (None, one)]
    winners = [row for row in store.best(device=device, cache=cache) if is_chosen(row.problem)]
    trials = [
        one
        for one in _trials(store)
        if device in (None, one.device) and cache in (None, one.cache) and is_chosen(one.problem)
    ]
    return Contents(in_a_line(str(store.path)), tuple(map(store.newest_run, devices)), tuple(winners), tuple(trials))


def _trials(store: Store) -> Iterator[TrialRow]:
    """Yield all trials of the database in the order in which they were stored."""
    times = [schema.measurement.c[name] for name in TIMES]
    query = (
        select(*_OF_TRIAL, *records.PROBLEM_KEY, *times)
        .select_from(schema.trial)
        .join(schema.problem, schema.problem.c.id == schema.trial.c.problem_id)
        .outerjoin(schema.measurement, queries.IS_FIRST)
        .order_by(schema.trial.c.id)
    )
    known: dict[tuple[object, ...], Problem] = {}
    return (_trial(row, known) for row in store.database.rows(query))


_TRIAL = schema.trial.c
_OF_TRIAL = (_TRIAL.device_name, *(_TRIAL[one.column] for one in fields_of(TrialRow) if one.column in _TRIAL))
_COLUMNS = (*_OF_TRIAL, *records.PROBLEM_KEY, *(schema.nullable(schema.measurement.c[name]) for name in TIMES))


def _trial(row: Row, known: dict[tuple[object, ...], Problem]) -> TrialRow:
    """Return the trial in a row of the database. `known` caches the Problem objects by their column values."""
    with records.reading(row["id"]):
        values = checked(row, _COLUMNS)
        key = tuple(values[column.name] for column in records.PROBLEM_KEY)
        if key not in known:
            known[key] = record_of(Problem, values)
        if values["outcome"] in TIMED and values["median_us"] is not None:
            records.check_interval(values["low_us"], values["median_us"], values["high_us"])
        else:
            values |= dict.fromkeys(TIMES)
        own = {"device": values["device_name"], "problem": known[key], "tunables": tunables(values["tunables"])}
        return record_of(TrialRow, values, **own)
