"""Sequences of candidates for large spaces: NumPy arrays store the tunables, and objects are created on access."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.occupancy import Ints
from tsm2_tune.generator.space.candidate import Candidate


class Lazy(Sequence[Candidate]):
    """A sequence that creates its candidates on access."""

    @abstractmethod
    def at(self, place: int) -> Candidate:
        """Return the candidate at this index, which is not negative."""

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else [self.at(place) for place in places]


class Rows(Lazy):
    """The candidates of a table, one for each row.

    The table is a single `Candidate`. Some tunables of its configuration are arrays with a value for each row.
    """

    def __init__(self, table: Candidate) -> None:
        self.table = table
        tunables: dict[str, Any] = dict(table.config.tunables)
        self._columns = {name: values for name, values in tunables.items() if isinstance(values, np.ndarray)}
        self._length = len(next(iter(self._columns.values())))

    @property
    def wide(self) -> Candidate:
        """The table with 64-bit integers in its arrays, so that products such as m * n do not overflow."""
        columns = {name: column.astype(np.int64) for name, column in self._columns.items()}
        return replace(self.table, config=replace(self.table.config, **columns))

    def place(self, config: KernelConfig) -> int | None:
        """Return the row number of the configuration; None if it is not in the table."""
        own: dict[str, Any] = dict(self.table.config.tunables)
        if type(config) is not type(self.table.config):
            return None
        if any(own[name] != value for name, value in config.tunables.items() if name not in self._columns):
            return None
        same = [column == config.tunables[name] for name, column in self._columns.items()]
        rows = np.flatnonzero(np.logical_and.reduce(same))
        return int(rows[0]) if len(rows) else None

    def __len__(self) -> int:
        return self._length

    def at(self, place: int) -> Candidate:
        return self._candidate({name: column[place].item() for name, column in self._columns.items()})

    def __iter__(self) -> Iterator[Candidate]:
        for row in zip(*(column.tolist() for column in self._columns.values()), strict=True):
            yield self._candidate(dict(zip(self._columns, row, strict=True)))

    def _candidate(self, values: dict[str, Any]) -> Candidate:
        table = self.table
        config = replace(table.config, **values)
        return Candidate(table.family, config, table.problem, table.limits, table.guidelines)


class Joined(Lazy):
    """The concatenation of several sequences of candidates."""

    def __init__(self, parts: Sequence[Sequence[Candidate]]) -> None:
        self.parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, place: int) -> Candidate:
        part = bisect_right(self._ends, place)
        return self.parts[part][place - self._ends[part]]  # negative, so it counts from the part's end

    def __iter__(self) -> Iterator[Candidate]:
        return chain.from_iterable(self.parts)


class Chosen(Lazy):
    """A selection from a sequence of candidates: the candidates at the indices `places`, in the order of `places`."""

    def __init__(self, candidates: Sequence[Candidate], places: Ints) -> None:
        self._candidates, self._places = candidates, places

    def __len__(self) -> int:
        return len(self._places)

    def at(self, place: int) -> Candidate:
        return self._candidates[int(self._places[place])]


def parts_of(candidates: Sequence[Candidate]) -> Iterator[tuple[int, Sequence[Candidate]]]:
    """Yield (index of the first candidate, sequence) for each sequence that a `Joined` contains, nested ones too."""
    if not isinstance(candidates, Joined):
        yield 0, candidates
        return
    place = 0
    for part in candidates.parts:
        yield from ((place + first, one) for first, one in parts_of(part))
        place += len(part)


def places(candidates: Sequence[Candidate], configs: Collection[KernelConfig]) -> dict[KernelConfig, int]:
    """Return the index of each configuration among the candidates. Configurations that are missing have no entry."""
    found: dict[KernelConfig, int] = {}
    for first, part in parts_of(candidates):
        if isinstance(part, Rows):
            rows = ((config, part.place(config)) for config in configs)
            found |= {config: first + row for config, row in rows if row is not None}
        else:
            found |= {one.config: first + row for row, one in enumerate(part) if one.config in configs}
    return found
