"""Owners of claims. An owner is a string that identifies a run, and from which other runs detect whether the run is
alive.
"""

from __future__ import annotations

import os
import re
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from tsm2_tune.tuner.worker.time_limit import process_fields

STALE_SECONDS = 60.0  # without a heartbeat; a swapping machine is late, but not by that much
STARTED = 19  # index of a process's start time in `process_fields`
_OWNER = re.compile(r"(?P<system>[-\w]+:\d+) (?P<process>\d{1,9}) (?P<started>\d{1,20}) [0-9a-f]{32}", re.ASCII)


def owner_of(process_id: int) -> str:
    """Return a new owner string for a run in this process."""
    return f"{process_of(process_id)} {uuid.uuid4().hex}"


def process_of(process_id: int) -> str:
    """Return the common prefix of all owner strings of a process: machine, process id and start time."""
    return f"{system()} {process_id} {_started(process_id)}"


def is_alive(owner: Any, beat_at: Any, now: float) -> bool:
    """Return whether the owner is alive: it has sent a heartbeat within a minute, and on this machine its process
    exists.
    """
    if not isinstance(owner, str) or not isinstance(beat_at, float) or abs(now - beat_at) > STALE_SECONDS:
        return False
    found = _OWNER.fullmatch(owner)
    if found is None:
        return False
    return found["system"] != system() or _started(int(found["process"])) == int(found["started"])


def _started(process_id: int) -> int:
    """Return the process's start time in clock ticks since boot; 0 if there is no such process or no /proc."""
    fields = process_fields(process_id)
    return int(fields[STARTED]) if len(fields) > STARTED else 0


@cache
def system() -> str:
    """Return an id of this machine's current boot and PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux: process ids of others cannot be checked
        return f"{uuid.uuid4()}:0"
