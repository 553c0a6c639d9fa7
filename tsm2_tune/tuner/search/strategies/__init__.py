"""Functions that return the search strategy with a given name. A strategy chooses the next candidate to try."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from tsm2_tune.generator.space.columnar import Chosen
from tsm2_tune.generator.space.order import first_and_rest
from tsm2_tune.generator.space.seed_table import Measured
from tsm2_tune.generator.space.seeds import packaged
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.search.strategies.model import Model
from tsm2_tune.tuner.search.strategies.sampled import Sampled, require_optuna
from tsm2_tune.tuner.search.strategies.strategy import InOrder, Strategy

Known = Sequence[Measured]  # stored winners of similar problems
StrategyFactory = Callable[[SearchSpace, int, Known], Strategy]  # (space, the run's seed, stored winners) -> strategy


def exhaustive(space: SearchSpace, seed: int = 0, known: Known = ()) -> Strategy:
    """Return a strategy that tries all candidates in the order of the space, family after family."""
    return InOrder(space.kept)


def shuffled(space: SearchSpace, seed: int, known: Known = ()) -> Strategy:
    """Return a strategy that tries all candidates in random order, which depends only on the seed."""
    places = list(range(len(space.kept)))
    random.Random(seed).shuffle(places)
    return InOrder(Chosen(space.kept, np.array(places, int)))


def by_model(space: SearchSpace, seed: int, known: Known = ()) -> Strategy:
    """Return the default strategy: fast kernels of similar problems first, then those with the least predicted time.

    On a GPU it also tries variants of the fastest candidates, which differ in their load instructions.
    """
    first, others = first_and_rest(space, seed, candidate_times_us, (*known, *packaged(space.problem, space.limits)))
    return Model(first, others, late=space.limits.compute_capability > (0, 0))


OWN: dict[str, StrategyFactory] = {"model": by_model, "exhaustive": exhaustive, "random": shuffled}
OPTUNA = "optuna:"  # prefix of a sampler's name


def strategy_named(name: str) -> StrategyFactory:
    """Return the factory of the strategy `name`: a key of OWN, or OPTUNA followed by a sampler's name.

    Raise ToolMissing if the strategy needs Optuna and Optuna is not installed.
    """
    if name in OWN:
        return OWN[name]
    require_optuna()
    return lambda space, seed, known: Sampled(name.removeprefix(OPTUNA), space.kept, seed)
