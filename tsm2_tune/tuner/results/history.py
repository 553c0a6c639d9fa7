"""Queries for the stored trials of one problem on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Select, and_, cast, func, or_, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results import queries, records, trial_summaries, vendor_measurements
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
        """Return the trials that have this History's basis and an unchanged kernel, in the order they were stored.

        The basis is a digest of the compiler, its flags and the L2 cache state.
        """
        return tuple(
            trial_summaries.stored_trial(row, self.problem) for row in self.database.rows(_STORED, self._values)
        )

    def fastest_of_older(self) -> tuple[str, ...]:
        """Return the text of the fastest older configuration of each kernel family that has one, in the order of
        their times.

        A correct configuration is older if its kernel code has changed since it was tried, and if it was not tried
        again. If a family has no trial on this History's basis (compiler, flags and L2 cache state), all its correct
        configurations are older.
        """
        fastest: dict[str, str] = {}
        for row in self.database.rows(_OLDER, self._values):
            fastest.setdefault(row["family"], records.value_of(row, _TRIAL.config))
        return tuple(fastest.values())

    def final_configs(self) -> frozenset[str]:
        """Return the texts of the configurations in the last final comparison.

        The set is empty if there was no final comparison.
        """
        rows = self.database.rows(_FINALISTS, self._values)
        return frozenset(records.value_of(row, _TRIAL.config) for row in rows)

    def vendor_of_last_final(self) -> frozenset[tuple[str, str, int]]:
        """Return (driver, library, library version) for each vendor library in the last final comparison."""
        return vendor_measurements.versions(self.database.rows(_VENDOR, self._values))
