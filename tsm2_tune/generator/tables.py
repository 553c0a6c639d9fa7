"""Candidates in tables: of a space of a million, an object each is made only where somebody looks at it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np

from tsm2_tune.generator.rules import Candidate


class Rows(Sequence[Candidate]):
    """The candidates of a table, which is one itself: of its configuration's tunables some are arrays."""

    def __init__(self, table: Candidate) -> None:
        self.table = table
        tunables: dict[str, Any] = dict(table.config.tunables)
        self._columns = {name: values for name, values in tunables.items() if isinstance(values, np.ndarray)}
        self._length = len(next(iter(self._columns.values())))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return self._candidate({name: column[index].item() for name, column in self._columns.items()})

    def __iter__(self) -> Iterator[Candidate]:
        for row in zip(*(column.tolist() for column in self._columns.values()), strict=True):
            yield self._candidate(dict(zip(self._columns, row, strict=True)))

    def _candidate(self, values: dict[str, Any]) -> Candidate:
        table = self.table
        config = replace(table.config, **values)
        return Candidate(table.family, config, table.problem, table.limits, table.guidelines)


class Joined(Sequence[Candidate]):
    """Several sequences one after another."""

    def __init__(self, parts: Sequence[Sequence[Candidate]]) -> None:
        self.parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        part = bisect_right(self._ends, place)
        return self.parts[part][place - self._ends[part]]  # from the part's end, below 0

    def __iter__(self) -> Iterator[Candidate]:
        return chain.from_iterable(self.parts)
