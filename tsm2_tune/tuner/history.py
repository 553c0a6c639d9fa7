"""What earlier runs tried of one problem on a device: of some families, by kernels that are made so still."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Integer, and_, cast, func, or_, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner import brief, conditions, schema
from tsm2_tune.tuner.brief import StoredTrial
from tsm2_tune.tuner.database import Database
from tsm2_tune.tuner.trial import Outcome
from tsm2_tune.tuner.vendor import storing


@dataclass(frozen=True, slots=True)
class History:
    """Read anew at each question. StoreError where a row is not as it was stored."""

    database: Database
    device_name: str
    problem: Problem
    families: tuple[str, ...]
    basis: str  # of the trials; what others rest on is comparable with none of them

    @property
    def _of_these(self) -> ColumnElement[bool]:
        return conditions.tried(self.device_name, self.problem, self.families, self.basis)

    def tried(self) -> tuple[StoredTrial, ...]:
        """The trials in the order they were stored, but for those that are superseded."""
        tried, first, newest = self._of_these, schema.measurement, schema.measurement.alias()
        finals = select(func.max(schema.measurement.c.id)).join(schema.trial).where(tried, first.c.round > 0)
        is_new = first.c.id > func.coalesce(finals.scalar_subquery(), 0)
        given = (
            newest.c.median_us.label("newest_us"),
            newest.c.high_us.label("newest_high_us"),
            cast(is_new, Integer).label("is_new"),
        )
        query = (
            select(schema.trial, first.c.median_us, *given)
            .outerjoin(first, conditions.is_first())
            .outerjoin(newest, conditions.is_newest(newest))
            .where(tried)
            .order_by(schema.trial.c.id)
        )
        return tuple(brief.stored_trial(row, self.problem) for row in self.database.rows(query))

    def fastest_of_older(self) -> tuple[str, ...]:
        """Texts of configurations, fastest first: of each family the fastest right one whose kernel is made otherwise
        now; where nothing was tried of the family since, the fastest of any basis.
        """
        trial = schema.trial.c
        families, configs = (select(column).where(self._of_these) for column in (trial.family, trial.config))
        is_older = or_(trial.family.not_in(families), and_(trial.superseded == 1, trial.config.not_in(configs)))
        query = (
            select(trial.id, trial.family, trial.config)
            .join(schema.measurement, conditions.is_first())
            .where(conditions.of_problem(self.device_name, self.problem), trial.family.in_(list(self.families)))
            .where(trial.outcome == Outcome.OK.value, trial.verdict_correct == 1, is_older)
            .order_by(schema.measurement.c.median_us, trial.id)
        )
        fastest: dict[str, str] = {}
        for row in self.database.rows(query):
            fastest.setdefault(row["family"], brief.config_text(row))
        return tuple(fastest.values())

    def final_configs(self) -> frozenset[str]:
        """Texts of the configurations in the last finals of those tried; none before a final."""
        tried = self._of_these
        query = (
            select(schema.trial.c.id, schema.trial.c.config)
            .join(schema.measurement)
            .where(tried, schema.measurement.c.round > 0)
            .where(schema.measurement.c.round == conditions.last_round(tried).scalar_subquery())
        )
        return frozenset(map(brief.config_text, self.database.rows(query)))

    def vendor_of_last_final(self) -> frozenset[tuple[str, str, int]]:
        """Of the vendor's libraries in these finals: driver, library, version."""
        tried, measured = self._of_these, schema.measurement.c
        last = and_(tried, measured.round == conditions.last_round(tried).scalar_subquery())
        finals = select(measured.run_id, measured.round).join(schema.trial).where(last)
        of_finals = storing.of_finals(self.device_name, conditions.problem_id(self.problem), finals)
        return storing.versions(self.database.rows(of_finals))
