"""Check a database: SQLite's integrity check, the schema, and the values of every row."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from sqlalchemy import Connection, distinct, exists, func, or_, select

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.doctor.finding import Finding, State, note, ok, problem
from tsm2_tune.tuner.results import forget, logical_clock, queries, records
from tsm2_tune.tuner.results.merge import files
from tsm2_tune.tuner.results.merge.reader import Reader, places
from tsm2_tune.tuner.results.merge.union import Part, Round, Tried
from tsm2_tune.tuner.results.storage import schema, schema_versions, sqlite, sqlite_schema
from tsm2_tune.tuner.results.storage.addresses import Address, command_on, is_text, place_of, tune_first
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import count_text, in_a_line
from tsm2_tune.tuner.runs.leases import is_unused
from tsm2_tune.tuner.search import quarantine

RESTORE = "restore a copy"
SOON_US = 24 * 3600 * 10**6  # tolerated difference between two machines' clocks
MOST_OF_A_KIND = 20  # findings of one kind that are listed; further findings are counted
MOST_INTEGRITY = 20  # lines of SQLite's integrity check

TRIAL, TIME, RUN, VENDOR = schema.trial.c, schema.measurement.c, schema.run.c, schema.vendor_measurement.c


def check(name: str) -> tuple[Finding, ...]:
    """Check a database or a file of trials, and return the findings. The last one counts trials and measurements.

    The database is not changed: a file is copied and the copy is checked. On a server only the rows are checked,
    since the server checks its own files. Raise StoreError if there is no database, or if this program cannot read
    its version. Raise InputError if the text cannot be read.
    """
    if is_text(name):
        with files.opened_text(name) as database:
            return tuple(_findings(database))
    place = place_of(name)
    if isinstance(place, Address):
        with Database.open(place, create=False) as database:
            return tuple(_shortened(_found(database)))
    try:
        with Database.copied(place) as database:
            return tuple(_findings(database))
    except StoreError as error:
        if sqlite.code_of(error.__cause__) != sqlite3.SQLITE_CORRUPT:
            raise
        return (_refusal("integrity", place, error),)


def _findings(database: Database) -> list[Finding]:
    path = str(database.path)
    with database.transaction() as connection:
        version = schema_versions.found_version(connection, path)
    if version == 0:
        raise StoreError(f"{path} holds no results yet: {tune_first(path)}")
    found = list(_in_file(database, version))
    if any(one.state is State.PROBLEM for one in found):
        return found
    if version < schema_versions.version():
        database.migrate()
    return [*found, *_shortened(_found(database))]


def _refusal(name: str, path: object, error: StoreError) -> Finding:
    """Return a finding with the error's message, without the path at its beginning."""
    return problem(name, str(error).removeprefix(f"{path} "))


def _in_file(database: Database, version: int) -> Iterator[Finding]:
    """Yield findings about the file: altered tables, an old schema, damaged pages, and references to missing rows."""
    path = str(database.path)
    try:
        with database.transaction() as connection:
            sqlite_schema.refuse_others(connection, path, version)
    except StoreError as error:
        yield _refusal("layout", path, error)
    if version < schema_versions.version():
        remedy = f"{command_on('db migrate', path)} migrates it, as does the next command that opens it"
        yield note("schema", f"{version}, older than this version's {schema_versions.version()}", remedy=remedy)
    try:
        with database.transaction() as connection:
            messages = connection.exec_driver_sql(f"PRAGMA integrity_check({MOST_INTEGRITY})").scalars().all()
            dangling = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
    except StoreError as error:
        yield _refusal("integrity", path, error)
        return
    for text in messages:
        if text != "ok":
            yield problem("integrity", in_a_line(str(text)), remedy=RESTORE)
    for (table, parent), count in sorted(dangling.items()):
        found = f"{count_text(count, 'row')} of {table} of a {parent} that does not exist"
        yield problem("references", found, remedy=RESTORE)


def _found(database: Database) -> list[Finding]:
    """Return the findings about the rows and, if none is a problem, an error in reading the fastest kernels."""
    found = list(_in_rows(database))
    if not any(one.state is State.PROBLEM for one in found):
        try:
            for between in (False, True):
                Store(database).best(between=between)
        except StoreError as error:
            found.insert(-1, _refused(error))
    return found


def _in_rows(database: Database) -> Iterator[Finding]:
    """Yield findings about contradictions between rows, then about unused rows, and last the number of rows."""
    faulty = list[StoreError]()
    with database.transaction() as connection:
        try:
            every = places(connection)
        except StoreError as error:
            yield _refused(error)
            return
        yield from _contradictions(connection, str(database.path))
    otherwise, trials, times = Counter[str](), 0, 0
    for device, asked in every:
        try:
            with database.transaction() as connection:
                part = Reader(connection, faulty.append).part(device, asked)
        except (InputError, StoreError) as error:
            yield problem("row", f"of {asked.text} on {device}: {in_a_line(str(error))}")
            continue
        yield from map(_refused, faulty)
        faulty.clear()
        yield from _in_part(device, asked, part)
        otherwise[device] += sum(_is_outdated(asked, tried) for tried in part.trials.values())
        trials, times = trials + len(part.trials), times + part.times
    yield from _of_the_future(database)
    for device, count in sorted((+otherwise).items()):
        found = f"{count_text(count, 'trial')} of kernels whose code changed in this version, on {device}"
        yield note("kernels", found, means="their times can still win", remedy="tune again on that device")
    try:
        quarantine.entries(database)
    except StoreError as error:
        yield _refused(error)
    yield from _needed_by_nothing(database)
    counts = (count_text(trials, "trial"), count_text(times, "measurement"), count_text(len(every), "problem"))
    yield ok("database", ", ".join(counts), trials=trials, times=times)


def _refused(error: StoreError) -> Finding:
    """Return the finding for an invalid row."""
    found, _, remedy = in_a_line(str(error)).partition("): ")
    return problem("row", f"{found})", remedy=remedy)


def _contradictions(connection: Connection, path: str) -> Iterator[Finding]:
    for what, is_so in queries.CONTRADICTIONS.items():
        for number in connection.execute(select(TRIAL.id).where(is_so).order_by(TRIAL.id)).scalars():
            yield problem("trial", f"trial {number} {what}", remedy=command_on(f"forget {number}", path))
    is_doubled = or_(*(func.count(distinct(one)) > 1 for one in (TIME.run_id, TIME.cache, TIME.final)))
    of_final = (TRIAL.device_name, TRIAL.problem_id, TIME.round)
    finals = select(*of_final).join(schema.measurement, TIME.trial_id == TRIAL.id).where(TIME.round > 0)
    for row in connection.execute(finals.group_by(*of_final).having(is_doubled).order_by(*of_final)):
        where = f"of problem {row.problem_id} on {in_a_line(row.device_name)}"
        yield problem("final", f"round {row.round} {where} belongs to two finals")
    beside = exists().where(
        TIME.trial_id == TRIAL.id, TRIAL.problem_id == VENDOR.problem_id, TIME.run_id == VENDOR.run_id,
        TIME.round == VENDOR.round, TIME.cache != VENDOR.cache,
    )  # fmt: skip
    for number in connection.execute(select(VENDOR.id).where(beside).order_by(VENDOR.id)).scalars():
        found = f"vendor measurement {number} is in another state of the L2 than the kernels of its final"
        yield problem("final", found, remedy=RESTORE)


def _in_part(device: str, asked: Problem, part: Part) -> Iterator[Finding]:
    """Yield a finding for each final comparison of the problem that is stored twice."""
    where = f"of {asked.text} on {device}"
    known = Counter(map(_final_key, part.rounds))
    for one in part.rounds:
        if known[_final_key(one)] > 1:
            yield problem("final", f"final {one.final} {where} appears twice")


def _final_key(one: Round) -> object:
    """Return a key that is equal for copies of one final comparison: its run and all its time samples."""
    timed = ((key, *timed.key, timed.samples_us) for key, timed in one.timed.items())
    return one.run, frozenset(timed)


def _is_outdated(asked: Problem, tried: Tried) -> bool:
    """Return whether the trial can still win, although this program makes another kernel or none."""
    return not tried.values["superseded"] and records.current_kernel(asked, tried.values) is None


def _of_the_future(database: Database) -> Iterator[Finding]:
    """Yield a finding for runs and trials with a date in the future, which were stored while a clock was ahead."""
    latest = logical_clock.after(None) + SOON_US
    date = datetime.fromtimestamp(latest / 1e6, UTC).isoformat(timespec="seconds")
    late = {
        "run": (RUN.id, RUN.started_at > date),
        "trial": (TRIAL.id, or_(TRIAL.ended_at > date, TRIAL.stamp > latest)),
    }
    for what, (number, is_late) in late.items():
        with database.transaction() as connection:
            count, first = connection.execute(select(func.count(), func.min(number)).where(is_late)).one()
        if count:
            found = f"{count_text(count, what)} dated in the future, first {what} {first}"
            yield note("clock", found, means="a clock was ahead", remedy="set the clock, then tune again")


def _needed_by_nothing(database: Database) -> Iterator[Finding]:
    remedy = f"{command_on('db vacuum', str(database.path))} removes them"
    with database.transaction() as connection:
        for name, count in forget.count_unused(connection).items():
            if count:
                yield note(
                    "unused", f"{count_text(count, 'row')} of {name}", means="no trial uses them", remedy=remedy
                )
        leases = select(func.count()).select_from(schema.lease).where(is_unused(database.now(connection)))
        expired = connection.execute(leases).scalar_one()
    if expired:
        yield note("leases", f"{count_text(expired, 'lease')} of runs that were killed", remedy=remedy)


def _shortened(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield at most MOST_OF_A_KIND findings of each kind, the number of the others, and the last finding last."""
    counts, last = Counter[str](), list[Finding]()
    for one in found:
        counts[one.name] += 1
        if counts[one.name] <= MOST_OF_A_KIND:
            last.append(one)
    *others, end = last
    yield from others
    for name, count in counts.items():
        if count > MOST_OF_A_KIND:
            yield problem(name, f"{count - MOST_OF_A_KIND} more findings of this kind")
    yield end
