"""The time that threads have waited for an unreachable database server.

Trial times and time budgets do not include this time.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict

WAITING = "waiting for the database's server"  # the phase of a run that waits
_seconds: defaultdict[int, float] = defaultdict(float)  # seconds waited so far, by thread
_since: dict[int, float] = {}  # start of the wait, by waiting thread


def begin(since: float) -> None:
    """Record that the current thread has been waiting since `since`, in seconds of the monotonic clock."""
    _since.setdefault(threading.get_ident(), since)


def end() -> None:
    """Record that the current thread waits no longer."""
    thread, now = threading.get_ident(), time.monotonic()
    _seconds[thread] += now - _since.pop(thread, now)


def seconds(thread: int) -> float:
    """Return the number of seconds that the thread has waited for the database so far."""
    now = time.monotonic()
    return _seconds[thread] + now - _since.get(thread, now)


def is_waited_for() -> bool:
    """Return whether any thread is waiting for the database."""
    return bool(_since)
