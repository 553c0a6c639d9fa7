"""Time limits that count only the time in which a process ran.

Ctrl-Z, a debugger, a frozen container or a sleeping laptop suspends processes. Suspended time does not count. Neither
does the time that the tuner waits for a database server that is down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tsm2_tune.tuner.results.storage import outage

TICK_SECONDS = 0.25
MOST_TICKS = 4  # a longer gap between ticks means that the process was suspended, not that the machine is busy
STOPPED_STATES = ("T", "t")  # states in proc(5): stopped by a signal, stopped by a debugger


class RunningClock:
    """Clock that counts the seconds in which this process ran.

    A background thread updates the clock several times a second; a late update means that the process was suspended.
    While the thread that created the clock waits for a database server, the clock does not count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last, self._counted, self._reported = now, now(), 0.0, 0.0
        self._thread = threading.get_ident()
        self._away = outage.seconds(self._thread)  # earlier waits
        self._lock, self._ended = threading.Lock(), threading.Event()

    def start(self) -> None:
        """Start the background thread that updates the clock."""
        threading.Thread(target=self._run, name="clock", daemon=True).start()

    def stop(self) -> None:
        """Stop the background thread."""
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


def answers_in_time(
    connection: Connection, process_id: int, limit_seconds: float, now: Callable[[], float] = time.monotonic
) -> bool:
    """Wait for a message. Return False if the process runs for `limit_seconds` without sending it.

    Time in which the process is stopped does not count.
    """
    remaining = limit_seconds
    while remaining > 0:
        tick, start = min(TICK_SECONDS, remaining), now()
        if connection.poll(tick):
            return True
        if not is_stopped(process_id):
            remaining -= min(now() - start, MOST_TICKS * tick)
    return connection.poll()


def is_stopped(process_id: int) -> bool:
    """Return whether a signal or a debugger has stopped the process; False if /proc has no entry for it."""
    fields = process_fields(process_id)
    return bool(fields) and fields[0] in STOPPED_STATES


def process_fields(process_id: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third (the process's state) on; [] if the file is missing."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
