"""Set cover: the smallest set with a fast enough kernel for every shape, and a table of losses of smaller sets.

The input is a table of costs. No database and no device is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tsm2_tune.generator.problem import Problem

Costs = Mapping[str, Mapping[Problem, float]]  # kernel's text -> shape at which it is fast enough -> cost
MOST_STEPS = 20_000  # limit of the search for fewer kernels: about a second
MOST_STEPS_AMONG_EQUALS = 5_000  # limit of the search for a set of the same size with a lower cost
EQUAL = 1e-12  # costs that differ by at most this are equal
SHOWN_BEYOND = 3  # rows of the table between the chosen row and the last row


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of kernels with a fast enough kernel for every shape."""

    kernels: tuple[str, ...]  # the kernels' texts, sorted
    is_proven: bool  # whether no smaller set suffices

    def serving(self, costs: Costs, shape: Problem) -> str:
        """Return the text of the kernel with the least cost at the shape."""
        return min((one for one in self.kernels if shape in costs[one]), key=lambda one: (costs[one][shape], one))


@dataclass(frozen=True, slots=True)
class Bought:
    """One row of the table of losses: a set of kernels, and by how much their times exceed the best times."""

    kernels: tuple[str, ...]
    served: int  # number of shapes at which one of the kernels was timed
    worst: float  # largest loss at these shapes: 0.03 means 1.03 times the best time
    mean: float
    is_chosen: bool


def fewest(costs: Costs, shapes: Sequence[Problem]) -> Choice | None:
    """Return the smallest set of kernels with a kernel for every shape; None if some shape has no kernel.

    `costs` contains, for each kernel, the shapes at which the kernel is fast enough, and its cost at each of these
    shapes. Among the smallest sets, the set with the least total cost is returned. Each shape adds the cost of the
    set's cheapest kernel at this shape to the total cost. The search is branch and bound, and starts from the greedy
    set. Equal arguments give equal results.
    """
    if any(all(shape not in of_kernel for of_kernel in costs.values()) for shape in shapes):
        return None
    return _Search(costs, shapes).choice()


@dataclass(slots=True)
class _Search:
    """A branch-and-bound search for a set cover.

    A kernel is an index into `names`. A set of shapes is an integer with one bit for each shape.
    """

    costs: Costs
    shapes: Sequence[Problem]
    names: list[str] = field(init=False)
    rows: list[list[float]] = field(init=False)  # cost of each kernel (row) at each shape; inf: too slow
    masks: list[int] = field(init=False)
    found: tuple[int, ...] = ()
    found_cost: float = math.inf
    steps: int = 0

    def __post_init__(self) -> None:
        every = {name: [of.get(shape, math.inf) for shape in self.shapes] for name, of in self.costs.items()}
        self.names = _undominated(every)
        self.rows = [every[name] for name in self.names]
        self.masks = [sum(1 << place for place, one in enumerate(row) if one < math.inf) for row in self.rows]

    def choice(self) -> Choice:
        """Return the best set that the search finds within the limits on steps."""
        everything = (1 << len(self.shapes)) - 1
        self.found = self._greedy(everything)
        self.found_cost = self._cost(self.found)
        self.steps = MOST_STEPS
        self._branch((), everything, frozenset(), fewer=True)
        is_proven = self.steps > 0
        self.steps = MOST_STEPS_AMONG_EQUALS
        self._branch((), everything, frozenset(), fewer=False)
        return Choice(tuple(sorted(self.names[one] for one in self.found)), is_proven)

    def _greedy(self, remaining: int) -> tuple[int, ...]:
        chosen: tuple[int, ...] = ()
        while remaining:
            most = max(
                range(len(self.names)),
                key=lambda one: ((self.masks[one] & remaining).bit_count(), -sum(self.rows[one])),
            )
            chosen, remaining = (*chosen, most), remaining & ~self.masks[most]
        return chosen

    def _branch(self, chosen: tuple[int, ...], remaining: int, without: frozenset[int], *, fewer: bool) -> None:
        """Extend `chosen` by kernels, except those in `without`, until no shape is in `remaining`. Keep the best set.

        With `fewer`, try only sets smaller than the best set so far. Without it, try also sets of the same size.
        """
        self.steps -= 1
        if self.steps < 0:
            return
        if not remaining:
            self._take(chosen)
            return
        able = [one for one in range(len(self.names)) if one not in without and self.masks[one] & remaining]
        most = max(((self.masks[one] & remaining).bit_count() for one in able), default=0)
        room = len(self.found) - len(chosen) - fewer
        if most == 0 or -(-remaining.bit_count() // most) > room:
            return
        bits = (bit for bit in range(len(self.shapes)) if remaining >> bit & 1)
        place = min(bits, key=lambda bit: sum(self.masks[one] >> bit & 1 for one in able))
        serving = [one for one in able if self.masks[one] >> place & 1]
        for one in sorted(
            serving, key=lambda one: (-(self.masks[one] & remaining).bit_count(), self.rows[one][place])
        ):
            self._branch((*chosen, one), remaining & ~self.masks[one], without, fewer=fewer)
            without |= {one}

    def _take(self, chosen: tuple[int, ...]) -> None:
        """Store the set as the best one if it has fewer kernels or a lower cost than the best one so far."""
        cost = self._cost(chosen)
        if len(chosen) < len(self.found) or cost < self.found_cost - EQUAL:
            self.found, self.found_cost = chosen, cost

    def _cost(self, chosen: Sequence[int]) -> float:
        return sum(min(self.rows[one][place] for one in chosen) for place in range(len(self.shapes)))


def _undominated(rows: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the sorted names of kernels for which no other kernel is at least as cheap at every shape.

    Of kernels with equal costs, only the first name is returned.
    """
    names: list[str] = []
    matrix = np.array([rows[name] for name in sorted(rows)]).reshape(len(rows), -1)
    for number, name in enumerate(sorted(rows)):
        no_worse = (matrix <= matrix[number]).all(axis=1)
        equal = (matrix == matrix[number]).all(axis=1)
        if not (no_worse & ~equal).any() and not equal[:number].any():
            names.append(name)
    return names


# The table of losses


def bought(losses: Costs, shapes: Sequence[Problem], chosen: Sequence[str]) -> tuple[Bought, ...]:
    """Return a table of losses: a row for one kernel, two kernels, and so on, up to a few more kernels than `chosen`.

    The last row has the smallest set that contains a fastest kernel of every shape. The row for as many kernels as in
    `chosen` has the set `chosen`. The sets of all other rows are found by local search, which exchanges one kernel at
    a time. The best set has the fewest shapes without a kernel; among equal sets, the least worst loss, then the
    least mean loss.
    """
    table = _Table(losses, shapes)
    wanted, last = table.places(chosen), table.places(_best_everywhere(losses, shapes))
    rows = list[tuple[int, ...]]()
    current: tuple[int, ...] = ()
    for number in range(1, max(len(wanted) + 1, min(len(wanted) + SHOWN_BEYOND + 1, len(last)))):
        current = wanted if number == len(wanted) else table.exchanged(table.with_one_more(current))
        rows.append(current)
    if len(last) > len(rows):
        rows.append(last)
    return tuple(table.bought(one, is_chosen=len(one) == len(wanted)) for one in rows)


def _best_everywhere(losses: Costs, shapes: Sequence[Problem]) -> tuple[str, ...]:
    """Return the fewest kernels that include a fastest kernel of every shape."""
    least = {shape: min((of[shape] for of in losses.values() if shape in of), default=math.inf) for shape in shapes}
    at_best = {
        name: {shape: 0.0 for shape, loss in of.items() if loss <= least.get(shape, -1.0)}
        for name, of in losses.items()
    }
    choice = fewest(at_best, [shape for shape in shapes if least[shape] < math.inf])
    return choice.kernels if choice else ()


class _Table:
    """A matrix of losses: one row for each kernel, one column for each shape; inf if the kernel has no time there."""

    def __init__(self, losses: Costs, shapes: Sequence[Problem]) -> None:
        self._names = sorted(losses)
        rows = [[losses[name].get(shape, math.inf) for shape in shapes] for name in self._names]
        self._matrix: NDArray[np.float64] = np.array(rows, float).reshape(len(self._names), len(shapes))

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self._names.index, names))

    def with_one_more(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """Return the kernels and the one additional kernel that improves the score most."""
        unserved, worst, mean = self._scores(chosen)
        ranked = np.lexsort((mean, worst, unserved))
        return (*chosen, next(one for one in map(int, ranked) if one not in chosen))

    def exchanged(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """Return the kernels after exchanging one kernel at a time, until no exchange improves the score."""
        while True:
            rest = [chosen[:place] + chosen[place + 1 :] for place in range(len(chosen))]
            better = min(map(self.with_one_more, rest), key=self._score)
            if self._score(better) >= self._score(chosen):
                return chosen
            chosen = better

    def bought(self, chosen: tuple[int, ...], *, is_chosen: bool) -> Bought:
        unserved, worst, mean = self._score(chosen)
        names = tuple(sorted(self._names[one] for one in chosen))
        return Bought(names, self._matrix.shape[1] - unserved, worst, mean, is_chosen)

    def _score(self, chosen: tuple[int, ...]) -> tuple[int, float, float]:
        """Return the number of shapes without a kernel, and the worst and the mean loss at the other shapes."""
        unserved, worst, mean = self._scores(chosen[1:])
        return int(unserved[chosen[0]]), float(worst[chosen[0]]), float(mean[chosen[0]])

    def _scores(self, chosen: tuple[int, ...]) -> tuple[NDArray[np.int_], NDArray[np.float64], NDArray[np.float64]]:
        """Return the scores of the kernels `chosen` together with each kernel of the table, as three arrays."""
        least = np.minimum(self._matrix, self._matrix[list(chosen)].min(axis=0, initial=math.inf))
        is_served = np.isfinite(least)
        losses, served = np.where(is_served, least, 0.0), is_served.sum(axis=1)
        return least.shape[1] - served, losses.max(axis=1), losses.sum(axis=1) / np.maximum(served, 1)
