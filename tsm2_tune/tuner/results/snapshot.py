"""`Snapshot`: a store that reads each winner and trial once, for exports, which ask for them several times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial

_Kind = tuple[str, str, bool]  # op, element type, whether it is a batch


class Snapshot(Store):
    """A store that keeps the winners and trials that it has read, and does not notice that they change later."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._best: dict[tuple[str | None, str | None, Cache | None, bool], tuple[BestRow, ...]] = {}
        self._current: dict[tuple[str, Problem | None, _Kind | None], tuple[CurrentTrial, ...]] = {}
        self._known: dict[int, TrialRecord] = {}

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
        """Return the same as `Store.best`, selected from the winners of all problems."""
        asked, key = problem or alike, (device, family, cache, between)
        if key not in self._best:
            self._best[key] = super().best(device=device, family=family, cache=cache, between=between)
        rows = self._best[key]
        if asked is not None:
            kind = _kind(asked)
            rows = tuple(row for row in rows if (row.op, row.dtype, row.batch > 1) == kind)
        if problem is not None:
            rows = tuple(row for row in rows if row.problem == problem)
        return tuple(row for row in rows if (row.device, row.problem) not in omit) if omit else rows

    def current(
        self, device: str, problem: Problem | None = None, *, alike: Problem | None = None
    ) -> tuple[CurrentTrial, ...]:
        """Return the same as `Store.current`."""
        key = device, problem, None if alike is None else _kind(alike)
        if key not in self._current:
            self._current[key] = super().current(device, problem, alike=alike)
        return self._current[key]

    def records(self, connection: Connection, trial_ids: Sequence[int]) -> Iterable[TrialRecord]:
        """Return the same as `Store.records`."""
        new = [one for one in dict.fromkeys(trial_ids) if one not in self._known]
        self._known |= {one.id: one for one in super().records(connection, new)}
        return map(self._known.__getitem__, trial_ids)


def _kind(problem: Problem) -> _Kind:
    return problem.op, problem.dtype_name, problem.is_batched
