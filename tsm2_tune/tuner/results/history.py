"""Queries for the stored trials of one problem on one device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, Select, and_, cast, func, or_, select, update

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import queries, records, trial_summaries, vendor_measurements
from tsm2_tune.tuner.results.domains import Row, checked
from tsm2_tune.tuner.results.fingerprint import superseded_basis
from tsm2_tune.tuner.results.queries import IS_FIRST, TRIED
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.results.trial_summaries import StoredTrial

_TRIAL, _MEASURED = schema.trial.c, schema.measurement.c


def _stored() -> Select[Any]:
    newest = schema.measurement.alias()
    finals = select(func.max(_MEASURED.id)).join(schema.trial).where(TRIED, _MEASURED.round > 0)
    given = (
        newest.c.median_us.label("newest_us"),
        newest.c.high_us.label("newest_high_us"),
        cast(_MEASURED.id > func.coalesce(finals.scalar_subquery(), 0), Integer).label("is_new"),
    )
    return (
        select(schema.trial, _MEASURED.median_us, *given)
        .outerjoin(schema.measurement, IS_FIRST)
        .outerjoin(newest, queries.is_newest(newest))
        .where(TRIED)
        .order_by(_TRIAL.id)
    )


def _older() -> Select[Any]:
    families, configs = (select(column).where(TRIED) for column in (_TRIAL.family, _TRIAL.config))
    is_older = or_(_TRIAL.family.not_in(families), and_(_TRIAL.superseded == 1, _TRIAL.config.not_in(configs)))
    return (
        select(_TRIAL.id, _TRIAL.family, _TRIAL.config)
        .join(schema.measurement, IS_FIRST)
        .where(queries.OF_PROBLEM, queries.OF_FAMILIES)
        .where(_TRIAL.outcome == Outcome.OK.value, _TRIAL.verdict_correct == 1, is_older)
        .order_by(_MEASURED.median_us, _TRIAL.id)
    )


_IN_LAST_FINALS = and_(TRIED, _MEASURED.round == queries.last_round(TRIED).scalar_subquery())
_FINALS = select(_MEASURED.run_id, _MEASURED.round).join(schema.trial).where(_IN_LAST_FINALS)
_FINALISTS = select(_TRIAL.id, _TRIAL.config).join(schema.measurement).where(_IN_LAST_FINALS, _MEASURED.round > 0)
_STORED, _OLDER, _VENDOR = _stored(), _older(), vendor_measurements.of_finals(_FINALS)


@dataclass(frozen=True, slots=True)
class History:
    """The stored trials of one problem on one device.

    Each method reads the database, and raises StoreError if a row is invalid.
    """

    database: Database
    device_name: str
    problem: Problem
    families: tuple[str, ...]
    basis: str  # digest of compiler, flags and L2 cache state; other trials are not compared

    @property
    def _values(self) -> dict[str, Any]:
        return queries.values_tried(self.device_name, self.problem, self.families, self.basis)

    def tried(self) -> tuple[StoredTrial, ...]:
        """Return the trials that have this basis and an unchanged kernel, in the order they were stored."""
        return tuple(
            trial_summaries.stored_trial(row, self.problem) for row in self.database.rows(_STORED, self._values)
        )

    def fastest_of_older(self) -> tuple[str, ...]:
        """Return the text of each family's fastest older configuration, in the order of their times.

        A right configuration is older if its kernel code has changed and it was not tried again, or if its family
        has no trial on this basis.
        """
        fastest: dict[str, str] = {}
        for row in self.database.rows(_OLDER, self._values):
            fastest.setdefault(row["family"], records.value_of(row, _TRIAL.config))
        return tuple(fastest.values())

    def final_configs(self) -> frozenset[str]:
        """Return the texts of the configurations in the last final comparison, if there was one."""
        rows = self.database.rows(_FINALISTS, self._values)
        return frozenset(records.value_of(row, _TRIAL.config) for row in rows)

    def vendor_of_last_final(self) -> frozenset[tuple[str, str, int]]:
        """Return (driver, library, library version) for each vendor library in the last final comparison."""
        return vendor_measurements.versions(self.database.rows(_VENDOR, self._values))


# Trials whose kernel code has changed

_LAUNCH = (schema.source.c[name].label(f"source_{name}") for name in records.LAUNCH)
_CURRENT = (
    select(schema.trial, schema.source.c.kernel, *_LAUNCH)
    .join(schema.source)
    .where(queries.OF_PROBLEM, queries.OF_BASIS)
)


def changed(database: Database, device_name: str, problem: Problem, basis: str) -> Sequence[Row]:
    """Return the rows of the trials of this basis whose kernel this program makes differently or no longer."""
    values = queries.values(device_name, problem) | {"basis": basis}
    return [row for row in database.rows(_CURRENT, values) if not has_current_kernel(row, problem)]


def mark(connection: Connection, trials: Iterable[Row]) -> None:
    """Mark the trials as superseded: they can no longer win, and the search may try their configurations again."""
    for row in trials:
        values = {"superseded": 1, "basis": superseded_basis(row), "first_basis": row["basis"]}
        connection.execute(update(schema.trial).where(schema.trial.c.id == row["id"]).values(values))


def has_current_kernel(row: Row, problem: Problem) -> bool:
    """Return whether this program makes the kernel of this row of `trial` unchanged.

    The row also has the kernel's entry point in `kernel`, and its launch in columns `source_...`.
    """
    with records.reading(row["id"]):
        values = checked(row, [*schema.trial.columns, schema.source.c.kernel])
        made = records.current_kernel(problem, values, {name: row[f"source_{name}"] for name in records.LAUNCH})
        return made is not None and made.kernel == values["kernel"]
