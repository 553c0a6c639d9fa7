"""Stamps of trials and finals, and identities of finals, for databases of versions that did not store them.

They are computed from stored dates and times alone, so that copies of one database get the same ones. A final's
identity is a digest of its run, its problem and one of its times: the least of the vendor's, which stay when trials
are forgotten, else the fastest kernel's.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from tsm2_tune.tuner.results import stamps
from tsm2_tune.tuner.results.fingerprint import OF_SUPERSEDED, basis, superseded_basis
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Cache

TIMES = ("median_us", "low_us", "high_us")
RUN = tuple(column.name for column in schema.run.columns if column.name not in ("id", "sms"))
_UNREADABLE = (ArithmeticError, TypeError, ValueError)


def final(run: Sequence[Any], problem: Sequence[Any], vendor: Iterable[Any], timed: Iterable[Any]) -> str:
    """Return the identity of a final from its run, its problem, and its vendor's and kernels' times."""
    every = min(vendor, default=None) or min(timed)
    return hashlib.sha256(json.dumps([*run, *problem, *every], default=str).encode()).hexdigest()[:16]


def final_stamp(started_at: str, number: int, newest: int) -> int:
    """Return the stamp of the final with this number in its run. It is greater than `newest`."""
    return max(stamps.of_date(started_at) + number, newest + 1)


def stamp(connection: Connection) -> None:
    """Write stamps and identities into all trials and finals. Unreadable rows get none."""
    trial, run = schema.trial.c, schema.run.c
    columns = (trial.id, trial.ended_at, trial.superseded, trial.cache, run.toolkit, run.flags)
    values, own = [], [trial[name] for name in OF_SUPERSEDED if name != "stamp"]
    for row in connection.execute(select(*columns, *own).join(schema.run, run.id == trial.run_id)):
        with suppress(*_UNREADABLE):
            first = basis(row.toolkit, row.flags, Cache(row.cache)) if row.superseded else None
            of_row = {"stamp": stamps.of_date(row.ended_at), "first_basis": first}
            known = {**row._mapping, **of_row, "basis": first}
            values.append({"of": row.id, **of_row, "basis": superseded_basis(known) if first else row.basis})
    if values:
        connection.execute(update(schema.trial).where(trial.id == bindparam("of")), values)
    _stamp_finals(connection)


def _stamp_finals(connection: Connection) -> None:
    trial, time, vendor, run = schema.trial.c, schema.measurement.c, schema.vendor_measurement.c, schema.run.c
    problem = [column for column in schema.problem.c if column.name in ("op", "dtype", "m", "n", "k")]
    runs = {row.id: row for row in connection.execute(select(schema.run))}
    problems = {row[0]: tuple(row[1:]) for row in connection.execute(select(schema.problem.c.id, *problem))}
    kernels, vendors = defaultdict[Any, list[Any]](list), defaultdict[Any, list[Any]](list)
    rows = select(
        time.id, trial.problem_id, trial.device_name, time.round, time.run_id, *(time[one] for one in TIMES)
    )
    for number, *place, median, low, high in connection.execute(rows.join(schema.trial).where(time.round > 0)):
        kernels[tuple(place)].append((number, (median, low, high)))
    rows = select(vendor.id, vendor.problem_id, run.device_name, vendor.round, vendor.run_id,
                  *(vendor[one] for one in TIMES))  # fmt: skip
    for number, *place, median, low, high in connection.execute(rows.join(schema.run)):
        vendors[tuple(place)].append((number, (median, low, high)))
    newest, known = defaultdict[Any, int](int), defaultdict[Any, set[str]](set)
    found = dict[str, list[dict[str, Any]]](measurement=[], vendor_measurement=[])
    for place in sorted(kernels.keys() | vendors.keys(), key=lambda place: (place[2], str(place))):
        with suppress(*_UNREADABLE):
            problem_id, device, number, run_id = place
            key = [getattr(runs[run_id], name) for name in RUN]
            times = [[one for _, one in of[place]] for of in (vendors, kernels)]
            newest[problem_id, device] = final_stamp(runs[run_id].started_at, number, newest[problem_id, device])
            own = final(key, problems[problem_id], *times)
            while own in known[problem_id, device]:  # another final with the same time
                own = final([own], (), (), ((),))
            known[problem_id, device].add(own)
            of_final = {"final": own, "final_stamp": newest[problem_id, device]}
            for name, of in (("measurement", kernels), ("vendor_measurement", vendors)):
                found[name] += [{"of": row_id, **of_final} for row_id, _ in of[place]]
    for name, values in found.items():
        table = schema.metadata.tables[name]
        if values:
            connection.execute(update(table).where(table.c.id == bindparam("of")), values)
