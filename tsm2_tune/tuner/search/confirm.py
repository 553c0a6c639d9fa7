"""Confirmation of stored winners: verify and time the fastest kernels of tuned problems again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache, Final, Measurement, Outcome
from tsm2_tune.tuner.runs.events import Confirmed, FinalFailure, FinalStored, WinnerVerified
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.session import problem_session

CHANGED = "this version or its compiler changed the kernel's code: tune again"
Event = WinnerVerified | FinalStored | FinalFailure | Confirmed


def confirm(rows: tuple[BestRow, ...], tuner: Tuner, store: Store) -> Iterator[Event]:
    """Verify and time the fastest kernels of tuned problems again. Yield each event after it is stored.

    Each row is the winner (fastest kernel) of a problem on the tuner's device and in its L2 state. The problem's
    other fastest kernels are verified and timed again too. The last event of each problem is Confirmed.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with store.leases(tuner.target.identity.name) as leases:
        for row in rows:
            if leases.take(row.problem):
                yield from _events(row, tuner, store, started_at)
                leases.release(row.problem)
            else:
                yield Confirmed(row, row, None, (), f"it is left to {leases.holder(row.problem)}, which is tuning it")


def _events(row: BestRow, tuner: Tuner, store: Store, started_at: str) -> Iterator[Event]:
    """Verify and time the fastest kernels of the problem of `row`, the previous winner, again."""
    families = [name for name, family in FAMILIES.items() if not family.only_by_name or name == row.family]
    session = problem_session(row.problem, families, tuner, store, started_at)
    if row.config not in {one.config.text for one in session.prior.contenders}:
        yield Confirmed(row, row, None, (), CHANGED)
        return
    again: Measurement | None = None
    wrong, trouble = list[WinnerVerified](), ""
    for event in session.finals(tuner, {row.config}, again=True):
        if isinstance(event, FinalStored):
            again = _measured(row, event.final, tuner.cache) or again
        elif isinstance(event, FinalFailure) or event.outcome is Outcome.INTERRUPTED:
            trouble = event.detail
        elif event.outcome is not Outcome.OK:
            wrong.append(event)
        yield event
    yield Confirmed(row, session.winner(), again, tuple(wrong), trouble)


def _measured(row: BestRow, final: Final, cache: Cache) -> Measurement | None:
    """Return the previous winner's measurement in the L2 state; None if it was not timed in it."""
    times = (one for config, one in final.measurements if config.text == row.config)
    return next((one for one in times if one.cache is cache), None)
