"""A queue of candidates that are compiled in the background before they are tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Protocol

from tsm2_tune.generator.source import KernelSource
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.compile.pool import Compiled

WAIT_SECONDS = 0.1  # for a compiler; then idle work is called again
QueuedCandidate = tuple[Candidate, KernelSource, Compiled]


class DefersCandidates(Protocol):
    """Interface that decides which candidates wait until no other candidate remains."""

    def is_behind(self, candidate: Candidate) -> bool: ...


class CompileQueue:
    """A queue of candidates that are compiled in the background before they are tried.

    While enough candidates remain, the queue contains at least `least` candidates. In idle time it grows to twice
    this number. Candidates are taken from `remaining` several at a time, in the context `in_one_transaction`.
    """

    def __init__(
        self,
        remaining: Iterator[Candidate],
        order: DefersCandidates,
        start_compiler: Callable[[Candidate], tuple[KernelSource, Compiled]],
        least: int,
        in_one_transaction: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._remaining, self._order, self._start_compiler, self._least = remaining, order, start_compiler, least
        self._in_one_transaction = in_one_transaction
        self._claimed = deque[Candidate]()
        self._queued, self._waiting = deque[QueuedCandidate](), deque[QueuedCandidate]()

    @property
    def compiling(self) -> Iterator[Compiled]:
        """The futures of the binaries of all candidates in the queue."""
        return (one for _, _, one in chain(self._queued, self._waiting))

    def step(self) -> bool:
        """Start the compiler of one more candidate. Return False if the queue is full or no candidate remains."""
        if len(self._queued) >= 2 * self._least:
            return False
        if not self._claimed:
            with self._in_one_transaction():
                self._claimed.extend(islice(self._remaining, self._least))
        if not self._claimed:
            return False
        candidate = self._claimed.popleft()
        self._queued.append((candidate, *self._start_compiler(candidate)))
        return True

    def take(self, idle_work: Callable[[], object] = lambda: None) -> QueuedCandidate | None:
        """Wait for a compiled candidate and return it. Call `idle_work` while waiting. Return None if no candidate
        remains.
        """
        while True:
            while len(self._queued) < self._least and self.step():
                pass
            if not self._queued:
                return self._waiting.popleft() if self._waiting else None
            if (taken := self._taken(self._first_compiled(idle_work))) is not None:
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
        if not self._order.is_behind(taken[0]):
            return taken
        self._waiting.append(taken)
        return None

    def _compiled(self) -> int | None:
        """Return the index of the first compiled candidate in the queue; None if there is none."""
        return next((at for at, one in enumerate(self._queued) if one[2].done()), None)

    def _first_compiled(self, idle_work: Callable[[], object]) -> int:
        """Wait until a candidate is compiled. Return its index in the queue."""
        while (place := self._compiled()) is None:
            idle_work()
            if not self.step():
                wait([one[2] for one in self._queued], timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        return place
