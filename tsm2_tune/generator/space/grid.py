"""Grids of configurations: products of axes, filtered by conditions.

A condition that reads few tunables is evaluated once for each combination of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.tunables import TunableValue, declared

C = TypeVar("C", bound=KernelConfig)
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Option = tuple[TunableValue, ...]  # values of the tunables of an axis


class Grid(Generic[C]):
    """The combinations of one option of each axis that fulfil every condition. The last axis varies fastest."""

    def __init__(
        self,
        config_type: type[C],
        axes: Mapping[str, Sequence[Any]],
        where: Mapping[str, Callable[[C], bool]] = MappingProxyType({}),
    ) -> None:
        """Name the axes and the conditions by tunables; several names are separated by spaces.

        `axes` has the options of a tunable, or tuples of values of several tunables. `where` has conditions that read
        only the named tunables.
        """
        self._config_type, self._where = config_type, where
        self._numbered: dict[tuple[int, tuple[int, ...]], Ints] = {}
        self._names = [names.split() for names in axes]
        self._options: list[Sequence[Option]] = [
            tuple(options) if len(names) > 1 else tuple((option,) for option in options)
            for names, options in zip(self._names, axes.values(), strict=True)
        ]
        given = {name: (axis, index) for axis, names in enumerate(self._names) for index, name in enumerate(names)}
        fields = [one.name for one in declared(config_type)][: len(given)]  # later fields have their defaults
        self._values = [  # for each field: its axis, and the values of the axis's options
            (axis, np.array([option[index] for option in self._options[axis]], object))
            for axis, index in (given[name] for name in fields)
        ]

    def __iter__(self) -> Iterator[C]:
        return self.chosen(self.every)

    @cached_property
    def every(self) -> Bools:
        """An array with one dimension an axis: whether each combination of options is in the grid."""
        every = np.ones([len(options) for options in self._options], bool)
        for names, condition in self._where.items():
            every &= self.answers(names.split(), condition, every)
        return every

    def holds(self, config: KernelConfig) -> bool:
        """Return whether the grid has the configuration, whatever its late tunables."""
        return (
            type(config) is self._config_type
            and all(values(config) in options for values, options in self._sets)
            and all(condition(config) for condition in self._where.values())
        )

    @cached_property
    def _sets(self) -> list[tuple[attrgetter[Any], frozenset[Any]]]:
        """Return, for each axis, the getter of its values in a configuration, and the values allowed."""
        return [
            (attrgetter(*names), frozenset(options if len(names) > 1 else chain.from_iterable(options)))
            for names, options in zip(self._names, self._options, strict=True)
        ]

    def chosen(self, mask: Bools) -> Iterator[C]:
        """Yield the configurations where `mask`, an array like `every`, is true."""
        return self._at(np.argwhere(mask))

    def answers(self, of: Collection[str], ask: Callable[[C], bool], mask: Bools) -> Bools:
        """Return the results of `ask` where `mask` is true, and false elsewhere. `ask` reads only the tunables `of`.

        The array has size 1 along axes without any of these tunables.
        """
        looked_at = [tuple(index for index, name in enumerate(names) if name in of) for names in self._names]
        others = tuple(axis for axis, indices in enumerate(looked_at) if not indices)
        answers: Bools = np.asarray(mask.any(axis=others, keepdims=True))
        places = np.argwhere(answers)
        alike = np.zeros(len(places), np.int64)  # a number for each combination of read values
        for axis, indices in enumerate(looked_at):
            if indices:
                alike = alike * len(self._options[axis]) + self._numbers(axis, indices)[places[:, axis]]
        _, first, which = np.unique(alike, return_index=True, return_inverse=True)
        answers[answers] = np.array([ask(config) for config in self._at(places[first])], bool)[which]
        return answers

    def _numbers(self, axis: int, indices: tuple[int, ...]) -> Ints:
        """Return a number for each option of the axis, equal for equal values at these indices."""
        if (axis, indices) not in self._numbered:
            known: dict[Option, int] = {}
            values = (tuple(option[index] for index in indices) for option in self._options[axis])
            self._numbered[axis, indices] = np.array([known.setdefault(one, len(known)) for one in values], np.int64)
        return self._numbered[axis, indices]

    def _at(self, places: Ints) -> Iterator[C]:
        """Yield the configurations at these places, one a row."""
        return map(self._config_type, *(values[places[:, axis]].tolist() for axis, values in self._values))
