"""Run commands with limits on time and output.

When a command ends, or when this process ends, all processes that the command started are killed.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tsm2_tune.tuner.compile.environment import compiler_environment
from tsm2_tune.tuner.worker.child_process import python_executable

SUPERVISOR = Path(__file__).with_name("supervisor.py")
ANSWER_SECONDS = 60.0  # beyond the command's time limit, for a supervisor to answer on a busy machine
END_SECONDS = 10.0  # for a supervisor to kill its command and to end
Answer = dict[str, Any]
MOST_FOLDERS = 20  # attempts to create a working folder, if other processes remove it before it is locked
STILL_SECONDS = 600.0  # longest time for which a command may be stopped by a signal
TICK_SECONDS = 1.0  # a gap of more than two ticks means that this process was stopped; that time does not count


class Ending(StrEnum):
    """How a command ended."""

    EXITED = "exited"  # status: the exit status
    SIGNALLED = "signalled"  # status: the signal's number
    NOT_STARTED = "not-started"  # status: the error's number
    TIMED_OUT = "timed-out"
    PRINTED_TOO_MUCH = "printed-too-much"
    STOOD_STILL = "stood-still"  # it was stopped by a signal, and not continued
    CALLED_OFF = "called-off"  # by `kill_running`
    LOST = "lost"  # its supervisor was killed, and the command with it


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, with its output."""

    how: Ending
    status: int = 0
    messages: str = ""
    seconds: float = 0.0  # run time, without suspended time

    @property
    def is_well(self) -> bool:
        return self.how is Ending.EXITED and self.status == 0


class _Lost(Exception):
    """The supervisor process has ended or does not answer."""


class _Supervisor:
    """The tuner's handle of a `supervisor.py` process, which runs one command at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [python_executable(), "-I", "-S", str(SUPERVISOR)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        self._closing = threading.Lock()
        self._generation = _state.generation
        self.is_broken = False  # whether its next answer may belong to an earlier request

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    @property
    def is_called_off(self) -> bool:
        return self._generation != _state.generation

    def ask(self, request: dict[str, Any], *, patience_seconds: float = ANSWER_SECONDS) -> tuple[Answer, bytes]:
        """Send a request. Return the answer and the command's output."""
        try:
            answer, content = self._exchanged(json.dumps(request).encode() + b"\n", patience_seconds)
        except (OSError, ValueError) as error:
            self.is_broken = True
            raise _Lost from error
        if "refused" in answer:
            raise OSError(answer["refused"], os.strerror(answer["refused"]))
        return answer, content

    def _exchanged(self, unsent: bytes, patience_seconds: float) -> tuple[Answer, bytes]:
        received, waited, since = bytearray(), 0.0, time.monotonic()
        answer: Answer | None = None
        with selectors.DefaultSelector() as ready:
            ready.register(self._from, selectors.EVENT_READ)
            ready.register(self._to, selectors.EVENT_WRITE)
            while waited < patience_seconds:
                events = [key.fileobj for key, _ in ready.select(TICK_SECONDS)]
                if self._to in events:
                    unsent = unsent[self._to.write(unsent) or 0 :]
                    if not unsent:
                        ready.unregister(self._to)
                        if self.is_called_off:  # `call_off` came before the request was sent
                            self.call_off()
                if self._from in events:
                    read = self._from.read(2**20)
                    if not read:
                        raise ConnectionError("the supervisor ended")
                    received += read
                    if answer is None and (end := received.find(b"\n")) >= 0:
                        answer = json.loads(received[:end])
                        del received[: end + 1]
                    if answer is not None and len(received) >= answer["bytes"]:
                        return answer, bytes(received)
                now = time.monotonic()
                waited, since = waited + min(now - since, 2 * TICK_SECONDS), now
        raise ConnectionError("the supervisor does not answer")

    def call_off(self) -> None:
        """Make the supervisor kill its command now."""
        with self._closing, suppress(OSError, ValueError):  # the supervisor has just ended
            os.killpg(self._process.pid, signal.SIGCONT)  # a stopped supervisor would not read it
            self._to.write(b"\n")

    def end(self) -> None:
        """Make the supervisor kill its command, remove its working folder and end. Wait for its end."""
        with self._closing:
            self._to.close()
            self._from.close()
        if self._process.returncode is not None:
            return
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGCONT)
        deadline, pause = time.monotonic() + END_SECONDS, 0.0005
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        with suppress(OSError):  # before `wait`, which frees the number of the process group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # other code has waited for the process
            return True


class _State:
    """The idle and busy supervisors of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.generation = 0  # number of calls of `kill_running`
        self.idle: list[_Supervisor] = []
        self.busy: set[_Supervisor] = set()
        self.of_parent: list[object] = []  # keeps the parent process's supervisors: a forked child must not end them


_state = _State()


def _forget_those_of_the_parent() -> None:
    global _state
    of_parent, _state = _state, _State()
    _state.of_parent = [of_parent]


os.register_at_fork(after_in_child=_forget_those_of_the_parent)


@contextmanager
def _taken() -> Iterator[_Supervisor]:
    """Yield a supervisor for one use: an idle supervisor, or a new process."""
    with _state.lock:
        found = _state.idle.pop() if _state.idle else None
    if found is not None and not found.lives:
        found.end()
        found = None
    supervisor = found or _Supervisor()
    with _state.lock:
        _state.busy.add(supervisor)
    try:
        yield supervisor
    except BaseException:
        supervisor.is_broken = True
        raise
    finally:
        with _state.lock:
            _state.busy.discard(supervisor)
            is_kept = not (supervisor.is_broken or supervisor.is_called_off)
            if is_kept:
                _state.idle.append(supervisor)
        if not is_kept:
            supervisor.end()


def kill_running() -> None:
    """Kill all running commands with their child processes. Compilations in progress fail at once."""
    with _state.lock:
        _state.generation += 1
        idle, _state.idle = _state.idle, []
        busy = list(_state.busy)
    for supervisor in busy:
        supervisor.call_off()
    for supervisor in idle:
        supervisor.end()


atexit.register(kill_running)


def kills() -> int:
    """Return the number of calls of `kill_running` so far."""
    return _state.generation


class Workplace:
    """A temporary working folder, and the supervisor that runs commands in it."""

    def __init__(self, supervisor: _Supervisor, folder: Path) -> None:
        self._supervisor, self.folder = supervisor, folder

    def run(
        self,
        command: list[str],
        *,
        limit_seconds: float,
        environment: Mapping[str, str] | None = None,
        errors: bool = True,
    ) -> Ended:
        """Run the command. Return how it ended, and its output, which with `errors` includes standard error.

        If `environment` is None, the command runs in the environment for compilers.
        """
        try:
            folder = os.getcwd()
        except OSError:  # the folder was removed
            folder = None
        request = {
            "run": command,
            "limit": limit_seconds,
            "still": STILL_SECONDS,
            "environment": dict(compiler_environment() if environment is None else environment),
            "cwd": folder,
            "errors": errors,
        }
        patience_seconds = limit_seconds + STILL_SECONDS + ANSWER_SECONDS
        try:
            answer, printed = self._supervisor.ask(request, patience_seconds=patience_seconds)
        except _Lost:
            return Ended(Ending.CALLED_OFF if self._supervisor.is_called_off else Ending.LOST)
        except OSError as error:
            return Ended(Ending.NOT_STARTED, error.errno or 0)
        messages = printed.decode(errors="replace")
        return Ended(Ending(answer["how"]), answer["status"], messages, answer["seconds"])


def _made(supervisor: _Supervisor, parent: Path) -> Path:
    """Create and lock a working folder in `parent`. Retry if another process removes it before it is locked."""
    for is_last in (*[False] * (MOST_FOLDERS - 1), True):
        folder = parent / secrets.token_hex(8)
        try:
            supervisor.ask({"make": str(folder)})
            break
        except FileNotFoundError:
            if is_last:
                raise
    return folder


@contextmanager
def workplace(parent: Path) -> Iterator[Workplace]:
    """Yield a new working folder in `parent`, and remove it afterwards. Raise OSError if it cannot be created."""
    folder = parent
    try:
        with _taken() as supervisor:
            folder = _made(supervisor, parent)
            yield Workplace(supervisor, folder)
            if not supervisor.is_broken:
                supervisor.ask({"remove": True})
    except _Lost:
        raise ConnectionAbortedError(errno.ECONNABORTED, "the supervisor of the compilers was killed") from None
    finally:
        if folder != parent and os.path.lexists(folder):  # left by a killed supervisor
            shutil.rmtree(folder, ignore_errors=True)


def run(
    command: list[str], *, limit_seconds: float, environment: Mapping[str, str] | None = None, errors: bool = True
) -> Ended:
    """Run a command without a working folder. Raise OSError if its supervisor process cannot be started."""
    with _taken() as supervisor:
        place = Workplace(supervisor, Path())
        return place.run(command, limit_seconds=limit_seconds, environment=environment, errors=errors)
