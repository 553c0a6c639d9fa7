"""Trials of a fixed list of candidates at a shape, without a search strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs.events import TrialInterrupted, TrialStored
from tsm2_tune.tuner.runs.leases.configurations import Claims
from tsm2_tune.tuner.search import session
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.strategies.strategy import InOrder


def candidate_of(config: KernelConfig, problem: Problem, limits: DeviceLimits) -> Candidate:
    """Return a candidate for the configuration. No guidelines apply to it."""
    return Candidate(family_named(config.family), config, problem, limits, Guidelines())


def problem_session(
    problem: Problem,
    families: Collection[str],
    tuner: Tuner,
    store: Store,
    claims: Claims,
    started_at: str,
    *,
    is_between: bool = False,
) -> session.ProblemSession:
    """Return a session that tries configurations of `families` at a shape.

    The fastest kernels of all default families take part in its finals (repeated timings).
    """
    own = tuple(sorted(name for name in families if name in FAMILIES and family_named(name).supports(problem)))
    space = SearchSpace(problem, tuner.target.limits, own, (), (), ())
    cache = tuner.target.cache(tuner.options.cache)
    names = tuple(name for name in session.counted((), space) if family_named(name).supports(problem))
    return session.ProblemSession(space, tuner, store, claims, names, started_at, cache, is_between)


def tried(turn: session.ProblemSession, candidates: Sequence[Candidate]) -> Iterator[TrialStored | TrialInterrupted]:
    """Try the candidates without a stored trial at the session's shape. Yield each event after it is stored."""
    turn.store.supersede(turn.tuner.target.identity.name, turn.space.problem, turn.tuner.basis)
    retries = session.retries_of(turn.store, turn.tuner, turn.space.problem, turn.own)
    prior = session.prior_trials(turn.store, turn.tuner, turn.space.problem, turn.own, retries)
    yield from turn.tried(turn.search(InOrder(candidates), prior, retries), retries)
