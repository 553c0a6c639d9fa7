"""The device lock, which reserves a device for one run, since two runs would disturb each other's times.

The lock is a listening Unix socket with an abstract name. It has no file, so all users of a machine share it, and the
operating system removes it when its process ends. A waiting run can read the owner's process id from the socket.
Containers share the lock if they share the machine's network namespace.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.device.target import Target

MACHINE_VARIABLE = "TSM2_TUNE_MACHINE"
log = logging.getLogger(__name__)
PAUSE_SECONDS = 0.05  # between attempts to get the lock
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_threads: dict[str, int] = {}  # name of a lock -> the thread of this process that holds it


@contextmanager
def device_lock(target: Target, wait: Callable[[str], object] | None = None) -> Iterator[None]:
    """Hold the device's lock in the body of the with statement.

    If another run on this machine holds the lock, call `wait` once with a message, then wait until the lock is free.
    Raise DeviceError if `wait` is None, or if this thread already holds the lock.
    """
    name = _name(target)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            _bind(lock, name, target, None if _threads.get(name) == threading.get_ident() else wait)
        except OSError as error:
            raise DeviceError(
                f"the lock of device {target.identity.name} cannot be created ({error.strerror}):"
                " allow this process to bind Unix sockets"
            ) from None
        lock.listen()
        _threads[name] = threading.get_ident()
        log.debug("device %s is locked for this run", target.identity.name)
        try:
            yield
        finally:
            del _threads[name]
            log.debug("device %s is released", target.identity.name)


def _name(target: Target) -> str:
    """Return the abstract name of the lock's socket: a hash of the device's UUID and of the environment variable."""
    of = f"{os.environ.get(MACHINE_VARIABLE, '')}\n{target.identity.uuid or target.spec}"
    return f"\0tsm2-tune-{hashlib.sha256(os.fsencode(of)).hexdigest()}"


def _bind(lock: socket.socket, name: str, target: Target, wait: Callable[[str], object] | None) -> None:
    """Bind the socket `lock` to `name`. If another process has the name, call `wait` once and wait for that process.

    Raise a DeviceError with the other process's id if `wait` is None.
    """
    has_waited = False
    while not _is_bound(lock, name):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
            sentence = f"device {target.identity.name} is in use by a run of {_process(holder, name)}"
            if wait is None:
                raise DeviceError(f"{sentence}: wait for its end with --wait, or choose another device")
            if not has_waited:
                wait(f"{sentence}: waiting for its end")
                has_waited = True
            with suppress(OSError):
                holder.recv(1)  # returns when the holder of the lock ends and its connection closes
        time.sleep(PAUSE_SECONDS)


def _is_bound(lock: socket.socket, name: str) -> bool:
    """Try to bind the socket `lock` to `name`. Return False if another socket has the name."""
    try:
        lock.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _process(holder: socket.socket, name: str) -> str:
    """Connect the socket `holder` to the process that holds the lock `name`, and return a text with its id."""
    try:
        holder.setblocking(False)  # connect would block if many processes wait for the lock
        holder.connect(name)
        holder.setblocking(True)
        number, _, _ = _CREDENTIALS.unpack(
            holder.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
    except OSError:  # the process has just ended, or does not listen yet
        number = 0
    return f"process {number}" if number else "another process"  # 0 for a process in another container
