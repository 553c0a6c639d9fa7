"""Says that a run goes on, where nothing is heard of it for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

LONG_SECONDS = 10.0  # without an event, after which a run's phase is told; again after twice as long, and so on
LOOKS = 20  # in the time after which the first sign of life is due


class Liveness:
    """Calls `tell` in a thread where no event comes for so many seconds, with the seconds since the last one.

    It tells again where none comes for twice as long, and so on. Use as a context manager: entering counts as an
    event, and after leaving nothing is told.
    """

    def __init__(self, tell: Callable[[float], None], long_seconds: float) -> None:
        self._tell, self._long_seconds = tell, long_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)
        self.event()

    def __enter__(self) -> Liveness:
        self.event()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def event(self) -> None:
        """Something was heard of the run."""
        self._last = (time.monotonic(), self._long_seconds)  # since when, and after how long it is told next

    def _watch(self) -> None:
        while not self._over.wait(self._long_seconds / LOOKS):
            last = since, due_seconds = self._last
            seconds = time.monotonic() - since
            if seconds >= due_seconds:
                try:
                    self._tell(seconds)
                except OSError:  # nobody reads, or a disk is full: the run itself finds that out where it prints
                    return
                if self._last is last:  # no event came meanwhile
                    self._last = (since, 2 * due_seconds)
