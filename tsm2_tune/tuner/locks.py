"""One run at a time on a device: two would disturb each other's times, and take each other's memory."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.target import Target

MOST_DIGITS = 10  # of a process's number
_threads: dict[str, int] = {}  # of this process, that have a lock, by its name


@contextmanager
def device_lock(target: Target, wait: Callable[[str], object] | None = None) -> Iterator[None]:
    """The device is this run's alone, of all runs of this user, while this is open and the process lives.

    Where another run has it: DeviceError, or with `wait`, which is told so once, not before that one has ended.
    Nobody waits for the run which called this one.
    """
    folder = _folder()
    name = re.sub(r"[^\w.-]+", "_", target.identity.uuid or target.spec, flags=re.ASCII)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.geteuid():
            raise PermissionError(0, "it is another user's")
        # Never removed: who waits for a file that is gone would hold another one than who comes next.
        opened = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise OSError(0, f"{name}.lock there is no regular file")
    except OSError as error:
        raise DeviceError(
            f"the lock of device {target.identity.name} cannot be made in {folder} ({error.strerror}):"
            " set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    try:
        _lock(opened, target, None if _threads.get(name) == threading.get_ident() else wait)
        _threads[name] = threading.get_ident()
        try:
            yield
        finally:
            _threads.pop(name, None)  # another thread's, where the file was removed meanwhile
    finally:
        os.close(opened)


def _lock(opened: int, target: Target, wait: Callable[[str], object] | None) -> None:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = os.pread(opened, MOST_DIGITS, 0).decode(errors="replace").strip()
        who = f"process {found}" if found.isdecimal() else "another process"
        sentence = f"device {target.identity.name} is in use by a run of {who}"
        if wait is None:
            raise DeviceError(f"{sentence}: wait for its end with --wait, or choose another device") from None
        wait(f"{sentence}: waiting for its end")
        fcntl.flock(opened, fcntl.LOCK_EX)
    os.ftruncate(opened, 0)
    os.pwrite(opened, f"{os.getpid()}\n".encode(), 0)


def _folder() -> Path:
    """This user's, until the machine is started again: as the XDG Base Directory Specification has it."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    usual = Path(f"/run/user/{os.geteuid()}")
    for runtime in (given, usual):
        if runtime.is_absolute() and os.access(runtime, os.W_OK):
            return runtime / "tsm2-tune"
    return Path(tempfile.gettempdir()) / f"tsm2-tune-{os.geteuid()}"
