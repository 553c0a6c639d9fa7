"""Kernels predicted to be nearly the fastest, at tuned shapes and between them: an export may choose them nearby."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import shapes_between
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import MEASURED, expected, kernels_of, rows_between
from tsm2_tune.tuner.results.records import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

NEARLY = 1.15  # times the fastest
MOST_CONTENDING = 6  # kernels at a shape, the fastest by prediction


@dataclass(frozen=True, slots=True)
class Contender:
    """A kernel of an export, at a shape where it is predicted to be nearly the fastest."""

    config: KernelConfig
    own: Problem  # the problem of this configuration
    at: Problem
    us: float  # its predicted time there
    blocks: float  # with this launch


def contending(store: Store, winners: Sequence[BestRow], fits: Callable[[Contender], bool]) -> Iterator[Contender]:
    """Yield, for each tuned shape and each shape between them that no search covered, the kernels that fit, fastest
    first.

    The winners are of one device, state of the L2, element type and op. There is no prediction for hosts, nor for a
    GPU whose number of multiprocessors is unknown.
    """
    rows = [*winners, *rows_between(store, winners)]
    kernels, configs, cards = kernels_of(store, rows)
    card, own = cards.get(winners[0].device), {configs[row.trial_id].kernel_text: row for row in rows}
    if card is None or any(kernels[row.trial_id].division is None for row in rows):
        return
    tuned, one_of_each = [row.problem for row in winners], list(own.values())
    between = unsearched_between(store, winners)
    times, blocks = expected([kernels[row.trial_id] for row in one_of_each], [*tuned, *between], card)
    least = np.array([*(row.median_us for row in winners), *times[:, len(tuned) :].min(axis=0)])
    for place, problem in enumerate([*tuned, *between]):
        found = 0
        for at in np.argsort(times[:, place], kind="stable"):
            row = one_of_each[at]
            us = float(times[at, place])
            contender = Contender(configs[row.trial_id], row.problem, problem, us, float(blocks[at, place]))
            if us > NEARLY * least[place] or found == MOST_CONTENDING:
                break
            if fits(contender):
                found += 1
                yield contender


def unsearched_between(store: Store, winners: Sequence[BestRow]) -> list[Problem]:
    """Return the shapes between the winners' that no search covered; none if there are few winners."""
    if len(winners) < MEASURED:
        return []
    kind = winners[0]
    searched = store.searched(kind.device, Cache(kind.cache), kind.problem)
    return [problem for problem in shapes_between([row.problem for row in winners]) if problem not in searched]
