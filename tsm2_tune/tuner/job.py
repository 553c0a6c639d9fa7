"""The main job: problems in, trials and finals stored, events out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tsm2_tune import __version__
from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import FAMILIES, config_spelt, family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.rules import Candidate, Thresholds
from tsm2_tune.generator.space import SearchSpace, search_space
from tsm2_tune.generator.tables import places
from tsm2_tune.tuner.basis import basis
from tsm2_tune.tuner.operands import needed_bytes
from tsm2_tune.tuner.past import Contender, Past
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.trial import Final, Outcome, Trial, TuningRun
from tsm2_tune.tuner.tune import FinalFailure, Tuner, ordered

GIB = 2**30
MOST_FINALS = 3  # of a problem in a run: rounds until the fastest was in the last one


@dataclass(frozen=True, slots=True)
class ProblemStarted:
    """A problem's turn begins."""

    space: SearchSpace
    tried_before: int
    seconds_before: float  # that earlier runs spent on it
    best_before_us: float | None  # the least median of earlier runs


@dataclass(frozen=True, slots=True)
class TrialStored:
    """A trial ended and is in the database."""

    trial: Trial
    trial_id: int


@dataclass(frozen=True, slots=True)
class FinalStored:
    """The finalists were measured again, and that is in the database."""

    final: Final


@dataclass(frozen=True, slots=True)
class ProblemEnded:
    """A problem's turn is over; `winner` is None where no configuration gave a right result."""

    problem: Problem
    new_trials: int
    tried: int  # those of earlier runs included
    timed_out: int  # of those tried
    untried: int  # kept configurations that the budget or the most trials left out
    winner: BestRow | None


Event = ProblemStarted | TrialStored | FinalStored | FinalFailure | ProblemEnded
Order = Callable[[SearchSpace, int], Sequence[Candidate]]  # of a space and the run's seed


def spaces(
    problems: Sequence[Problem], target: Target, *, guidelines: Thresholds, families: Sequence[str]
) -> tuple[SearchSpace, ...]:
    """The search space of each problem.

    InputError, before anything is tried, where a problem does not fit the device's memory or where no
    configuration is left.
    """
    limits = target.limits
    found = []
    for problem in problems:
        needed = needed_bytes(problem)
        if needed > limits.memory_bytes:
            raise InputError(
                f"{problem.text} needs {needed / GIB:.1f} GiB, {limits.name} has {limits.memory_bytes / GIB:.1f} GiB:"
                " choose a smaller shape or another device"
            )
        space = search_space(problem, limits, guidelines=guidelines, families=families)
        if not space.kept:
            counts = ", ".join(f"{count} by {rule.name}" for rule, count in space.dropped if count)
            raise InputError(
                f"no configuration left for {problem.text} on {limits.name}: dropped {counts};"
                " loosen --guidelines or name other families"
            )
        found.append(space)
    return tuple(found)


def run(
    searched: Sequence[SearchSpace],
    tuner: Tuner,
    store: Store,
    *,
    order: Order = ordered,
    families: Sequence[str] = (),
) -> Iterator[Event]:
    """Tune each problem; every trial is in the store before its event is yielded.

    What earlier runs tried of `families` takes part in the finals. Where none are named, these are all that are not
    only by name, also where fewer are searched now, as the winner is the problem's over all of them, and those of the
    space. Trials and seconds count that are of the families that are searched.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    target = tuner.target
    for space in searched:
        problem = space.problem
        counted = families or [n for n, one in FAMILIES.items() if not one.only_by_name or n in space.families]
        bases = {name: basis(name, target) for name in counted if family_named(name).supports(problem)}
        own = {name: one for name, one in bases.items() if name in space.families}
        past = past_of(store, tuner, problem, own)
        contenders = past_of(store, tuner, problem, bases).contenders
        best_before_us = min((one.median_us for one in contenders), default=None)
        yield ProblemStarted(space, len(past.tried), past.seconds, best_before_us)

        new_trials = 0
        older = store.fastest_of_older(target.identity.name, problem, own)
        for trial in tuner.tune(these_first(older, order(space, tuner.options.seed), space), past):
            trial_id = store.add_trial(_tuning_run(tuner, started_at), trial)
            new_trials += 1
            yield TrialStored(trial, trial_id)

        yield from _finals(problem, tuner, store, bases, started_at)
        past = past_of(store, tuner, problem, own)
        winners = store.best(device=target.identity.name, problem=problem)
        configs = frozenset(filter(None, map(config_spelt, past.tried)))
        untried = len(space.kept) - len(places(space.kept, configs))
        winner = winners[0] if winners else None
        yield ProblemEnded(problem, new_trials, len(past.tried), past.timed_out, untried, winner)


def these_first(texts: Sequence[str], candidates: Sequence[Candidate], space: SearchSpace) -> Iterator[Candidate]:
    """The candidates, those first which are spelt so: what won before they were made otherwise still competes."""
    configs = frozenset(filter(None, map(config_spelt, texts)))
    first = [space.kept[place] for place in places(space.kept, configs).values()]
    yield from sorted(first, key=lambda candidate: texts.index(candidate.config.text))
    yield from (candidate for candidate in candidates if candidate.config not in configs)


def _finals(
    problem: Problem, tuner: Tuner, store: Store, bases: dict[str, str], started_at: str
) -> Iterator[FinalStored | FinalFailure]:
    """Measure the finalists again until the fastest was among them, every round stored before its event."""
    for _ in range(MOST_FINALS):
        final = tuner.final(problem, past_of(store, tuner, problem, bases))
        if final is None:
            return
        if isinstance(final, FinalFailure):
            yield final
            return
        store.add_final(_tuning_run(tuner, started_at), final, bases)
        yield FinalStored(final)


def past_of(store: Store, tuner: Tuner, problem: Problem, bases: dict[str, str]) -> Past:
    """What the store holds of the problem on this device. What timed out counts under limits no less than today's."""
    device, limits = tuner.target.identity.name, tuner.options.limits
    tried = store.tried(device, problem, bases)
    timed_out = [trial for trial in tried if trial.outcome is Outcome.TIMED_OUT]
    again = {trial.id for trial in timed_out if limits.exceed(trial.limits)}
    return Past(
        tried=frozenset(trial.config.text for trial in tried if trial.id not in again),
        seconds=sum(trial.total_seconds for trial in tried),
        contenders=tuple(
            Contender(
                trial.config,
                trial.newest_us,
                trial.newest_high_us,
                is_new=trial.is_new,
                source_digest=trial.source_digest,
            )
            for trial in tried
            if trial.outcome is Outcome.OK and trial.newest_us is not None and trial.newest_high_us is not None
        ),
        last_finalists=store.final_configs(device, problem, bases),
        timed_out=len(timed_out) - len(again),
    )


def _tuning_run(tuner: Tuner, started_at: str) -> TuningRun:
    return TuningRun(
        identity=tuner.target.identity,
        ceilings=tuner.ceilings,
        seed=tuner.options.seed,
        version=__version__,
        started_at=started_at,
    )
