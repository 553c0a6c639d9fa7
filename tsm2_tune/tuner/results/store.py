"""The store: write runs, trials and their samples; read winners and earlier trials."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, update

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.render import render
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results import (
    conditions,
    forget,
    insert,
    invalidate,
    loader,
    queries,
    records,
    row_values,
    trial_summaries,
    vendor_measurements,
)
from tsm2_tune.tuner.results.best_view import Among
from tsm2_tune.tuner.results.history import History
from tsm2_tune.tuner.results.insert import Kept
from tsm2_tune.tuner.results.records import BestRow, TrialRecord
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import Address, command_on, is_bundled, place_of
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.results.trial import PREFERRED, Cache, Final, Outcome, Trial, TuningRun
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial, TrialLine
from tsm2_tune.tuner.results.validation import MOST_DETAIL, checked
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.quarantine import Quarantined
from tsm2_tune.tuner.search.resume import Retries


class Store:
    """An open database. Each method that writes is one committed transaction: a kill loses or doubles nothing."""

    def __init__(self, database: Database) -> None:
        self.path = database.path
        self._database = database
        self._compared: set[tuple[str, Problem, str]] = set()  # kernels do not change while the program runs

    @classmethod
    @contextmanager
    def open(cls, name: str | PathLike[str], *, create: bool) -> Iterator[Store]:
        """The store in this database, made where it is missing if `create`. Raise StoreError as Database.open.

        Of trials that the package brings, such as pretuned:h100, it can only be read.
        """
        if is_bundled(name) and not create:
            from tsm2_tune.tuner.results.merge import (
                pretuned_database,  # a database of one's own does not wait for it
            )

            with pretuned_database.opened(os.fspath(name)) as database:
                yield cls(database)
            return
        with Database.open(place_of(name), create=create) as database:
            yield cls(database)

    @property
    def database(self) -> Database:
        """The file itself, for what reads all of it."""
        return self._database

    def claims(self, device_name: str) -> Claims:
        """Return the claims of a run on the device."""
        return Claims(self._database, device_name)

    def add_trial(self, run: TuningRun, trial: Trial, retries: Retries | None = None) -> int:
        """Store one trial, as `add_trials` does; returns its id."""
        return self.add_trials(run, [trial], retries)[0].trial_id

    @repeated
    def add_trials(
        self,
        run: TuningRun,
        trials: Sequence[Trial],
        retries: Retries | None = None,
        hazards: Iterable[Quarantined] = (),
    ) -> list[Kept]:
        """Store trials, each with its source, problem, run, measurement and samples; returns what is kept of each.

        The same configuration of the same device, problem and basis is stored once: the trial that was there
        first stays, and is returned. But one that counts as untried by `retries` gives its place to this one;
        without that, one that timed out under less. What timed out leaves the seconds that it took. Nobody has a
        claim to the configuration then. `hazards` are quarantined with that.
        """
        device = run.identity.name
        problems = {trial.problem.text for trial in trials}
        is_of_one = len(problems) == 1 and not hazards  # hazards count for all problems
        about = (device, *problems) if is_of_one else ()
        with self._database.transaction(writes=True, about=about) as connection:
            run_id = insert.found_or_added(connection, schema.run, row_values.run_values(run))
            ids = insert.add_trials(connection, run_id, device, trials, retries)
            quarantine.add(connection, hazards)
            return ids

    @repeated
    def add_final(self, run: TuningRun, final: Final, families: Collection[str], basis: str) -> int:
        """Store the finalists' new measurements, and the vendor's, as the problem's next rounds, one for each state
        of the L2 in the order of the final; returns the last one's number.

        The first is 1. Families and basis tell which of a configuration's trials was measured, as in `tried`.
        """
        about = (run.identity.name, final.problem.text)
        with self._database.transaction(writes=True, about=about) as connection:
            run_id = insert.found_or_added(connection, schema.run, row_values.run_values(run))
            tried = conditions.values_tried(run.identity.name, final.problem, families, basis)
            return insert.add_final(connection, str(self.path), run_id, run, final, tried)

    @repeated
    def add_full_verdict(self, trial_id: int, detail: str, verified_code: str | None = None) -> None:
        """Store that the trial's kernel was right in the full verification, what that tried, and the digests of the
        machine code that it is of.
        """
        with self._database.transaction(writes=True) as connection:
            row = update(schema.trial).where(schema.trial.c.id == trial_id)
            connection.execute(row.values(full_verdict=detail, verified_code=verified_code))

    @repeated
    def refute(self, trial_id: int, outcome: Outcome, detail: str, hazards: Iterable[Quarantined] = ()) -> None:
        """Store that the trial's kernel did not stand the full verification: it competes no more. `hazards` are
        quarantined with that.
        """
        with self._database.transaction(writes=True) as connection:
            row = update(schema.trial).where(schema.trial.c.id == trial_id)
            values: dict[str, Any] = {"outcome": outcome.value, "detail": detail[:MOST_DETAIL]}
            if outcome is Outcome.WRONG_RESULT:
                values |= {"verdict_correct": 0, "verdict_detail": detail[:MOST_DETAIL]}
            connection.execute(row.values(values))
            quarantine.add(connection, hazards)

    @repeated
    def count_as_tuned(self, device_name: str, problem: Problem, cache: Cache) -> None:
        """Store that the problem is searched in this state of the L2: what was tried before counts as of a search."""
        trial, about = schema.trial.c, (device_name, problem.text)
        with self._database.transaction(writes=True, about=about) as connection:
            problem_id = insert.found(connection, schema.problem, row_values.problem_key(problem))
            row = update(schema.trial).where(trial.device_name == device_name, trial.problem_id == problem_id)
            row = row.where(trial.cache == cache.value, trial.is_between == 1)
            connection.execute(row.values(is_between=0))

    def end_search(self, device_name: str, problem: Problem, basis: str, why: str) -> None:
        """Store with the trials of the problem's searches why the last of these ended."""
        trial, about = schema.trial.c, (device_name, problem.text)
        with self._database.transaction(writes=True, about=about) as connection:
            problem_id = insert.found(connection, schema.problem, row_values.problem_key(problem))
            row = update(schema.trial).where(trial.device_name == device_name, trial.problem_id == problem_id)
            row = row.where(trial.basis == basis, trial.strategy.is_not(None))
            connection.execute(row.values(search_ended=why))

    def searched(self, device_name: str, cache: Cache, alike: Problem) -> frozenset[Problem]:
        """The problems of this one's element type and op that a search tried anything of, in this state of the L2."""
        values = conditions.values(device_name, alike) | {"cache": cache.value}
        return frozenset(map(trial_summaries.problem_of, self._database.rows(queries.SEARCHED, values)))

    def full_verdict(self, row: BestRow, bases: Collection[str] = ()) -> tuple[str, str | None] | None:
        """Return the verdict of the full verification of the winner's kernel, and the digest of the verified machine
        code.

        Any problem's verdict counts if its configuration is the same, since another one launches the kernel
        differently. `bases` are those of every state of the L2, which does not affect correctness; the default is the
        winner's own.
        """
        values: dict[str, Any] = {name: getattr(row, name) for name in ("source_digest", "config", "trial_id")}
        values |= {"device_name": row.device, "bases": list(bases)}
        for found in self._database.rows(queries.FULL_VERDICT, values):
            with records.reading(found["id"]):
                known = checked(found, [schema.trial.c.full_verdict, schema.trial.c.verified_code])
                return str(known["full_verdict"]), known["verified_code"]
        return None

    @repeated
    def supersede(self, device_name: str, problem: Problem, basis: str) -> None:
        """Store which of the problem's trials on the device are of kernels that this program makes otherwise now, or
        not at all. They compete no more, and their configurations count as untried. Of an open store they are
        compared once: each is rendered for that.
        """
        if (device_name, problem, basis) in self._compared:
            return
        changed = invalidate.changed(self._database, device_name, problem, basis)
        with self._database.transaction(writes=bool(changed), about=(device_name, problem.text)) as connection:
            invalidate.mark(connection, changed)
        self._compared.add((device_name, problem, basis))

    def history(self, device_name: str, problem: Problem, families: Collection[str], basis: str) -> History:
        """Return the problem's trials on the device for these families and this basis."""
        return History(self._database, device_name, problem, tuple(families), basis)

    @repeated
    def forget(
        self,
        trials: Collection[int],
        outcomes: Collection[Outcome],
        tell: Callable[[Mapping[str, int]], object],
        *,
        device: str | None = None,
    ) -> None:
        """Remove these trials, and those of the outcomes, with all that is theirs alone; of this device those of the
        outcomes, or all where there are none.

        `tell` is called with the number of each outcome before that is done for good: not where it raises. InputError
        where there is no such trial.
        """
        with self._database.transaction(writes=True) as connection:
            found = forget.named(connection, trials, outcomes, device, str(self.path))
            forget.remove(connection, found.ids)
            tell(found.counts)

    @repeated
    def best(
        self,
        *,
        device: str | None = None,
        family: str | None = None,
        problem: Problem | None = None,
        cache: Cache | None = None,
        alike: Problem | None = None,
        between: bool = False,
    ) -> tuple[BestRow, ...]:
        """Return the winners, by device, dtype and shape; only those with this device, family or problem where given,
        or of the element type and op of the one that is `alike`. Those of shapes between tuned ones alone where
        `between`.

        They are those in this state of the L2; without one, of each problem those in the first of PREFERRED that it
        has. A winner is its problem's over all families: `family` leaves out the problems that another one won. One
        that this program would make otherwise, or not at all, is stale. Raise StoreError if a winner's rows
        contradict each other: where it is not verified, or its time not that of its samples.
        """
        asked, among = problem or alike, None
        if asked is not None:
            devices = self.devices_of_runs() if device is None else (device,)
            among = Among(devices, asked, is_alike=problem is None)
        values = {"device": device, "family": family, "cache": cache and cache.value, "is_between": int(between)}
        given = {name: value for name, value in values.items() if value is not None}
        query = queries.best(None if among is None else among.is_alike, tuple(given))
        rows = self._database.rows(query, given if among is None else given | among.values)
        found = [records.best_row(row) for row in rows]
        if cache is None:
            found = preferred(found)
        with self._database.transaction() as connection:
            loader.refuse_intervals(connection, among)
            loader.refuse_marks(connection, among)
            return tuple(loader.as_known(connection, row) for row in found)

    @repeated
    def vendor_us(self, device: str, problem: Problem, cache: Cache) -> float | None:
        """Return the vendor's median in the newest final of the problem where it was right, by its fastest routine
        there.

        In this state of the L2. None if no final has measured it. Raise StoreError if a row is not as it was stored.
        """
        values = conditions.values(device, problem) | {"cache": cache.value}
        rows = self._database.rows(vendor_measurements.NEWEST_RIGHT, values)
        return vendor_measurements.median_us(rows[0]) if rows else None

    @repeated
    def row(self, trial_id: int) -> BestRow:
        """Return the row of a trial that is ok, as `best` has it, though it may have won nothing: by its newest
        measurement.

        It is verified in full also where that was done for another problem. Raise StoreError as `best`.
        """
        found = self._database.rows(queries.ROW_OF, {"trial_id": trial_id})
        if not found:
            raise StoreError(f"{self.path} has no right result of trial {trial_id}: run this again")
        row = records.best_row(found[0])
        with self._database.transaction() as connection:
            row = loader.as_known(connection, row)
        known = row.verified_in_full or self.full_verdict(row) is not None
        return replace(row, verified_in_full=int(known))

    @repeated
    def winning(self, winners: Iterable[BestRow]) -> dict[int, TrialRecord]:
        """Trial -> everything about it, of these winners, with the source as this program renders it now.

        Raise StoreError if the file has another text, entry point, launch or type: what it alone has is not given.
        """
        by_trial, every = dict[int, TrialRecord](), tuple(winners)
        with self._database.transaction() as connection:
            for row in every:
                record = loader.winner_record(connection, row)
                found = record.trial
                if not record.unchanged:
                    raise StoreError(
                        f"{self.path} has a kernel {found.config.text} for {found.problem.text} on {row.device}"
                        f" (trial {row.trial_id}) that this tsm2-tune makes otherwise, or not at all: tune"
                        f" {found.problem.text} there again, into another --db where that changes nothing, or export"
                        " other devices alone with --device"
                    )
                made = render(found.problem, found.config)  # the same code, with the comments of this version
                by_trial[row.trial_id] = replace(record, trial=replace(found, source=made))
        _refuse_unverified(self.path, [row for row in every if not row.verified_in_full])
        return by_trial

    def sources(self, rows: Iterable[BestRow]) -> dict[int, KernelSource]:
        """Trial -> source of these winners. Raise StoreError as `winning`."""
        return {trial_id: record.trial.source for trial_id, record in self.winning(rows).items()}

    @repeated
    def trial(self, trial_id: int) -> TrialRecord:
        """Everything about one trial. Raise InputError if there is none of this number."""
        with self._database.transaction() as connection:
            if insert.found(connection, schema.trial, {"id": trial_id}) is None:
                raise InputError(
                    f"no trial {trial_id} in {self.path}: {command_on('show', str(self.path))} lists them"
                )
            with records.reading(trial_id):
                return loader.trial_record(connection, trial_id)

    def listing(self) -> tuple[TrialLine, ...]:
        """Return every trial, in the order they were stored."""
        query = (
            select(schema.trial, *records.PROBLEM_KEY, schema.measurement.c.median_us)
            .join(schema.problem)
            .outerjoin(schema.measurement, conditions.IS_FIRST)
            .order_by(schema.trial.c.id)
        )
        rows = self._database.rows(query)
        return tuple(trial_summaries.trial_line(row) for row in rows)

    def current(
        self, device: str, problem: Problem | None = None, *, alike: Problem | None = None
    ) -> tuple[CurrentTrial, ...]:
        """The device's trials that are not superseded, of each family's newest basis for their problem and state of
        the L2, in the order they were stored.

        Only those of this problem where it is given, or of the element type and op of the one that is `alike`.
        """
        asked = problem or alike
        query = queries.current(None if asked is None else problem is None)
        values = {"device_name": device} if asked is None else conditions.values(device, asked)
        rows = self._database.rows(query, values)
        keys = [(row["problem_id"], row["family"], row["cache"]) for row in rows]
        in_time = sorted(zip(keys, rows, strict=True), key=lambda pair: (pair[1]["stamp"], pair[1]["basis"]))
        basis = {key: row["basis"] for key, row in in_time}  # the last one's
        return tuple(
            trial_summaries.current_trial(row)
            for key, row in zip(keys, rows, strict=True)
            if basis[key] == row["basis"]
        )

    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that have trials."""
        name = schema.trial.c.device_name
        query = select(func.min(schema.trial.c.id).label("id"), name).group_by(name).order_by(name)
        return tuple(map(trial_summaries.device_name, self._database.rows(query)))

    def devices_of_runs(self) -> tuple[str, ...]:
        """Return the names of the devices that have runs, which are fewer than trials."""
        return tuple(row["device_name"] for row in self._database.rows(select(schema.run.c.device_name).distinct()))

    def newest_run(self, device: str) -> TuningRun:
        """Return the last run on the device. Raise StoreError if it is not as this program stores runs."""
        query = select(schema.run).where(schema.run.c.device_name == device).order_by(schema.run.c.id.desc()).limit(1)
        rows = self._database.rows(query)
        if not rows:
            raise StoreError(f"{self.path} has no run on {device!r}, though it has trials: restore a copy of it")
        with records.reading(rows[0]["id"], "run"):
            return records.tuning_run(rows[0])


def _refuse_unverified(path: Path | Address, winners: Sequence[BestRow]) -> None:
    """StoreError where there are some of these, which were not verified in full, with the command that does that."""
    if not winners:
        return
    first = winners[0]
    others = sum(row.device == first.device for row in winners) - 1
    count = f"{others + 1} winners on {first.device} that were" if others else f"a winner on {first.device} that was"
    state = f" --cache {first.cache}" if first.compute_capability and first.cache != Cache.DIRTY else ""
    on = "" if first.compute_capability else " --device cpu"
    raise StoreError(
        f"{path} has {count} not verified in full, {'such as ' if others else ''}{first.config} for"
        f" {first.problem.text}: `tsm2-tune --db {shlex.quote(str(path))}{on}{state} --shapes"
        f" {first.problem.text}{',...' if others else ''}` on that device verifies"
        f" {'those that it names' if others else 'it'}, or export those of another device alone with --device"
    )


def preferred(found: Sequence[BestRow]) -> list[BestRow]:
    """Return one winner for each device and problem: that of the first state of the L2 in PREFERRED that has one."""
    by_place: dict[tuple[str, Problem], BestRow] = {}
    for row in sorted(found, key=lambda row: PREFERRED.index(Cache(row.cache))):
        by_place.setdefault((row.device, row.problem), row)
    return [row for row in found if by_place[row.device, row.problem] is row]
