"""Owners of leases. An owner is a string that identifies a run, and shows other runs whether it is alive."""

from __future__ import annotations

import os
import re
import uuid
from functools import cache
from pathlib import Path

from tsm2_tune.tuner.worker.time_limit import process_fields

NOBODY = ""  # the owner of a released lease
ENDED_STATES = ("Z", "X")  # in proc(5): a zombie, whose parent has not asked for its exit status; dead
STARTED = 19  # index of a process's start time in `process_fields`
_OWNER = re.compile(r"(?P<system>[-\w]+:\d+) (?P<process>\d{1,9}) (?P<started>\d{1,20}) [0-9a-f]{32}", re.ASCII)


def owner_of(process_id: int) -> str:
    """Return a new owner string for a run in this process: machine, process id, start time and a random number."""
    return f"{system()} {process_id} {started(process_id)} {uuid.uuid4().hex}"


def may_live(owner: str) -> bool:
    """Return whether the owner's process exists. A process on another machine is assumed to exist."""
    found = _OWNER.fullmatch(owner)
    if found is None:
        return False
    return found["system"] != system() or started(int(found["process"])) == int(found["started"])


def described(owner: str) -> str:
    """Return a description of a valid owner for messages, for example "process 4711"."""
    found = _OWNER.fullmatch(owner)
    assert found is not None
    return f"process {found['process']}" if found["system"] == system() else "a run on another machine"


def started(process_id: int) -> int:
    """Return the process's start time in clock ticks since boot; 0 if it has ended, or if there is no /proc."""
    fields = process_fields(process_id)
    return int(fields[STARTED]) if len(fields) > STARTED and fields[0] not in ENDED_STATES else 0


@cache
def system() -> str:
    """Return an id of this machine's current boot and PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux: process ids of others cannot be checked
        return f"{uuid.uuid4()}:0"
