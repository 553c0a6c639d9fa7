"""Heartbeat: report from time to time that a run without events is still alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

LONG_SECONDS = 10.0  # silence before the first heartbeat; it doubles before each next one
CHECKS = 20  # checks of the clock until the first heartbeat
FINALS = ("the final round", "the vendor's routines", "full verification")  # phases after a problem's search
PHASES = {  # descriptions of a run's phases
    "start": "starting",
    "start of the worker": "starting the device's process",
    "ceilings": "measuring the device's bandwidth and FLOP/s",
    "search": "choosing the next configuration",
    "the next trial": "trying the next configuration",
    "compilers": "compiling",
    "release": "freeing memory",
    "operands": "allocating matrices",
    "loading": "loading a kernel",
    "a first look": "timing the first launches",
    "verification on probes": "verifying small shapes",
    "verification": "verifying",
    "timing": "timing",
    "the vendor's libraries": "loading cuBLAS",
    "the vendor's routines": "verifying and timing cuBLAS's algorithms",
    "the final round": "timing the fastest kernels again",
    "full verification": "verifying the winner",
}


def phase_text(phase: str, seconds: float | None = None) -> str:
    """Return what a run does in this phase, with the seconds that the phase has lasted unless they are None."""
    name, _, part = phase.partition(": ")
    doing = f"{PHASES[name]}{part and f': {part}'}" if name in PHASES else phase
    return doing if seconds is None else f"{doing} ({seconds:.0f} s)"


class Heartbeat:
    """Thread that calls `tell` if a run has no event for `long_seconds`.

    The argument of `tell` is the number of seconds since the last event. If no further event follows, `tell` is
    called again 2, 4, 8, ... times `long_seconds` after the last event. Use the class as a context manager: entering
    counts as an event, and leaving ends the thread.
    """

    def __init__(self, tell: Callable[[float], None], long_seconds: float) -> None:
        self._tell, self._long_seconds = tell, long_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)
        self.event()

    def __enter__(self) -> Heartbeat:
        self.event()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def event(self) -> None:
        """Record an event of the run, which restarts the wait."""
        self._last = (time.monotonic(), self._long_seconds)  # last event, and seconds to the next heartbeat

    def _watch(self) -> None:
        while not self._over.wait(self._long_seconds / CHECKS):
            last = since, due_seconds = self._last
            seconds = time.monotonic() - since
            if seconds >= due_seconds:
                try:
                    self._tell(seconds)
                except OSError:  # a closed pipe or a full disk: the run reports the error when it prints
                    return
                if self._last is last:  # no event since
                    self._last = (since, 2 * due_seconds)
