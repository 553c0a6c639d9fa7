"""Search strategies by name. A strategy chooses the next candidate of a problem."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from tsm2_tune.generator.space.columnar import Chosen
from tsm2_tune.generator.space.order import first_and_rest
from tsm2_tune.generator.space.seed_table import Measured
from tsm2_tune.generator.space.seeds import packaged
from tsm2_tune.generator.space.space import SearchSpace
from tsm2_tune.tuner.search.strategies.model import Model
from tsm2_tune.tuner.search.strategies.sampled import Sampled, require_optuna
from tsm2_tune.tuner.search.strategies.strategy import InOrder, Strategy

Known = Sequence[Measured]  # the database's winners for similar problems
StrategyFactory = Callable[[SearchSpace, int, Known], Strategy]  # of a space and the run's seed


def exhaustive(space: SearchSpace, seed: int = 0, known: Known = ()) -> Strategy:
    """Return the candidates in the order of the space, family by family."""
    return InOrder(space.kept)


def shuffled(space: SearchSpace, seed: int, known: Known = ()) -> Strategy:
    """Return the candidates in an order that depends only on the seed."""
    places = list(range(len(space.kept)))
    random.Random(seed).shuffle(places)
    return InOrder(Chosen(space.kept, np.array(places, int)))


def by_model(space: SearchSpace, seed: int, known: Known = ()) -> Strategy:
    """Return the default strategy: seeds from similar problems, then the candidate with the least predicted time.

    On the host it makes no variants of the fastest candidates, since the variants differ only in how a GPU loads.
    """
    first, others = first_and_rest(space, seed, (*known, *packaged(space.problem, space.limits)))
    return Model(first, others, late=space.limits.compute_capability > (0, 0))


OWN: dict[str, StrategyFactory] = {"model": by_model, "exhaustive": exhaustive, "random": shuffled}
OPTUNA = "optuna:"  # before the name of a sampler


def strategy_named(name: str) -> StrategyFactory:
    """Return the factory of the strategy with this name: one of OWN, or OPTUNA and a sampler's name.

    Raise ToolMissing if it needs Optuna, which is not installed.
    """
    return OWN[name] if name in OWN else by_optuna(name.removeprefix(OPTUNA))


def by_optuna(sampler: str) -> StrategyFactory:
    """Return the factory of a strategy that follows a sampler of Optuna."""
    require_optuna()
    return lambda space, seed, known: Sampled(sampler, space.kept, seed)
