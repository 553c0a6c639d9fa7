"""Confirmation of stored winners: verify and time the fastest kernels of tuned problems again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Measurement, Outcome
from tsm2_tune.tuner.runs.events import Confirmed, FinalFailure, FinalStored, WinnerVerified
from tsm2_tune.tuner.search.finals import finalists, is_final_due
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.resume import PriorTrials, Retries
from tsm2_tune.tuner.search.session import MOST_FINALS, judged, problem_session

NO_RETRIES = Retries(None)
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
                yield from _Confirmation(row, tuner, store, started_at).events()
                leases.release(row.problem)
            else:
                yield Confirmed(row, row, None, (), f"it is left to {leases.holder(row.problem)}, which is tuning it")


class _Confirmation:
    """The repeated verification and timing of the fastest kernels of one problem."""

    def __init__(self, row: BestRow, tuner: Tuner, store: Store, started_at: str) -> None:
        """`row` is the previous winner. All default families take part, and the previous winner's family."""
        self.row, self.tuner, self.store = row, tuner, store
        families = [name for name, family in FAMILIES.items() if not family.only_by_name or name == row.family]
        self._session = problem_session(row.problem, families, tuner, store, started_at)

    def events(self) -> Iterator[Event]:
        """Verify the fastest kernels in full and time them in rounds, until the fastest kernel was timed in the last
        round.
        """
        device, problem = self.tuner.target.identity.name, self.row.problem
        if self.row.config not in {one.config.text for one in self._prior().contenders}:
            yield Confirmed(self.row, self.row, None, (), CHANGED)
            return
        again: Measurement | None = None
        verified, wrong, trouble = set[str](), list[WinnerVerified](), ""
        for round_ in range(MOST_FINALS):
            for event in self._verified(verified):
                wrong += [event] if event.outcome not in (Outcome.OK, Outcome.INTERRUPTED) else []
                trouble = event.detail if event.outcome is Outcome.INTERRUPTED else trouble
                yield event
            prior = self._prior()
            if trouble or not prior.contenders:
                break
            also = self._winner_in(prior)
            if round_ > 0 and not is_final_due([one for one, _ in finalists(problem, prior, also)], prior, also):
                break
            final = self.tuner.final(problem, prior, also, repeat=True)
            assert final is not None  # because repeat=True
            if isinstance(final, FinalFailure):
                trouble = final.detail
                yield final
                break
            self._session.store_final(final, self.tuner)
            again = self._measured(final) or again
            yield FinalStored(final)
        now = next(iter(self.store.best(device=device, problem=problem, cache=self.tuner.cache)), None)
        yield Confirmed(self.row, now, again, tuple(wrong), trouble)

    def _prior(self) -> PriorTrials:
        return self._session.history.prior(NO_RETRIES, self._session.families)

    def _winner_in(self, prior: PriorTrials) -> tuple[str, ...]:
        """Return a tuple with the previous winner's configuration, which is always timed.

        The tuple is empty if the previous winner was found wrong.
        """
        return tuple(one.config.text for one in prior.contenders if one.config.text == self.row.config)

    def _verified(self, known: set[str]) -> Iterator[WinnerVerified]:
        """Verify in full each kernel that will be timed, unless it is in `known`. Add each verified kernel to
        `known`.
        """
        problem, store, tuner = self.row.problem, self.store, self.tuner
        while True:
            prior = self._prior()
            chosen = finalists(problem, prior, self._winner_in(prior))
            config = next((one.config for one, _ in chosen if one.config.text not in known), None)
            if config is None:
                return
            known.add(config.text)
            trial_id = self._session.history.trial_id(config.text)
            result = judged(tuner, store, problem, config, trial_id, "verification by confirm")
            if result.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
                self._session.history.read()
            yield WinnerVerified(problem, trial_id, config.text, result.outcome, result.detail)
            if result.outcome is Outcome.INTERRUPTED:
                return

    def _measured(self, final: Final) -> Measurement | None:
        """Return the previous winner's measurement in the L2 state in which kernels are ranked.

        Return None if the previous winner was not timed in this state.
        """
        times = (one for config, one in final.measurements if config.text == self.row.config)
        return next((one for one in times if one.cache is self.tuner.cache), None)
