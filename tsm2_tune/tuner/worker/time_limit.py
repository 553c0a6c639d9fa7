"""Time that counts for a limit: not that in which the machine, this process or the one it waits for was stopped, nor
that in which a database's server was away.

Ctrl-Z, a debugger, a frozen container, a laptop that sleeps: what did not run cannot have been too slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tsm2_tune.tuner.results.storage import outage

TICK_SECONDS = 0.25
MOST_TICKS = 4  # a longer gap between ticks is a stop: no busy machine is so late
STOPPED_STATES = ("T", "t")  # of proc(5): by a signal, and by a debugger


class RunningClock:
    """Seconds in which this process ran: a thread of it ticks, and ticks that come late tell of a stop.

    Those in which the thread that made the clock waited for a server do not count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last, self._counted, self._told = now, now(), 0.0, 0.0
        self._thread = threading.get_ident()
        self._away = outage.seconds(self._thread)  # before
        self._lock, self._ended = threading.Lock(), threading.Event()

    def start(self) -> None:
        """Begin to tick."""
        threading.Thread(target=self._run, name="clock", daemon=True).start()

    def stop(self) -> None:
        """Tick no more."""
        self._ended.set()

    def seconds(self) -> float:
        """Counted until now."""
        with self._lock:
            now = self._now()
            self._counted += min(now - self._last, MOST_TICKS * TICK_SECONDS)
            self._last = now
            self._told = max(self._told, self._counted - (outage.seconds(self._thread) - self._away))
            return self._told

    def _run(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self.seconds()


def answers_in_time(connection: Connection, process_id: int, limit_seconds: float) -> bool:
    """Return whether there is something to receive before the process has run for so long."""
    left = limit_seconds
    while left > 0:
        tick, start = min(TICK_SECONDS, left), time.monotonic()
        if connection.poll(tick):
            return True
        if not is_stopped(process_id):
            left -= min(time.monotonic() - start, MOST_TICKS * tick)
    return connection.poll()


def is_stopped(process_id: int) -> bool:
    """Return whether the process stands still until somebody continues it; False if the system does not tell."""
    fields = process_fields(process_id)
    return bool(fields) and fields[0] in STOPPED_STATES


def process_fields(process_id: int) -> list[str]:
    """The fields of proc(5)'s `stat` from the third on, the state; none where there is no such process or file."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
