"""Candidates whose compilers were started: which is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Protocol

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.trial import Binary, CompileFailure

Compiled = Future[Binary | CompileFailure]
Begun = tuple[Candidate, KernelSource, Compiled]


class Line(Protocol):
    """What knows which candidates are to wait until no other is left."""

    def is_behind(self, candidate: Candidate) -> bool: ...


class Pending:
    """Candidates whose compilers were started ahead of their trials; of those, too, some wait.

    There are at least so many, where as many are left. Where there are fewer, twice as many are begun `together`.
    """

    def __init__(
        self,
        remaining: Iterator[Candidate],
        line: Line,
        begin: Callable[[Candidate], tuple[KernelSource, Compiled]],
        least: int,
        together: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._remaining, self._line, self._begin, self._least = remaining, line, begin, least
        self._together = together
        self._begun, self._waiting = deque[Begun](), deque[Begun]()

    @property
    def compiling(self) -> Iterator[Compiled]:
        """What compilers were started for, and is not taken."""
        return (one for _, _, one in chain(self._begun, self._waiting))

    def take(self) -> Begun | None:
        """The next one, compilers started for those that follow; None where none is left."""
        while True:
            if len(self._begun) < self._least:
                with self._together():
                    for one in islice(self._remaining, 2 * self._least - len(self._begun)):
                        self._begun.append((one, *self._begin(one)))
            if not self._begun:
                return self._waiting.popleft() if self._waiting else None
            taken = self._begun.popleft()
            if not self._line.is_behind(taken[0]):
                return taken
            self._waiting.append(taken)
