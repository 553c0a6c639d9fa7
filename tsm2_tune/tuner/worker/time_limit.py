"""Time limits that exclude suspended time, and waits for a database server that is down.

Ctrl-Z, a debugger, a frozen container or a sleeping laptop suspends processes. Suspended time must not count, since a
process that did not run was not slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tsm2_tune.tuner.results.storage import outage

TICK_SECONDS = 0.25
MOST_TICKS = 4  # a longer gap between ticks means a suspension: a busy machine is not so late
STOPPED_STATES = ("T", "t")  # states in proc(5): stopped by a signal, stopped by a debugger


class RunningClock:
    """Counts the seconds in which this process ran. A thread ticks; a late tick shows a suspension.

    Seconds in which the thread that created the clock waited for a server do not count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last, self._counted, self._reported = now, now(), 0.0, 0.0
        self._thread = threading.get_ident()
        self._away = outage.seconds(self._thread)  # earlier waits
        self._lock, self._ended = threading.Lock(), threading.Event()

    def start(self) -> None:
        """Begin to tick."""
        threading.Thread(target=self._run, name="clock", daemon=True).start()

    def stop(self) -> None:
        """End the ticking."""
        self._ended.set()

    def seconds(self) -> float:
        """Return the seconds counted so far."""
        with self._lock:
            now = self._now()
            self._counted += min(now - self._last, MOST_TICKS * TICK_SECONDS)
            self._last = now
            self._reported = max(self._reported, self._counted - (outage.seconds(self._thread) - self._away))
            return self._reported

    def _run(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self.seconds()


def answers_in_time(connection: Connection, process_id: int, limit_seconds: float) -> bool:
    """Return whether a message arrives before the process has run for `limit_seconds`."""
    remaining = limit_seconds
    while remaining > 0:
        tick, start = min(TICK_SECONDS, remaining), time.monotonic()
        if connection.poll(tick):
            return True
        if not is_stopped(process_id):
            remaining -= min(time.monotonic() - start, MOST_TICKS * tick)
    return connection.poll()


def is_stopped(process_id: int) -> bool:
    """Return whether the process is stopped by a signal or a debugger; False if /proc does not say."""
    fields = process_fields(process_id)
    return bool(fields) and fields[0] in STOPPED_STATES


def process_fields(process_id: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on, the state; [] without such a process or file."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
