"""Run a program with the stand-in: a shared library that LD_PRELOAD loads before cuBLAS."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile.environment import program_path

OF_A_SIGNAL = 128  # a shell's exit status after a signal is this plus its number
OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)  # a terminal sends these to all foreground processes
PASSED_ON = (
    *OF_TERMINALS,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGALRM,
)
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these from its start
SHELL = "/bin/sh"
LOADED = "loaded"  # name of the file that the stand-in creates in the journal's folder when it is loaded
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Standing:
    """The settings with which the stand-in runs in a program."""

    standin: Path  # the stand-in's shared object
    pack: Path | None = None  # the library with the kernels; None: cuBLAS computes all products
    has_times: bool = False  # whether the stand-in measures GPU times
    compared: int = 0  # number of products of each shape whose results are compared with those of cuBLAS

    def environment(self, journal: Path | None) -> dict[str, str]:
        """Return the program's environment. `journal` is the folder for the journal; None: nothing is recorded."""
        settings: Mapping[str, str | None] = {
            "LD_PRELOAD": ":".join(filter(None, (str(self.standin), os.environ.get("LD_PRELOAD")))),
            "TSM2_LIBRARY": None if self.pack is None else str(self.pack.absolute()),
            "TSM2_JOURNAL": None if journal is None else str(journal),
            "TSM2_TIMES": "1" if self.has_times else None,
            "TSM2_COMPARED": str(self.compared) if self.compared else None,
        }
        plain = {name: value for name, value in os.environ.items() if name not in settings}
        return plain | {name: value for name, value in settings.items() if value is not None}


def become(program: Sequence[str], standing: Standing | None) -> NoReturn:
    """Replace this process by the program. If `standing` is None, it runs without the stand-in.

    Raise InputError if the program cannot be executed.
    """
    environment = dict(os.environ) if standing is None else standing.environment(None)
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)

    def start(path: str, words: Sequence[str]) -> NoReturn:
        os.execve(path, list(words), environment)

    _started(program, start)


@contextmanager
def journal_folder() -> Iterator[Path]:
    """Yield a temporary folder for the journal, deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="tsm2-tune-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def ran(program: Sequence[str], standing: Standing, journal: Path) -> int:
    """Run the program, wait until it ends, and return its exit status, after a signal 128 plus its number.

    A signal sent to this process is forwarded to the program, except SIGINT, SIGQUIT and SIGWINCH in a terminal's
    foreground: the terminal sends them to the program, too.
    """
    environment, early = standing.environment(journal), list[int]()
    started: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        if started is None:
            early.append(number)
        elif number not in OF_TERMINALS or not _is_in_foreground():
            started.send_signal(number)

    def start(path: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, executable=path, env=environment, close_fds=False)

    before = _handled(pass_on, is_ignored=False)
    # An ignored SIGCHLD would lose the program's exit status.
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        with _signal_pipe() as signals:
            started = _started(program, start)
            # Only now: the program inherits that signals are ignored.
            before |= _handled(pass_on, is_ignored=True)
            for number in early:
                started.send_signal(number)
            # waitpid would delay a signal that comes just before it, until the next signal.
            while (status := started.poll()) is None:
                os.read(signals, 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if started is None:
            for number in early:
                signal.raise_signal(number)
    return status if status >= 0 else OF_A_SIGNAL - status


@contextmanager
def _signal_pipe() -> Iterator[int]:
    """Yield the reading end of a pipe, to which one byte is written for each signal that has a handler."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def _handled(handler: Callable[[int, object], None], *, is_ignored: bool) -> dict[int, Any]:
    """Set the handler of those signals in PASSED_ON whose being ignored now equals `is_ignored`.

    Return the previous handlers.
    """
    which = [number for number in PASSED_ON if (signal.getsignal(number) is signal.SIG_IGN) == is_ignored]
    return {number: signal.signal(number, handler) for number in which}


def _is_in_foreground() -> bool:
    """Return whether this process is in the foreground process group of a terminal."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _started(program: Sequence[str], start: Callable[[str, Sequence[str]], T]) -> T:
    """Return what `start` returns for the program's path and arguments. Raise InputError if that fails."""
    path = path_of_program(program[0])
    try:
        return start(path, program)
    except OSError as error:
        raise InputError(f"cannot run {program[0]}: {error.strerror}") from None


def path_of_program(name: str) -> str:
    """Return the path of the program's executable file. Raise InputError if there is none."""
    if name.startswith("-"):
        raise InputError(f"no option {name}: see --help; the program and its arguments come after --")
    path = program_path(name)
    if path is not None:
        return path
    is_file = os.path.isfile(name)
    if not os.path.dirname(name):
        why = "no such program is in PATH" + (f"; for the file here say ./{name}" if is_file else "")
    elif is_file:
        why = "it is not executable: name its interpreter before it, such as python or sh, or make it executable"
    else:
        why = "it is a folder" if os.path.isdir(name) else "no such file"
    raise InputError(f"cannot run {name or 'a program of no name'}: {why}")
