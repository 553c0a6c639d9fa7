"""Trials of a fixed list of candidates at a shape, without a search strategy."""

from __future__ import annotations

from collections.abc import Collection

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import FAMILIES, family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.search.executor import Executor
from tsm2_tune.tuner.search.session import ProblemSession, counted


def candidate_of(config: KernelConfig, problem: Problem, limits: DeviceLimits) -> Candidate:
    """Return a candidate for the configuration. No guidelines apply to it."""
    return Candidate(family_named(config.family), config, problem, limits, Guidelines())


def problem_session(
    problem: Problem,
    families: Collection[str],
    tuner: Executor,
    store: Store,
    started_at: str,
    *,
    is_between: bool = False,
) -> ProblemSession:
    """Return a session that tries configurations of `families` at a shape.

    The fastest kernels of all default families take part in its finals (repeated timings).
    """
    own = tuple(sorted(name for name in families if name in FAMILIES and family_named(name).supports(problem)))
    space = SearchSpace(problem, tuner.target.limits, own, (), (), ())
    return ProblemSession(space, tuner, store, counted((), space), started_at, is_between=is_between)
