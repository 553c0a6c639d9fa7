"""Grids of configurations: Cartesian products of tunables' values, filtered by conditions.

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
Option = tuple[TunableValue, ...]  # one value for each tunable of an axis


class Grid(Generic[C]):
    """The configurations that combine one option of each axis and fulfil every condition.

    An axis is one tunable, or several that vary together. Iteration varies the last axis fastest.
    """

    def __init__(
        self,
        config_type: type[C],
        axes: Mapping[str, Sequence[Any]],
        where: Mapping[str, Callable[[C], bool]] = MappingProxyType({}),
    ) -> None:
        """Create the grid. Keys of both mappings are names of tunables, separated by spaces.

        `axes` maps one tunable to its values, or several tunables to tuples of values. `where` maps tunables to a
        condition that reads only these tunables.
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
        """A mask with one dimension per axis: true for each combination of options that is in the grid."""
        every = np.ones([len(options) for options in self._options], bool)
        for names, condition in self._where.items():
            every &= self.answers(names.split(), condition, every)
        return every

    def values(self) -> dict[str, set[Any]]:
        """Return the values that each tunable of an axis has in the grid's configurations."""
        every, axes = self.every, range(self.every.ndim)
        used = [every.any(axis=tuple(other for other in axes if other != axis)) for axis in axes]
        named = zip(declared(self._config_type), self._values, strict=False)
        return {one.name: set(values[used[axis]]) for one, (axis, values) in named}

    def holds(self, config: KernelConfig) -> bool:
        """Return whether the configuration is in the grid. Tunables that are no axis may have any value."""
        return (
            type(config) is self._config_type
            and all(values(config) in options for values, options in self._sets)
            and all(condition(config) for condition in self._where.values())
        )

    @cached_property
    def _sets(self) -> list[tuple[attrgetter[Any], frozenset[Any]]]:
        """For each axis, a function that gets its values from a configuration, and the set of allowed values."""
        return [
            (attrgetter(*names), frozenset(options if len(names) > 1 else chain.from_iterable(options)))
            for names, options in zip(self._names, self._options, strict=True)
        ]

    def chosen(self, mask: Bools) -> Iterator[C]:
        """Yield the configurations for which `mask` is true. The mask has the shape of `every`."""
        return self._at(np.argwhere(mask))

    def answers(self, of: Collection[str], ask: Callable[[C], bool], mask: Bools) -> Bools:
        """Return a mask of the configurations for which both `mask` and `ask` are true.

        `ask` must read only the tunables named in `of`. The result has size 1 along every axis that has none of these
        tunables.
        """
        looked_at = [tuple(index for index, name in enumerate(names) if name in of) for names in self._names]
        others = tuple(axis for axis, indices in enumerate(looked_at) if not indices)
        answers: Bools = np.asarray(mask.any(axis=others, keepdims=True))
        places = np.argwhere(answers)
        alike = np.zeros(len(places), np.int64)  # a number for each combination of the values that `ask` reads
        for axis, indices in enumerate(looked_at):
            if indices:
                alike = alike * len(self._options[axis]) + self._numbers(axis, indices)[places[:, axis]]
        _, first, which = np.unique(alike, return_index=True, return_inverse=True)
        answers[answers] = np.array([ask(config) for config in self._at(places[first])], bool)[which]
        return answers

    def _numbers(self, axis: int, indices: tuple[int, ...]) -> Ints:
        """Return an integer for each option of the axis, equal for options with equal values at these indices."""
        if (axis, indices) not in self._numbered:
            known: dict[Option, int] = {}
            values = (tuple(option[index] for index in indices) for option in self._options[axis])
            self._numbered[axis, indices] = np.array([known.setdefault(one, len(known)) for one in values], np.int64)
        return self._numbered[axis, indices]

    def _at(self, places: Ints) -> Iterator[C]:
        """Yield the configurations at these places. A row of `places` contains an option's index for each axis."""
        return map(self._config_type, *(values[places[:, axis]].tolist() for axis, values in self._values))
