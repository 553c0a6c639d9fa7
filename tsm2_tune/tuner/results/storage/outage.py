"""Time that threads waited for an unreachable server. It counts neither for a trial nor for a run's budget."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

WAITING = "waiting for the database's server"  # the phase of a run that waits
_seconds: defaultdict[int, float] = defaultdict(float)  # seconds waited so far, by thread
_since: dict[int, float] = {}  # start of the wait, by waiting thread


def begin(since: float) -> None:
    """Record that this thread has been waiting since `since`, on the monotonic clock."""
    _since.setdefault(threading.get_ident(), since)


def end() -> None:
    """Record that this thread no longer waits."""
    thread, now = threading.get_ident(), time.monotonic()
    _seconds[thread] += now - _since.pop(thread, now)


def seconds(thread: int) -> float:
    """Return how long this thread has waited for the database so far."""
    now = time.monotonic()
    return _seconds[thread] + now - _since.get(thread, now)


def is_waited_for() -> bool:
    """Return whether any thread waits."""
    return bool(_since)
