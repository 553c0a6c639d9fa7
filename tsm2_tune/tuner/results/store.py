"""The store: write tuning runs, trials and measurements; read the fastest kernels and earlier trials."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from os import PathLike
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, update

from tsm2_tune.errors import InputError, StoreError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import (
    best_view,
    forget,
    history,
    insert,
    loader,
    queries,
    records,
    trial_summaries,
    upsert,
    vendor_measurements,
)
from tsm2_tune.tuner.results.best_view import Among, BestRow
from tsm2_tune.tuner.results.columns import values_of
from tsm2_tune.tuner.results.domains import MOST_DETAIL, checked
from tsm2_tune.tuner.results.history import History
from tsm2_tune.tuner.results.insert import Kept
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.addresses import command_on, is_text, place_of
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.results.storage.sqlite import fetched
from tsm2_tune.tuner.results.trial import Cache, Final, Outcome, Trial, TuningRun
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial, TrialLine
from tsm2_tune.tuner.runs.leases import Leases
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.quarantine import Quarantined
from tsm2_tune.tuner.search.resume import Retries


class Store:
    """An open database of tuning results.

    Each method that writes uses one transaction, so a killed process neither loses nor duplicates a row.
    """

    def __init__(self, database: Database) -> None:
        self.path, self.database = database.path, database
        self._compared: set[tuple[str, Problem, str]] = set()  # kernels do not change while the program runs

    @classmethod
    @contextmanager
    def open(cls, name: str | PathLike[str], *, create: bool) -> Iterator[Store]:
        """Open the store in the database `name`, which is created if `create` is true and it is missing.

        A file of trials (pretuned:h100, a100.jsonl) is opened read-only. Raise StoreError if the database cannot be
        used, InputError if the text cannot be read.
        """
        if is_text(name) and not create:
            from tsm2_tune.tuner.results.merge import files  # imported here, since databases do not need it

            with files.opened_text(os.fspath(name)) as database:
                yield cls(database)
            return
        with Database.open(place_of(name), create=create) as database:
            yield cls(database)

    def leases(self, device_name: str) -> Leases:
        """Return this run's leases on the device, which prevent other runs from tuning the same problems."""
        return Leases(self.database, device_name)

    def add_trial(self, run: TuningRun, trial: Trial, retries: Retries | None = None) -> int:
        """Store one trial as `add_trials` does, and return the id of the one that is stored."""
        return self.add_trials(run, [trial], retries)[0].trial_id

    @repeated
    def add_trials(
        self,
        run: TuningRun,
        trials: Sequence[Trial],
        retries: Retries | None = None,
        hazards: Iterable[Quarantined] = (),
    ) -> list[Kept]:
        """Store trials with all that belongs to them, and `hazards`: kernels that hung or crashed. Return those
        stored.

        One trial is stored for each device, problem, configuration and basis. An earlier trial is kept, unless
        `retries` includes it. Without `retries` it is replaced if it was interrupted, or timed out under shorter
        limits. If the earlier trial timed out, its time is added to the new trial's.
        """
        device = run.identity.name
        problems = {trial.problem.text for trial in trials}
        is_of_one = len(problems) == 1 and not hazards  # hazards apply to all problems
        about = (device, *problems) if is_of_one else ()
        with self.database.transaction(writes=True, about=about) as connection:
            run_id = upsert.found_or_added(connection, schema.run, values_of(run, schema.run))
            ids = insert.add_trials(connection, run_id, device, trials, retries)
            quarantine.add(connection, hazards)
            return ids

    @repeated
    def add_final(self, run: TuningRun, final: Final, families: Collection[str], basis: str) -> int:
        """Store the measurements of a final comparison, with a round for each L2 cache state. Return the last round.

        `families` and `basis` select the trial of each configuration, as in `History.tried`.
        """
        about = (run.identity.name, final.problem.text)
        with self.database.transaction(writes=True, about=about) as connection:
            run_id = upsert.found_or_added(connection, schema.run, values_of(run, schema.run))
            tried = queries.values_tried(run.identity.name, final.problem, families, basis)
            return insert.add_final(connection, str(self.path), run_id, run, final, tried)

    @repeated
    def add_full_verdict(self, trial_id: int, detail: str, verified_code: str | None = None) -> None:
        """Store that the kernel passed the full verification: its calls, and the digests of the verified code.

        Without digests the stored ones are kept: they belong to an earlier verification of the kernel.
        """
        codes = {} if verified_code is None else {"verified_code": verified_code}
        self._change({"full_verdict": detail, **codes}, schema.trial.c.id == trial_id)

    @repeated
    def refute(self, trial_id: int, outcome: Outcome, detail: str, hazards: Iterable[Quarantined] = ()) -> None:
        """Store that the kernel failed the full verification, so that it cannot win, and `hazards` as `add_trials`
        does.
        """
        values: dict[str, Any] = {"outcome": outcome.value, "detail": detail[:MOST_DETAIL]}
        if outcome is Outcome.WRONG_RESULT:
            values |= {"verdict_correct": 0, "verdict_detail": detail[:MOST_DETAIL]}
        self._change(values, schema.trial.c.id == trial_id, hazards=hazards)

    @repeated
    def quarantine_kernels(self, hazards: Iterable[Quarantined]) -> None:
        """Store kernels that hung or crashed, which later runs skip."""
        with self.database.transaction(writes=True) as connection:
            quarantine.add(connection, hazards)

    @repeated
    def count_as_tuned(self, device_name: str, problem: Problem, cache: Cache) -> None:
        """Mark the problem's trials in this L2 cache state as tried by a search."""
        trial = schema.trial.c
        which = (trial.cache == cache.value, trial.is_between == 1)
        self._change({"is_between": 0}, *which, about=(device_name, problem))

    def end_search(self, device_name: str, problem: Problem, basis: str, why: str) -> None:
        """Store the reason `why` the problem's last search ended. It is stored in the rows of the search's trials."""
        trial = schema.trial.c
        which = (trial.basis == basis, trial.strategy.is_not(None))
        self._change({"search_ended": why}, *which, about=(device_name, problem))

    def _change(
        self,
        values: Mapping[str, Any],
        *which: ColumnElement[bool],
        about: tuple[str, Problem] | None = None,
        hazards: Iterable[Quarantined] = (),
    ) -> None:
        """Change columns of the trials that meet the conditions. Store `hazards` in the same transaction.

        If `about` is given, change only trials of this device and problem.
        """
        texts = (about[0], about[1].text) if about else ()
        with self.database.transaction(writes=True, about=texts) as connection:
            row = update(schema.trial).where(*which)
            if about:
                problem_id = upsert.found(connection, schema.problem, records.problem_key(about[1]))
                row = row.where(schema.trial.c.device_name == about[0], schema.trial.c.problem_id == problem_id)
            connection.execute(row.values(values))
            quarantine.add(connection, hazards)

    def searched(self, device_name: str, cache: Cache, alike: Problem) -> frozenset[Problem]:
        """Return the problems of the type and op of `alike` that a search tuned in this L2 cache state."""
        values = queries.values(device_name, alike) | {"cache": cache.value}
        return frozenset(map(records.problem_of, self.database.rows(queries.SEARCHED, values)))

    def full_verdict(self, row: BestRow, bases: Collection[str] = ()) -> tuple[str, str | None] | None:
        """Return the result of the full verification of the winner's kernel, and the digests of the verified code.

        A verification for another problem counts if kernel and configuration are equal. A verification in another
        state of the L2 counts if its basis is in `bases`. Neither affects correctness. Return None if there is none.
        """
        values: dict[str, Any] = {name: getattr(row, name) for name in ("source_digest", "config", "trial_id")}
        values |= {"device_name": row.device, "bases": list(bases)}
        for found in self.database.rows(queries.FULL_VERDICT, values):
            with records.reading(found["id"]):
                known = checked(found, [schema.trial.c.full_verdict, schema.trial.c.verified_code])
                return str(known["full_verdict"]), known["verified_code"]
        return None

    @repeated
    def supersede(self, device_name: str, problem: Problem, basis: str) -> None:
        """Mark the problem's trials whose kernels this program makes differently or no longer.

        They cannot win, and the search tries their configurations again. As the comparison generates each kernel, it
        is made once while the store is open.
        """
        if (device_name, problem, basis) in self._compared:
            return
        changed = history.changed(self.database, device_name, problem, basis)
        with self.database.transaction(writes=bool(changed), about=(device_name, problem.text)) as connection:
            history.mark(connection, changed)
        self._compared.add((device_name, problem, basis))

    def history(self, device_name: str, problem: Problem, families: Collection[str], basis: str) -> History:
        """Return the problem's trials on the device with these families and this basis."""
        return History(self.database, device_name, problem, tuple(families), basis)

    @repeated
    def forget(
        self,
        trials: Collection[int],
        outcomes: Collection[Outcome],
        tell: Callable[[Mapping[str, int]], object],
        *,
        device: str | None = None,
    ) -> None:
        """Delete the given trials, those with the given outcomes, and the rows that no remaining trial refers to.

        `device` restricts the outcomes to this device; without outcomes all of its trials are deleted. `tell` is
        called before the commit with the number of trials by outcome; if it raises, nothing is deleted. Raise
        InputError if a given trial does not exist.
        """
        with self.database.transaction(writes=True) as connection:
            found = forget.named(connection, trials, outcomes, device, str(self.path))
            forget.remove(connection, list(found))
            tell(Counter(map(str, found.values())))

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
        omit: Collection[tuple[str, Problem]] = (),
    ) -> tuple[BestRow, ...]:
        """Return the fastest kernel (winner) of each problem, sorted by device, element type and shape.

        The arguments select a device, a family, a problem, the type and op of `alike`, or an L2 cache state. If
        `between` is true, only shapes that no search tuned are returned, else only tuned ones. Without `cache`, each
        problem has one row, for the first state of PREFERRED in which it has a winner. Problems that another family
        than `family` wins, and the pairs of `omit`, are left out. A row is stale if the kernel's code has changed, or
        if the family has newer trials with another compiler. Raise StoreError if a winner's rows contradict each
        other.
        """
        asked, among = problem or alike, None
        if asked is not None:
            devices = self.devices_of_runs() if device is None else (device,)
            among = Among(devices, asked, is_alike=problem is None)
        values = {"device": device, "family": family, "cache": cache and cache.value, "is_between": int(between)}
        given = {name: value for name, value in values.items() if value is not None}
        with self.database.transaction() as connection:
            found = self.winners(connection, among, given)
            if cache is None:
                found = best_view.preferred(found)
            return tuple(self.known(connection, [row for row in found if (row.device, row.problem) not in omit]))

    def winners(self, connection: Connection, among: Among | None, given: Mapping[str, Any]) -> list[BestRow]:
        """Return the rows of the view `best`, without the vendor's times, with the values `given` in their columns.

        Raise StoreError if a row is invalid, or if a trial would be skipped.
        """
        query = queries.best(None if among is None else among.is_alike, tuple(given))
        rows = fetched(connection, query, given if among is None else {**given, **among.values})
        found = [records.best_row(row) for row in rows]
        loader.refuse_hidden(connection, among)
        return found

    def known(self, connection: Connection, rows: Sequence[BestRow]) -> Iterable[BestRow]:
        """Return these winners with the vendor's times. One is stale if this program makes another kernel."""
        return loader.as_known(connection, partial(self.records, connection), rows)

    @repeated
    def vendor_us(self, device: str, problem: Problem, cache: Cache) -> float | None:
        """Return the median of the vendor's fastest right routine in the newest final of this state that has one."""
        values = queries.values(device, problem) | {"cache": cache.value}
        rows = self.database.rows(vendor_measurements.NEWEST_RIGHT, values)
        column = schema.vendor_measurement.c.median_us
        return records.value_of(rows[0], column, vendor_measurements.KIND) if rows else None

    @repeated
    def rows(self, trial_ids: Sequence[int]) -> list[BestRow]:
        """Return the rows of these trials as `best` does, for any trials with right results, by their newest times.

        A row counts as verified in full if the same kernel was so for another problem. Raise StoreError if a trial
        has no right result, or if its rows contradict each other.
        """
        rows = []
        for trial_id in trial_ids:
            found = self.database.rows(queries.ROW_OF, {"trial_id": trial_id})
            if not found:
                raise StoreError(f"{self.path} has no right result of trial {trial_id}: run this again")
            rows.append(records.best_row(found[0]))
        with self.database.transaction() as connection:
            rows = list(self.known(connection, rows))
        verified = [row.verified_in_full or self.full_verdict(row) is not None for row in rows]
        return [replace(row, verified_in_full=int(one)) for row, one in zip(rows, verified, strict=True)]

    @repeated
    def winning(self, winners: Iterable[BestRow]) -> dict[int, TrialRecord]:
        """Return the records of these winners by trial id, with their kernels as this program makes them.

        Raise StoreError if a stored kernel is another, or if a winner has not passed the full verification.
        """
        every = tuple(winners)
        with self.database.transaction() as connection:
            read = partial(self.records, connection)
            found = {one.id: one for one in loader.rendered_winners(read, every, str(self.path))}
        loader.refuse_unverified(str(self.path), [row for row in every if not row.verified_in_full])
        return found

    def records(self, connection: Connection, trial_ids: Sequence[int]) -> Iterable[TrialRecord]:
        """Return the records of these trials in their order. Raise StoreError if one is missing or damaged."""
        return loader.trial_records(connection, trial_ids)

    @repeated
    def trials(self, trial_ids: Sequence[int]) -> dict[int, TrialRecord]:
        """Return the records of these trials by id. Raise StoreError if one does not exist or is damaged."""
        with self.database.transaction() as connection:
            return {one.id: one for one in self.records(connection, trial_ids)}

    @repeated
    def trial(self, trial_id: int) -> TrialRecord:
        """Return the record of one trial. Raise InputError if there is no trial with this id."""
        with self.database.transaction() as connection:
            if upsert.found(connection, schema.trial, {"id": trial_id}) is None:
                raise InputError(
                    f"no trial {trial_id} in {self.path}: {command_on('show', str(self.path))} lists them"
                )
            (found,) = self.records(connection, [trial_id])
            return found

    def listing(self) -> tuple[TrialLine, ...]:
        """Return one line for each stored trial, in the order in which they were stored."""
        return tuple(map(trial_summaries.trial_line, self.database.rows(queries.LISTING)))

    def current(
        self, device: str, problem: Problem | None = None, *, alike: Problem | None = None
    ) -> tuple[CurrentTrial, ...]:
        """Return the device's trials with unchanged code and their family's newest compiler, in the order of storing.

        Only those of `problem`, or of problems with the type and op of `alike`, are returned.
        """
        asked = problem or alike
        query = queries.current(None if asked is None else problem is None)
        values = {"device_name": device} if asked is None else queries.values(device, asked)
        rows = self.database.rows(query, values)
        ages = [tuple(records.value_of(row, schema.trial.c[name]) for name in ("stamp", "basis")) for row in rows]
        keys = [(row["problem_id"], row["family"], row["cache"]) for row in rows]
        in_time = sorted(zip(keys, ages, strict=True), key=itemgetter(1))
        basis = {key: newest for key, (_, newest) in in_time}  # the last row of a key determines its basis
        return tuple(
            trial_summaries.current_trial(row)
            for key, row in zip(keys, rows, strict=True)
            if basis[key] == row["basis"]
        )

    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices that have trials."""
        name = schema.trial.c.device_name
        query = select(func.min(schema.trial.c.id).label("id"), name).group_by(name).order_by(name)
        return tuple(records.value_of(row, name) for row in self.database.rows(query))

    def devices_of_runs(self) -> tuple[str, ...]:
        """Return the names of the devices that have runs, of which there are fewer than of trials."""
        return tuple(row["device_name"] for row in self.database.rows(select(schema.run.c.device_name).distinct()))

    def newest_run(self, device: str) -> TuningRun:
        """Return the last tuning run on the device. Raise StoreError if it has none, or if the row is invalid."""
        query = select(schema.run).where(schema.run.c.device_name == device).order_by(schema.run.c.id.desc()).limit(1)
        rows = self.database.rows(query)
        if not rows:
            raise StoreError(f"{self.path} has no run on {device!r}, though it has trials: restore a copy of it")
        with records.reading(rows[0]["id"], "run"):
            return records.tuning_run(rows[0])
