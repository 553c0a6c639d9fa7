"""Decide whether a compiler failed because of the source or because of the machine."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.tuner.compile.command_limits import Ended, Ending
from tsm2_tune.tuner.results.storage.mounts import free_bytes_of

BELIEVED = 2  # number of equal failures after which a compilation has failed
REMOVED = "its working folder was removed"
KILLED = "find out what kills it, then run this again"  # the remedy if a compiler was killed
LEAST_FREE_BYTES = 16 * 2**20  # enough for a compiler's files
LEAST_FREE_FILES = 32
SEARCHED_CHARACTERS = 2**16  # searched part at each end of a compiler's messages

# Signals that a process causes itself. All other signals come from outside.
OF_ITS_OWN = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)
FROM_OUTSIDE = {number: signal.strsignal(number) for number in signal.Signals if number not in OF_ITS_OWN}

# Exit statuses as shells return them: 126, 127, and 128 plus the number of a signal.
STATUSES = {
    126: "a program that it starts cannot be run",
    127: "a program that it starts is missing",
    **{128 + number: f"a program that it starts was killed by {number.name}" for number in FROM_OUTSIDE},
}

# A compiler's driver reports how its subprocesses ended only in messages.
_SIGNAL_NAMES = "|".join(re.escape(name) for name in sorted(set(filter(None, FROM_OUTSIDE.values()))))
_SIGNAL_NUMBERS = "|".join(str(int(number)) for number in FROM_OUTSIDE)
WORDS = (
    rf"(?:fatal|internal compiler) error: (?:{_SIGNAL_NAMES}) signal terminated program",  # g++
    rf"internal compiler error: (?:{_SIGNAL_NAMES}) \(program",  # g++ before 8
    rf"terminated with signal (?:{_SIGNAL_NUMBERS})\b",  # collect2, about the linker
    rf"died due to signal (?:{_SIGNAL_NUMBERS})\b",  # nvcc, about cudafe++, cicc, ptxas and fatbinary
    rf"unable to execute command: (?:{_SIGNAL_NAMES})",  # clang++
    r"cannot execute .*: ",  # g++ that lacks its subprograms
    r"unable to execute command: Executable .* doesn't exist",  # clang++ that lacks its subprograms
    r"posix_spawn failed|v?fork: |pipe: ",
    *map(
        re.escape,
        (
            "No space left on device",
            "Disk quota exceeded",
            "Too many open files",
            "Cannot allocate memory",
            "Resource temporarily unavailable",
            "Input/output error",
            "Stale file handle",
            "Read-only file system",
            "Text file busy",
            "virtual memory exhausted",
            "memory exhausted",
            "out of memory",
            "std::bad_alloc",
        ),
    ),
)
_WORDS = re.compile("|".join(WORDS), re.IGNORECASE)
_KILLED = re.compile("killed|stopped|signal|memory|bad_alloc", re.IGNORECASE)

# System errors that may not occur again if the call is repeated.
PASSING = (
    *(errno.ENOENT, errno.ESTALE, errno.EIO, errno.EBUSY, errno.ETXTBSY, errno.EINTR, errno.ECONNABORTED),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
)


class Interrupted(ToolMissing):
    """A compiler was killed each time: nothing is wrong with it."""


def is_killed(why: str) -> bool:
    """Return whether this result of `interruption` says that a compiler was killed, or that it lacked memory."""
    return _KILLED.search(why) is not None


def interruption(ended: Ended, *, killed_before: int) -> str | None:
    """Return a text that says how the machine made a compiler fail, or None if the compiler rejected the source.

    `killed_before` is the result of `out_of_memory_kills` before the compiler started.
    """
    if ended.how is Ending.NOT_STARTED:
        return f"it cannot be started: {os.strerror(ended.status)}"
    if ended.how is Ending.SIGNALLED and ended.status not in OF_ITS_OWN:
        return f"it was killed by {signal_name(ended.status)}"
    if ended.how is Ending.STOOD_STILL:
        return "it was stopped, and not continued"
    if ended.how is Ending.CALLED_OFF:
        return "the run ended"
    if ended.how is Ending.LOST:
        return "it was killed together with its supervisor"
    if ended.how is Ending.EXITED and ended.status in STATUSES:
        return STATUSES[ended.status]
    for part in (ended.messages[:SEARCHED_CHARACTERS], ended.messages[-SEARCHED_CHARACTERS:]):
        if found := _WORDS.search(part):
            return found[0].strip()
    if out_of_memory_kills() > killed_before:
        return "the machine ran out of memory"
    return None


def signal_name(number: int) -> str:
    return next((one.name for one in signal.Signals if one == number), f"signal {number}")


def out_of_memory_kills() -> int:
    """Return the number of processes that Linux has killed for lack of memory since boot; 0 if unknown."""
    try:
        counters = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", counters, re.MULTILINE)
    return int(found[1]) if found else 0


def refuse_full_disk(folder: Path) -> None:
    """Raise InputError if the disk of `folder` is full. Call this if a compiler fails whose files are all in it."""
    try:
        found, free_bytes = os.statvfs(folder), free_bytes_of(folder)
    except OSError:  # it was removed
        return
    if free_bytes is not None and free_bytes < LEAST_FREE_BYTES:
        left = f"{free_bytes / 2**20:.1f} MiB left on the disk of {folder}: free some space"
    elif found.f_files > 0 and found.f_favail < LEAST_FREE_FILES:  # 0 if files are not counted
        left = f"room for {found.f_favail} files left on the disk of {folder}: remove some"
    else:
        return
    raise InputError(f"a compiler failed with {left}, then run this again")
