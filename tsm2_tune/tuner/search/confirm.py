"""Confirmation of stored winners: verify and time the fastest kernels of tuned problems again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Final, Measurement, Outcome
from tsm2_tune.tuner.runs.events import Confirmed, FinalFailure, FinalStored, WinnerVerified
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.quarantine import refuted
from tsm2_tune.tuner.search.resume import PriorTrials, Retries, finalists, is_final_due
from tsm2_tune.tuner.search.session import MOST_FINALS, prior_trials, tuning_run

NO_RETRIES = Retries(None)
CHANGED = "this version or its compiler changed the kernel's code: tune again"
Event = WinnerVerified | FinalStored | FinalFailure | Confirmed


def confirm(rows: tuple[BestRow, ...], tuner: Tuner, store: Store) -> Iterator[Event]:
    """Verify and time the fastest kernels of tuned problems again. Yield each event after it is stored.

    Each row is the winner (fastest kernel) of a problem on the tuner's device and in its L2 state. The problem's
    other fastest kernels are verified and timed again too. The last event of each problem is Confirmed.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with store.claims(tuner.target.identity.name) as claims:
        for row in rows:
            yield from _Confirmation(row, tuner, store, claims, started_at).events()


@dataclass(slots=True)
class _Confirmation:
    """The repeated verification and timing of the fastest kernels of one problem."""

    row: BestRow  # the previous winner
    tuner: Tuner
    store: Store
    claims: Claims
    started_at: str

    def events(self) -> Iterator[Event]:
        """Verify the fastest kernels in full and time them in rounds, until the fastest kernel was timed in the last
        round.
        """
        device, problem = self.tuner.target.identity.name, self.row.problem
        self.store.supersede(device, problem, self.tuner.basis)
        if self.row.config not in {one.config.text for one in self._prior().contenders}:
            yield Confirmed(self.row, self.row, None, (), CHANGED)
            return
        again: Measurement | None = None
        verified, wrong, trouble = set[str](), list[WinnerVerified](), ""
        for round_ in range(MOST_FINALS):
            self.claims.take_final(problem)
            try:
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
                if isinstance(final, Final):
                    run = tuning_run(self.tuner, self.started_at)
                    self.store.add_final(run, final, self._families, self.tuner.basis)
            finally:
                self.claims.give_back()
            assert final is not None  # because repeat=True
            if isinstance(final, FinalFailure):
                trouble = final.detail
                yield final
                break
            again = self._measured(final) or again
            yield FinalStored(final)
        now = next(iter(self.store.best(device=device, problem=problem, cache=self.tuner.cache)), None)
        yield Confirmed(self.row, now, again, tuple(wrong), trouble)

    @property
    def _families(self) -> tuple[str, ...]:
        """The kernel families that take part: all default families, and the previous winner's family."""
        return tuple(
            name
            for name, family in FAMILIES.items()
            if family.supports(self.row.problem) and (not family.only_by_name or name == self.row.family)
        )

    def _prior(self) -> PriorTrials:
        return prior_trials(self.store, self.tuner, self.row.problem, self._families, NO_RETRIES)

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
            result = tuner.verify_in_full(problem, config)
            known.add(config.text)
            trial_id = self._trial_of(config.text)
            if result.outcome is Outcome.OK:
                detail = result.verdict.detail if result.verdict else ""
                store.add_full_verdict(trial_id, detail, result.verified_code)
            elif result.outcome is not Outcome.INTERRUPTED:
                hazards = refuted(tuner.target, problem, config, result)
                store.refute(trial_id, result.outcome, f"verification by confirm: {result.detail}", hazards)
            yield WinnerVerified(problem, trial_id, config.text, result.outcome, result.detail)
            if result.outcome is Outcome.INTERRUPTED:
                return

    def _trial_of(self, config: str) -> int:
        device = self.tuner.target.identity.name
        tried = self.store.history(device, self.row.problem, self._families, self.tuner.basis).tried()
        return next(one.id for one in tried if one.config.text == config)

    def _measured(self, final: Final) -> Measurement | None:
        """Return the previous winner's measurement in the L2 state in which kernels are ranked.

        Return None if the previous winner was not timed in this state.
        """
        times = (one for config, one in final.measurements if config.text == self.row.config)
        return next((one for one in times if one.cache is self.tuner.cache), None)
