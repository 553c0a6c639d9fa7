"""What the terminal shows of a tuning, from its first event to its last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console

from tsm2_tune.crossed import Pairs
from tsm2_tune.display import print_line
from tsm2_tune.live import Display
from tsm2_tune.tuner.events import Event, Noted, PairsStarted, RunStarted
from tsm2_tune.tuner.target import Target
from tsm2_tune.tuner.tune import Options
from tsm2_tune.usage import tell


class Progress:
    """Shows a run's events: those of the search, and then those of pairs. Use as a context manager.

    `said` are the lines that a run begins with.
    """

    def __init__(self, console: Console, said: Callable[[RunStarted], Iterable[str]]) -> None:
        self._console, self._said = console, said
        self._stack = ExitStack()
        self._started: RunStarted | None = None
        self._shown: Display | Pairs | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        """Bring the screen up to date with the event."""
        if isinstance(event, Noted):
            tell(event.text)
        elif isinstance(event, RunStarted):
            for line in self._said(event):
                print_line(self._console, line)
            self._started = event
            shown = Display(self._console, event.options, len(event.problems), event.phases)
            self._shown = self._stack.enter_context(shown)
        elif isinstance(event, PairsStarted):
            self._stack.close()
            assert self._started is not None
            self._shown = self._stack.enter_context(Pairs(self._console, self._started.phases))
        elif self._shown is not None:
            self._shown.show(event)


def of_state(target: Target, options: Options, *, is_asked: bool) -> str:
    """In which state of the L2 trials are timed; of the host only where one `is_asked` for that it does not have."""
    cache = target.cache(options.cache)
    if not target.is_host:
        return f", timed with the L2 {cache}"
    if is_asked and options.cache is not cache:
        return f"; --cache {options.cache} has no effect here: it is of a GPU's L2, which the host does not emulate"
    return ""


def tell_interrupted(count: int) -> None:
    """Say what the machine kept from being judged, if anything: a winner may be missing among it."""
    if count:
        tell(
            f"{count} interrupted by the machine, not by their kernels, and not judged: the same command tries them"
            " again"
        )
