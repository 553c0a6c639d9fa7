"""Which problem of a run is next, where several runs have the same ones: first those that no other run is at."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields

from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.claims import Claims
from tsm2_tune.tuner.past import Claimed
from tsm2_tune.tuner.patience import Options

NOT_OF_A_SEARCH = ("seed", "sharing")  # options by which two searches of a problem are not told apart


def search_key(basis: str, options: Options, *others: object) -> str:
    """What tells searches of a problem apart: who has ended one has ended those that have the same."""
    values = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in NOT_OF_A_SEARCH}
    spelt = [(name, sorted(value) if isinstance(value, frozenset) else value) for name, value in values.items()]
    return hashlib.sha256(repr((basis, spelt, others)).encode()).hexdigest()


class Spread:
    """Gives the place of each problem that this run has a part in, in their order but for those others are at.

    A problem is left out whose search another run has ended since this was made. When only problems are left that
    others are at, the run joins one of them: a claim of each configuration divides its search.
    """

    def __init__(self, claims: Claims, problems: Sequence[Problem], basis: str, search: str) -> None:
        self._claims, self._problems, self._basis, self._search = claims, problems, basis, search
        self._before = claims.ended_searches(search)
        self._chance = random.Random(claims.owner)  # else all that have no problem left would join the same one
        self.ended_elsewhere = 0  # problems that were left out

    def __iter__(self) -> Iterator[int]:
        left = list(range(len(self._problems)))
        while left:
            place, is_ours = self._next(left)
            if place is None:
                return
            left.remove(place)
            yield place
            if is_ours:
                self._claims.end_search(self._problems[place], self._search)

    def _next(self, left: list[int]) -> tuple[int | None, bool]:
        """One of those left, and whether it is claimed; None where other runs have ended them all.

        What others have ended is left no more.
        """
        for place in list(left):
            problem = self._problems[place]
            before = self._before.get(problem.text, "")
            answer = self._claims.take_search(problem, self._basis, self._search, before)
            if answer is Claimed.YES:
                return place, True
            if answer is Claimed.ENDED:
                left.remove(place)
                self.ended_elsewhere += 1
        return (self._chance.choice(left), False) if left else (None, False)
