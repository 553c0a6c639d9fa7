"""A queue of candidates that are compiled in the background before they are tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from itertools import chain

from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.compile.pool import Compiled
from tsm2_tune.tuner.search.candidates import Candidates

QueuedCandidate = tuple[Candidate, KernelSource, Compiled]


class CompileQueue:
    """A queue of candidates that are compiled in the background before they are tried.

    While enough candidates remain, `take` keeps at least `least` candidates in the queue, and `step` up to twice this
    number.
    """

    def __init__(
        self,
        candidates: Candidates,
        start_compiler: Callable[[Candidate], tuple[KernelSource, Compiled]],
        least: int,
    ) -> None:
        self._candidates, self._start_compiler, self._least = candidates, start_compiler, least
        self._queued, self._postponed = deque[QueuedCandidate](), deque[QueuedCandidate]()

    @property
    def compiling(self) -> Iterator[Compiled]:
        """The futures of the binaries of all candidates in the queue."""
        return (one for _, _, one in chain(self._queued, self._postponed))

    def step(self) -> bool:
        """Start the compiler of one more candidate. Return False if the queue is full or no candidate remains."""
        candidate = next(self._candidates, None) if len(self._queued) < 2 * self._least else None
        if candidate is not None:
            self._queued.append((candidate, *self._start_compiler(candidate)))
        return candidate is not None

    def take(self) -> QueuedCandidate | None:
        """Wait for a compiled candidate and return it. Return None if no candidate remains."""
        while True:
            while len(self._queued) < self._least and self.step():
                pass
            if not self._queued:
                return self._postponed.popleft() if self._postponed else None
            if (taken := self._taken(self._first_compiled())) is not None:
                return taken

    def take_compiled(self) -> QueuedCandidate | None:
        """Return a compiled candidate without waiting; None if there is no such candidate. Postponed candidates are
        not returned.
        """
        while (place := self._compiled()) is not None:
            if (taken := self._taken(place)) is not None:
                return taken
        return None

    def _taken(self, place: int) -> QueuedCandidate | None:
        """Remove and return the candidate at index `place`. If it should wait, postpone it and return None."""
        taken = self._queued[place]
        del self._queued[place]
        if not self._candidates.is_postponed(taken[0]):
            return taken
        self._postponed.append(taken)
        return None

    def _compiled(self) -> int | None:
        """Return the index of the first compiled candidate in the queue; None if there is none."""
        return next((at for at, one in enumerate(self._queued) if one[2].done()), None)

    def _first_compiled(self) -> int:
        """Wait until a candidate is compiled. Return its index in the queue."""
        while (place := self._compiled()) is None:
            if not self.step():
                wait([one[2] for one in self._queued], return_when=FIRST_COMPLETED)
        return place
