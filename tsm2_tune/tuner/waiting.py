"""Which candidate is next: those of a family that is far behind wait, whatever their rank, until no other is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice

from tsm2_tune.generator.candidate import Candidate
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.past import Contender
from tsm2_tune.tuner.trial import Binary, CompileFailure

FAR_BEHIND = 4.0  # times as long as the fastest of all: the fastest of a family whose others wait
LOOK_AHEAD = 10_000  # candidates that are passed over for one that need not wait

Compiled = Future[Binary | CompileFailure]
Begun = tuple[Candidate, KernelSource, Compiled]


class Line(Iterator[Candidate]):
    """The candidates of a search in their order, but for those that wait.

    `contenders` are earlier trials, which say as much of a family as those that `tell` hears of.
    """

    def __init__(self, candidates: Iterable[Candidate], contenders: Iterable[Contender] = ()) -> None:
        self._coming, self._waiting = iter(candidates), deque[Candidate]()
        self._least_us: dict[str, float] = {}
        for one in contenders:
            self.tell(one.config.family, one.median_us)

    def __next__(self) -> Candidate:
        for candidate in islice(self._coming, LOOK_AHEAD):
            if not self.is_behind(candidate):
                return candidate
            self._waiting.append(candidate)
        if not self._waiting:
            raise StopIteration
        return self._waiting.popleft()

    def tell(self, family: str, median_us: float) -> None:
        """A configuration of the family was right, and took so long."""
        self._least_us[family] = min(self._least_us.get(family, median_us), median_us)

    def is_behind(self, candidate: Candidate) -> bool:
        """Whether its family has been tried, and takes many times as long as the fastest one."""
        own = self._least_us.get(candidate.config.family)
        return own is not None and own > FAR_BEHIND * min(self._least_us.values())


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
