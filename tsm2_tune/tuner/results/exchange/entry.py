"""Convert the trials of one problem on one device to a JSON object, and back.

Files in other autotuners' formats contain this object as their member `tsm2_tune`. The formats themselves have no
fields for compiler flags, the result of the verification, several measurements of one trial, or all digits of a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from tsm2_tune.errors import shown
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import records, vendor_measurements
from tsm2_tune.tuner.results.domains import SHA256, checked
from tsm2_tune.tuner.results.merge.reader import own_columns
from tsm2_tune.tuner.results.merge.text_parser import parse_problem
from tsm2_tune.tuner.results.merge.union import (
    RUN,
    STARTED_AT,
    Part,
    Round,
    RunKey,
    Timed,
    TrialKey,
    Tried,
    device_of,
)
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Cache, Outcome

NAME, VERSION = "tsm2_tune", 2
# Members that older versions did not write. They are omitted if they are null.
_TABLES = (schema.trial, schema.measurement, schema.vendor_measurement)
LATER = frozenset(one.name for table in _TABLES for one in table.columns if one.info["later"])
RATIO = "verdict_worst_ratio"  # infinite if a value is NaN; null stands for it, since JSON has no infinity


@dataclass(frozen=True, slots=True)
class Entry:
    """Trials of one problem on one device, timed in one L2 cache state."""

    device: str  # its name
    problem: Problem
    cache: Cache
    part: Part

    @property
    def newest_run(self) -> dict[str, Any]:
        """The row of the newest tuning run (the run that started last), as a dict from column names to values."""
        newest = max((tried.run for tried in self.part.trials.values()), key=lambda run: str(run[STARTED_AT]))
        return dict(zip(RUN, newest, strict=True))


def record_of(entry: Entry) -> dict[str, Any]:
    """Return the entry (trials of one problem on one device) as a JSON object. Equal entries have equal objects."""
    part, keys = entry.part, sorted(entry.part.trials)
    runs = sorted(set(_runs(part)), key=lambda run: (run[STARTED_AT], str(run)))
    run_numbers, trial_numbers = {one: at for at, one in enumerate(runs)}, {one: at for at, one in enumerate(keys)}

    def time(timed: Timed) -> dict[str, Any]:
        return {"run": run_numbers[timed.run], **_members(timed.values), "samples_us": list(timed.samples_us)}

    def trial(tried: Tried) -> dict[str, Any]:
        first = None if tried.first is None else time(tried.first)
        own = {"first": first, "others": [time(one) for one in tried.others]}
        return {"run": run_numbers[tried.run], **_members(tried.values), **own}

    def final(one: Round) -> dict[str, Any]:
        timed = [{"trial": trial_numbers[key], **time(one.timed[key])} for key in sorted(one.timed)]
        vendor = [time(one.vendor[library]) for library in sorted(one.vendor)]
        place = {"run": run_numbers[one.run], "final": one.final, "stamp": one.stamp}
        return {**place, "timed": timed, "vendor": vendor}

    return {
        "version": VERSION,
        "problem": entry.problem.text,
        "cache": entry.cache.value,
        "runs": [dict(zip(RUN, run, strict=True)) for run in runs],
        "trials": [trial(part.trials[key]) for key in keys],
        "rounds": [final(one) for one in part.rounds],
    }


def entry_of(record: Any) -> Entry:
    """Return the entry that an untrusted JSON object describes. Every value is checked.

    Raise InputError, LookupError, TypeError or ValueError if the object is not what `record_of` returns for an entry.
    """
    top = _object(record)
    if top.get("version") != VERSION:
        raise ValueError(f"its version is {shown(top.get('version'))}, and not {VERSION}")
    problem, cache = parse_problem(_member(top, "problem")), Cache(_member(top, "cache"))
    runs = [_run(one) for one in _list(_member(top, "runs"))]
    trials = dict[TrialKey, Tried]()
    for one in _list(_member(top, "trials")):
        tried = _tried(_object(one), runs, cache)
        key = tried.key
        if key in trials:
            raise ValueError(f"{key[0]} appears twice")
        trials[key] = tried
    devices = {device_of(run) for run in runs}
    if not trials or len(devices) != 1:
        raise ValueError(f"it has {len(trials)} trials on {len(devices)} devices")
    rounds = [_round(_object(one), runs, list(trials)) for one in _list(_member(top, "rounds"))]
    order = [(one.stamp, one.final) for one in rounds]
    if order != sorted(set(order)) or len({final for _, final in order}) < len(order):
        raise ValueError("its rounds are not in order")
    return Entry(devices.pop(), problem, cache, Part(trials, rounds))


def _runs(part: Part) -> Iterator[RunKey]:
    for tried in part.trials.values():
        yield tried.run
        yield from (one.run for one in (tried.first, *tried.others) if one is not None)
    for one in part.rounds:
        yield one.run
        yield from (timed.run for timed in one.members.values())


def _run(members: Any) -> RunKey:
    values = checked(_row(_object(members), RUN), (schema.run.c[name] for name in RUN))
    records.tuning_run({"id": 0, **values})
    return tuple(values[name] for name in RUN)


def _tried(members: Mapping[str, Any], runs: Sequence[RunKey], cache: Cache) -> Tried:
    values = _values(members, schema.trial)
    records.config_in(values)
    if values["superseded"] or values["cache"] != cache:
        raise ValueError(f"{values['config']} is superseded, or was timed in another state of the L2")
    if not SHA256.contains(values["basis"]):
        raise ValueError(f"the basis of {values['config']} is not a digest")
    if values["outcome"] == Outcome.BEHIND.value and {values["verdict_correct"], values["full_verdict"]} != {None}:
        raise ValueError(f"{values['config']} was behind and so not verified, but has a verdict")
    if values["outcome"] == Outcome.WRONG_RESULT.value and values["verdict_correct"]:
        raise ValueError(f"{values['config']} has a right result and is wrong")
    first, others = _member(members, "first"), _list(_member(members, "others"))
    tried = Tried(
        _run_of(members, runs),
        values,
        None if first is None else _timed(_object(first), runs),
        tuple(_timed(_object(one), runs) for one in others),
    )
    if any(one.values["cache"] != cache for one in (tried.first, *tried.others) if one is not None):
        raise ValueError(f"{values['config']} has a time in another state of the L2")
    return tried


def _round(members: Mapping[str, Any], runs: Sequence[RunKey], keys: Sequence[TrialKey]) -> Round:
    run = _run_of(members, runs)
    final, stamp = _member(members, "final"), _member(members, "stamp")
    of_final = {"final": final, "final_stamp": stamp}
    of_final = checked(of_final, [schema.measurement.c[name] for name in of_final])
    if None in of_final.values() or not stamp:
        raise ValueError(f"{shown(stamp)} is not a round of a final")
    timed, vendor = dict[TrialKey, Timed](), dict[str, Timed]()
    for one in map(_object, _list(_member(members, "timed"))):
        timed[keys[_member(one, "trial")]] = _timed(one, runs)
    for one in map(_object, _list(_member(members, "vendor"))):
        values, samples = _values(one, schema.vendor_measurement), _samples(one)
        vendor_measurements.vendor_measurement(
            {"id": 0, "run_id": 0, "problem_id": 0, "round": 1, **of_final, **values}, samples
        )
        vendor[values["library"]] = Timed(_run_of(one, runs), values, tuple(_member(one, "samples_us")))
    every = (*timed.values(), *vendor.values())
    if {one.run for one in every} != {run} or len({one.values["cache"] for one in every}) > 1:
        raise ValueError(f"round {stamp} has no times, or some of another run or in another state of the L2")
    return Round(run, final, stamp, timed, vendor)


def _timed(members: Mapping[str, Any], runs: Sequence[RunKey]) -> Timed:
    values = _values(members, schema.measurement)
    records.timed({"round": 0, **values}, _samples(members))
    return Timed(_run_of(members, runs), values, tuple(_member(members, "samples_us")))


def _run_of(members: Mapping[str, Any], runs: Sequence[RunKey]) -> RunKey:
    number = _member(members, "run")
    if type(number) is not int or number < 0:
        raise ValueError(f"{shown(number)} is not the number of a run")
    return runs[number]


def _samples(members: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"ordinal": at, "us": us} for at, us in enumerate(_list(_member(members, "samples_us")))]


def _values(members: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return the checked values of a row of the table, without numbers of rows and finals."""
    columns = own_columns(table)
    return checked(_row(members, [one.name for one in columns]), columns)


def _row(members: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    row = {name: members.get(name) if name in LATER else _member(members, name) for name in names}
    if row.get("verdict_correct") is not None and row[RATIO] is None:
        row[RATIO] = math.inf
    return row


def _members(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's values as members of a JSON object, in which null stands for an infinite error ratio."""
    known = ((name, value) for name, value in values.items() if value is not None or name not in LATER)
    return {name: None if name == RATIO and value == math.inf else value for name, value in known}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where an object is expected")
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where an array is expected")
    return value


def _member(members: Mapping[str, Any], name: str) -> Any:
    if name not in members:
        raise LookupError(f"the member {name} is missing")
    return members[name]
