"""A small program that runs the tuner's commands one after another, and leaves no processes or files behind.

`command_limits.py` starts this program and sends it requests as lines of JSON: {"make": folder}, {"run": command,
...}, {"remove": true}. The program is a subreaper: orphaned descendants become its children, so it can kill all
processes of a command. When standard input closes, the tuner has ended: then the program kills all processes and
removes the working folder. It imports nothing from the tuner, so it starts fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
LOCK = "lock"  # name of the file in a working folder that its owner locks while it runs
MOST_BYTES = 16 * 2**20  # limit of a command's output
LOOKS = 20  # number of checks within a command's time limit whether the command is stopped
MOST_SECONDS_BETWEEN = 2.0  # longest time between two checks of the command and of the tuner


class Supervisor:
    """Server that runs one command at a time, and owns one working folder at a time."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._folder: str | None = None
        self._lock = -1
        self._unread = b""
        self._ended, wakeup = os.pipe()
        for end in (self._ended, wakeup):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer requests until the tuner ends."""
        while (request := self._request()) is not None:
            try:
                answer, messages = self._answer(request)
            except OSError as error:
                answer, messages = {"refused": error.errno}, b""
            line = json.dumps({**answer, "bytes": len(messages)}).encode()
            with open(1, "wb", closefd=False) as stream:
                stream.write(line + b"\n" + messages)

    def close(self) -> None:
        """Kill the remaining processes and remove the working folder."""
        kill_descendants()
        self._remove()

    def _request(self) -> dict[str, Any] | None:
        """Return the next request; None if the tuner has ended.

        Skip empty lines. The tuner sends an empty line to cancel the running command.
        """
        self._unread = self._unread.lstrip(b"\n")
        while b"\n" not in self._unread:
            if os.getppid() != self._parent:
                return None
            if select.select([0], [], [], MOST_SECONDS_BETWEEN)[0]:
                read = os.read(0, 2**16)
                if not read:
                    return None
                self._unread = (self._unread + read).lstrip(b"\n")
        line, _, self._unread = self._unread.partition(b"\n")
        request: dict[str, Any] = json.loads(line)
        return request

    def _answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        if "make" in request:
            self._make(request["make"])
        elif "run" in request:
            return self._run(request)
        else:
            self._remove()
        return {"done": True}, b""

    def _make(self, folder: str) -> None:
        """Create and lock a working folder. Raise FileNotFoundError if another process removed it before the lock."""
        os.mkdir(folder, 0o700)
        self._folder = folder
        path = os.path.join(folder, LOCK)
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            with contextlib.suppress(OSError):  # without locks no process removes another process's folder
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not os.path.samestat(os.fstat(self._lock), os.stat(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        except OSError:
            self._remove()
            raise

    def _remove(self) -> None:
        if self._folder is not None:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._folder, self._lock = None, -1

    def _run(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Run the request's command. Return a dictionary that says how it ended, and its output."""
        output, ours = os.pipe()
        try:
            try:
                child, refused = start(request, ours)
            finally:
                os.close(ours)
            if refused:
                return {"how": "not-started", "status": refused, "seconds": 0.0}, b""
            answer, messages = self._watched(child, output, request["limit"], request["still"])
        finally:
            os.close(output)
            kill_descendants()
        return answer, messages

    def _watched(
        self, child: int, output: int, limit_seconds: float, still_seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Wait until the command ends or exceeds a limit. Return a dictionary that says how it ended, and its output.

        `limit_seconds` limits the time in which the command runs, `still_seconds` the time in which it is stopped.
        """
        between = min(max(limit_seconds / LOOKS, 0.001), MOST_SECONDS_BETWEEN)
        messages, counted, still = bytearray(), 0.0, 0.0
        looked, sources = time.monotonic(), [0, self._ended, output]
        how, status = "", 0
        while not how:
            readable = select.select(sources, [], [], between - (time.monotonic() - looked) % between)[0]
            if self._ended in readable:
                os.read(self._ended, 2**16)
            if output in readable and not take(output, messages):
                sources.remove(output)
            ended, wait_status = os.waitpid(child, os.WNOHANG)
            passed = time.monotonic() - looked
            if ended:
                status = os.waitstatus_to_exitcode(wait_status)
                how, status = ("exited", status) if status >= 0 else ("signalled", -status)
            elif 0 in readable or os.getppid() != self._parent:
                how = "called-off"  # the tuner cancelled the command, or has ended
            elif len(messages) > MOST_BYTES:
                how = "printed-too-much"
            elif passed >= between:
                looked += passed
                if stands_still():
                    still += min(passed, 2 * between)
                else:
                    counted += min(passed, 2 * between)  # a longer time means that this program was stopped
                passed = 0.0
                if counted >= limit_seconds:
                    how = "timed-out"
                elif still >= still_seconds:
                    how = "stood-still"
        while output in sources and len(messages) <= MOST_BYTES and select.select([output], [], [], 0)[0]:
            if not take(output, messages):
                break
        seconds = counted + min(passed, 2 * between)
        return {"how": how, "status": status, "seconds": seconds}, bytes(messages[:MOST_BYTES])


def take(output: int, messages: bytearray) -> bool:
    """Read from the pipe `output` and append the bytes to `messages`. Return False at the end of the pipe."""
    read = os.read(output, 2**16)
    messages += read
    return bool(read)


def start(request: dict[str, Any], output: int) -> tuple[int, int]:
    """Start the request's command with the pipe `output`. Return its process id, and an errno: 0 if it runs."""

    def limit() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        child = subprocess.Popen(
            request["run"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output if request["errors"] else subprocess.DEVNULL,
            cwd=request["cwd"],
            env=request["environment"],
            preexec_fn=limit,
        )
    except OSError as error:
        return 0, error.errno or errno.EIO
    child.returncode = 0  # `_watched` waits for the process itself
    return child.pid, 0


def descendants() -> dict[int, str]:
    """Return the state letters of all descendants of this process: process id -> state. Return {} without /proc."""
    processes: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
                processes[int(name)] = int(parent), state.decode()
    found: dict[int, str] = {}
    parents = {os.getpid()}
    while parents:
        children = {pid: state for pid, (parent, state) in processes.items() if parent in parents}
        found.update(children)
        parents = set(children)
    return found


def stands_still() -> bool:
    """Return whether a signal or a debugger has stopped any process of the command."""
    return any(state in "Tt" for state in descendants().values())


def kill_descendants() -> None:
    """Kill all descendants of this process, and wait until each has ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in descendants():
            with contextlib.suppress(OSError):  # it ended just now
                os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os.umask(0o077)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor()
    try:
        supervisor.serve()
    except (OSError, KeyboardInterrupt):
        pass  # the tuner has ended, or the user pressed Ctrl-C
    finally:
        supervisor.close()
        os._exit(0)
