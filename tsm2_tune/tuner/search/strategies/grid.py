"""Mapping of a kernel family's configurations to points, which defines distances between configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.space.candidate import Candidate, Floats


@dataclass(frozen=True, slots=True)
class Grid:
    """The candidates of one family as points: one coordinate from 0 to 1 for each tunable with several values."""

    values: dict[str, tuple[Any, ...]]  # sorted values of each tunable with several values
    places: np.ndarray[Any, np.dtype[np.int_]]  # indices of the candidates in the list of all candidates
    points: Floats  # one row for each candidate

    @classmethod
    def of_families(cls, candidates: Sequence[Candidate]) -> dict[str, Grid]:
        """Return family name -> grid of the family's candidates."""
        places = dict[str, list[int]]()
        for place, one in enumerate(candidates):
            places.setdefault(one.config.family, []).append(place)
        return {name: cls.of([candidates[place].config for place in of], of) for name, of in places.items()}

    @classmethod
    def of(cls, configs: Sequence[KernelConfig], places: Sequence[int]) -> Grid:
        """Return the grid of one family's configurations. `places` are their indices among all candidates."""
        columns = {name: [one.tunables[name] for one in configs] for name in configs[0].tunables}
        values = {name: tuple(sorted(set(column))) for name, column in columns.items() if len(set(column)) > 1}
        points = np.zeros((len(configs), len(values)))
        for number, (name, options) in enumerate(values.items()):
            coordinate = {value: place / (len(options) - 1) for place, value in enumerate(options)}
            points[:, number] = [coordinate[value] for value in columns[name]]
        return cls(values, np.array(places, int), points)

    def squares(self, place: int) -> Floats:
        """Return the squared distances of all candidates of the family from the candidate with index `place`."""
        own = self.points[np.searchsorted(self.places, place)]
        found: Floats = ((self.points - own) ** 2).sum(axis=1)
        return found
