"""Kernels that are expected to be nearly the fastest at tuned shapes: a program may be given them around there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.export.between import expected_us, kernels_of, rows_between
from tsm2_tune.tuner.store import Store
from tsm2_tune.tuner.stored import BestRow

NEARLY = 1.15  # times as long as the shape's winner


def contending(store: Store, winners: Sequence[BestRow]) -> Iterator[tuple[str, Problem]]:
    """The text of a kernel that an export of these winners has, and a shape that another one won.

    Nothing is expected of hosts, nor of a GPU whose multiprocessors are not known.
    """
    rows = [*winners, *rows_between(store, winners)]
    kernels, texts, cards = kernels_of(store, rows)

    def kind(row: BestRow) -> tuple[str, str, str, str]:
        return row.device, row.cache, row.dtype, row.op

    of_kinds = {of: list(among) for of, among in groupby(sorted(winners, key=kind), key=kind)}
    for of, among in groupby(sorted(rows, key=kind), key=kind):
        card, shapes = cards.get(of[0]), [row.problem for row in of_kinds[of]]
        for text, trial_id in {texts[row.trial_id]: row.trial_id for row in among}.items():
            kernel = kernels[trial_id]
            if card is None or kernel.division is None:
                continue
            times = expected_us([kernel], shapes, card)[0]
            for row, us in zip(of_kinds[of], times, strict=True):
                if us <= NEARLY * row.median_us and texts[row.trial_id] != text:
                    yield text, row.problem
