"""Kernels that are predicted to be nearly the fastest, at tuned shapes and between tuned shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.intermediate_shapes import shapes_between
from tsm2_tune.tuner.export.gathered import gathered
from tsm2_tune.tuner.export.kernel_sets.intermediate_winners import MEASURED, expected, rows_between
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Cache

NEARLY = 1.15  # largest ratio of a kernel's predicted time to the fastest time
MOST_CONTENDING = 6  # maximum number of kernels per shape


@dataclass(frozen=True, slots=True)
class Contender:
    """An exported kernel, and a shape at which it is predicted to be nearly the fastest."""

    config: KernelConfig
    own: Problem  # the problem for which the configuration was tuned
    at: Problem
    us: float  # predicted time at the shape `at`
    blocks: float  # number of thread blocks of the predicted launch


def contending(store: Store, winners: Sequence[BestRow], fits: Callable[[Contender], bool]) -> Iterator[Contender]:
    """Yield kernels that are predicted to be nearly the fastest at a shape, fastest first for each shape.

    The shapes are the tuned shapes, and the shapes between tuned shapes for which no search was run. Kernels for
    which `fits` returns False are skipped. All winners must have the same device, L2 state, element type and op.
    Nothing is yielded for the CPU, or for a GPU with an unknown number of multiprocessors.
    """
    rows = [*winners, *rows_between(store, winners)]
    trials = store.trials([row.trial_id for row in rows])
    kernels, rates = gathered(store, rows, trials, vendor=False)
    configs = {trial_id: record.trial.config for trial_id, record in trials.items()}
    of_device, own = rates.get(winners[0].device), {configs[one.row.trial_id].kernel_text: one for one in kernels}
    if of_device is None or any(one.measured.tiling is None for one in kernels):
        return
    tuned, one_of_each = [row.problem for row in winners], list(own.values())
    between = unsearched_between(store, winners)
    times, blocks = expected([one.measured for one in one_of_each], [*tuned, *between], of_device)
    least = np.array([*(row.median_us for row in winners), *times[:, len(tuned) :].min(axis=0)])
    for place, problem in enumerate([*tuned, *between]):
        found = 0
        for at in np.argsort(times[:, place], kind="stable"):
            row = one_of_each[at].row
            us = float(times[at, place])
            contender = Contender(configs[row.trial_id], row.problem, problem, us, float(blocks[at, place]))
            if us > NEARLY * least[place] or found == MOST_CONTENDING:
                break
            if fits(contender):
                found += 1
                yield contender


def unsearched_between(store: Store, winners: Sequence[BestRow]) -> list[Problem]:
    """Return the shapes between the winners' shapes for which no search was run; [] if there are few winners."""
    if len(winners) < MEASURED:
        return []
    kind = winners[0]
    searched = store.searched(kind.device, Cache(kind.cache), kind.problem)
    return [problem for problem in shapes_between([row.problem for row in winners]) if problem not in searched]
