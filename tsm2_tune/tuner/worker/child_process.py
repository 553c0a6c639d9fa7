"""Start isolated Python child processes, which end when the parent process ends.

A child ignores the modules in the working folder, and does not run the parent's script. Starting a child changes no
state of the parent, so threads and daemonic processes may start children too.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.runs.blas_threads import VARIABLE
from tsm2_tune.tuner.runs.signals import SIGNALS, held

# Import path: standard modules, then the caller's path, then entries of .pth files.
ISOLATED = (
    "import sys, json, site; standard = sys.path[:]; site.main();"
    " sys.path[:] = dict.fromkeys([*standard, *json.loads(sys.argv[1]), *sys.path]);"
    " program = sys.argv[2]; del sys.argv[1:3]; exec(program)"
)
START = "from tsm2_tune.tuner.worker.child_process import begin; begin(*sys.argv[1:])"
ROOT = Path(__file__).parents[3]
FIRST_FREE = 3  # smaller file descriptors are standard streams, which the caller may have closed
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def start_child(
    serve: Callable[..., None], *arguments: str, content: bytes = b""
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start `serve(connection, *arguments)` in a new process. Return the process and the parent's end of the pipe.

    Its standard input is `content`.

    In the child, SIGINT and the other signals of `SIGNALS` are blocked until `serve` unblocks them. Raise OSError if
    the process cannot start.
    """
    isolated = isolated_python(START)
    ours, theirs = Pipe()
    number = -1
    try:
        with theirs:
            number = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
        function = f"{serve.__module__}:{serve.__qualname__}"
        command = [*isolated, str(number), str(os.getpid()), function, *arguments]
        # A signal during the start would end the child with a traceback.
        with memory_file(content) as standard_input, held():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                process = subprocess.Popen(
                    command,
                    stdin=standard_input,
                    stdout=subprocess.DEVNULL,
                    stderr=None if _is_open(2) else subprocess.DEVNULL,
                    env={VARIABLE: "1", **os.environ},
                    pass_fds=[number],
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except BaseException:
        ours.close()
        raise
    finally:
        if number >= 0:
            os.close(number)
    return process, ours


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yield the descriptor of a file in memory, to be read from its beginning.

    Raise OSError if this system has no such files.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    with open(os.memfd_create("input"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def begin(number: str, parent: str, function: str, *arguments: str) -> None:
    """Call `function` ("module:name") with the connection and the arguments: the entry point of a child process.

    `number` is the connection's file descriptor. `parent` is the parent's process id.
    """
    die_with_parent()
    if os.getppid() != int(parent):  # the parent has died, but its request may still be in the pipe
        return
    module, name = function.split(":")
    getattr(import_module(module), name)(Connection(int(number)), *arguments)


def isolated_python(program: str) -> list[str]:
    """Return the command that runs Python code in isolated mode, with the standard library first in its import path.

    Raise DeviceError if the Python executable is unknown or cannot import this package.
    """
    mode = f"utf8={sys.flags.utf8_mode}"  # an isolated Python ignores PYTHONUTF8
    return [python_executable(), "-I", "-S", "-X", mode, "-c", ISOLATED, json.dumps(search_path()), program]


def search_path() -> list[str]:
    """Return this process's import path, with this package's parent folder and without the working folder."""
    try:
        working = os.path.realpath(os.getcwd())
    except OSError:  # the working folder was removed
        working = ""
    entries = [one for one in sys.path if isinstance(one, str) and os.path.isabs(one)]  # Python skips other types
    found = [one for one in entries if os.path.realpath(one) != working]
    return found if str(ROOT) in found else [str(ROOT), *found]


def python_executable() -> str:
    """Return the path of the Python executable that runs this process.

    Raise DeviceError if the path is unknown, or if this package is in a zip archive.
    """
    if not (sys.executable and os.access(sys.executable, os.X_OK)):
        raise DeviceError(
            f"Python does not say which program it is (sys.executable is {sys.executable!r}), so no process can be"
            " started: set sys.executable to a Python that can import tsm2_tune"
        )
    if not os.path.isfile(__file__):
        raise DeviceError(f"tsm2_tune is in the archive {ROOT}, where no compiler reads: install it by pip")
    return sys.executable


def die_with_parent() -> None:
    """On Linux, have this process killed when its parent ends, even while a GPU kernel hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
