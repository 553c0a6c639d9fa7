"""Kernels that are expected to be nearly the fastest, at tuned shapes and between them: a program may be given them
around there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tsm2_tune.generator.between import shapes_between
from tsm2_tune.generator.problem import Problem
from tsm2_tune.runtime.interpolating import Floats
from tsm2_tune.tuner.export.between import MEASURED, expected_us, kernels_of, rows_between
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow

NEARLY = 1.15  # times as long as the fastest
MOST_CONTENDING = 6  # kernels at a shape, those that are expected to take least


def contending(store: Store, winners: Sequence[BestRow]) -> Iterator[tuple[str, Problem]]:
    """The text of a kernel that an export of these winners has, and a tuned shape or one between them.

    The winners are of one device, state of the L2, element type and op. Nothing is expected of hosts, nor of a GPU
    whose multiprocessors are not known.
    """
    rows = [*winners, *rows_between(store, winners)]
    kernels, texts, cards = kernels_of(store, rows)
    card = cards.get(winners[0].device)
    own = {texts[row.trial_id]: kernels[row.trial_id] for row in rows}  # one of each text
    if card is None or any(one.division is None for one in own.values()):
        return
    tuned = [row.problem for row in winners]
    between = shapes_between(tuned) if len(tuned) >= MEASURED else []
    times = expected_us(list(own.values()), [*tuned, *between], card)
    least = np.array([*(row.median_us for row in winners), *times[:, len(tuned) :].min(axis=0)])
    for place, problem in enumerate([*tuned, *between]):
        yield from ((list(own)[at], problem) for at in _nearest(times[:, place] / least[place]))


def _nearest(ratios: Floats) -> list[int]:
    """Places of the least, as far as they are near."""
    return [int(at) for at in np.argsort(ratios, kind="stable")[:MOST_CONTENDING] if ratios[at] <= NEARLY]
