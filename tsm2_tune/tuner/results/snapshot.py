"""`Snapshot`: a store that reads each winner and trial once, for exports, which ask for them several times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.best_view import Among, BestRow
from tsm2_tune.tuner.results.records import TrialRecord
from tsm2_tune.tuner.results.storage.database import Database
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial_summaries import CurrentTrial


class Snapshot(Store):
    """A store that keeps the winners and trials that it has read, and does not notice that they change later."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._winners: dict[frozenset[tuple[str, Any]], list[BestRow]] = {}  # by the values in their columns
        self._known: dict[BestRow, BestRow] = {}
        self._current: dict[tuple[Any, ...], tuple[CurrentTrial, ...]] = {}
        self._records: dict[int, TrialRecord] = {}

    def winners(self, connection: Connection, among: Among | None, given: Mapping[str, Any]) -> list[BestRow]:
        """Return the same as `Store.winners`, selected from winners of all problems."""
        asked = frozenset(given.items())
        wider = next((one for one in self._winners if one <= asked), asked)
        if wider not in self._winners:
            self._winners[wider] = super().winners(connection, None, given)
        left = dict(asked - wider)
        found = [row for row in self._winners[wider] if all(getattr(row, name) == left[name] for name in left)]
        return found if among is None else [row for row in found if among.contains(row)]

    def known(self, connection: Connection, rows: Sequence[BestRow]) -> Iterable[BestRow]:
        """Return the same as `Store.known`."""
        new = [row for row in rows if row not in self._known]
        self._known |= zip(new, super().known(connection, new), strict=True)
        return map(self._known.__getitem__, rows)

    def current(
        self, device: str, problem: Problem | None = None, *, alike: Problem | None = None
    ) -> tuple[CurrentTrial, ...]:
        """Return the same as `Store.current`."""
        key = device, problem, alike and (alike.op, alike.dtype_name, alike.is_batched)
        if key not in self._current:
            self._current[key] = super().current(device, problem, alike=alike)
        return self._current[key]

    def records(self, connection: Connection, trial_ids: Sequence[int]) -> Iterable[TrialRecord]:
        """Return the same as `Store.records`."""
        new = [one for one in dict.fromkeys(trial_ids) if one not in self._records]
        self._records |= {one.id: one for one in super().records(connection, new)}
        return map(self._records.__getitem__, trial_ids)
