"""Claims of a run on whole problems."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, func, literal, select

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.storage.retry import repeated
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.runs.leases.owners import is_alive
from tsm2_tune.tuner.runs.leases.queries import NO_CONFIGURATIONS, RUN, SEARCH, SEARCHED, is_claim
from tsm2_tune.tuner.search.resume import ClaimResult

log = logging.getLogger(__name__)


class ProblemClaims:
    """The claims of a run on whole problems: database rows that reserve the search of a problem for this run.

    `search` is a digest of the search's settings: see `search_key`.
    """

    def __init__(self, claims: Claims, search: str) -> None:
        self._claims, self._search = claims, search
        self._before = self._begun()

    def take(self, problem: Problem) -> ClaimResult:
        """Claim the search of a problem, and return the result.

        The result is OURS if the claim succeeded. It is ENDED if another run has completed the same search since this
        object was created. It is ELSEWHERE if another living run is searching the problem, and OTHER_OPTIONS if that
        run has other search settings.
        """
        found = self._take(problem)
        log.debug("lease of %s: %s", problem.text, found.name)
        return found

    @repeated
    def _take(self, problem: Problem) -> ClaimResult:
        claims, column, before = self._claims, schema.claim.c, self._before.get(problem.text)
        query = select(column.config, column.basis, column.owner, column.beat_at).where(
            column.device_name == claims.device_name,
            column.problem == problem.text,
            column.config.in_((SEARCH, SEARCHED)),
        )
        with claims.written(problem) as connection:
            found = [row for row in connection.execute(query).all() if row.owner != claims.owner]
            if any((row.config, row.basis) == (SEARCHED, self._search) and row.owner != before for row in found):
                return ClaimResult.ENDED
            now, beaten = claims.database.now(connection), self._beaten(connection, [row.owner for row in found])
            others = {
                row.basis for row in found if row.config == SEARCH and is_alive(row.owner, beaten.get(row.owner), now)
            }
            if others:
                return ClaimResult.ELSEWHERE if self._search in others else ClaimResult.OTHER_OPTIONS
            claims.add(connection, problem, SEARCH, self._search)
            return ClaimResult.OURS

    @repeated
    def others(self, problem: Problem) -> set[str]:
        """Return the owners of claims on the problem's configurations: other living runs with the same search
        settings.
        """
        claims, column = self._claims, schema.claim.c
        alike = select(column.owner).where(
            column.device_name == claims.device_name,
            column.config == RUN,
            column.basis == literal(f"{self._search} ") + column.owner,
        )
        theirs = select(column.owner, func.max(column.beat_at)).where(
            column.device_name == claims.device_name,
            column.problem == problem.text,
            column.config.not_in(NO_CONFIGURATIONS),
            column.owner != claims.owner,
            column.owner.in_(alike),
        )
        with claims.database.transaction() as connection:
            now = claims.database.now(connection)
            found = connection.execute(theirs.group_by(column.owner)).all()
            return {str(owner) for owner, beat_at in found if is_alive(owner, beat_at, now)}

    @staticmethod
    def _beaten(connection: Connection, owners: Sequence[str]) -> dict[str, Any]:
        """Return a dict from each owner to the time of its latest heartbeat or claim.

        An owner's claims on configurations may be newer than its claim on the problem. If another run took over the
        problem before the claims on configurations expired, it would skip these configurations.
        """
        if not owners:
            return {}
        column = schema.claim.c
        newest = select(column.owner, func.max(column.beat_at)).where(
            column.owner.in_(owners), column.config != SEARCHED
        )
        return {row[0]: row[1] for row in connection.execute(newest.group_by(column.owner))}

    @repeated
    def end(self, problem: Problem) -> None:
        """Release the claim on a problem, and record that its search has been completed."""
        claims = self._claims
        ours = and_(is_claim(claims.device_name, problem, SEARCH, self._search), schema.claim.c.owner == claims.owner)
        with claims.written(problem) as connection:
            claims.add(connection, problem, SEARCHED, self._search)
            connection.execute(delete(schema.claim).where(ours))
        log.debug("lease of %s given back: its search has ended", problem.text)

    @repeated
    def _begun(self) -> dict[str, str]:
        """Record in the database that this run is alive.

        For each problem whose search was completed before, return the owner that completed it.
        """
        claims, column = self._claims, schema.claim.c
        ended = select(column.problem, column.owner).where(
            column.device_name == claims.device_name, column.config == SEARCHED, column.basis == self._search
        )
        with claims.database.transaction(writes=True, about=(claims.owner,)) as connection:
            claims.add(connection, None, RUN, f"{self._search} {claims.owner}")
            return {str(problem): str(owner) for problem, owner in connection.execute(ended).all()}
