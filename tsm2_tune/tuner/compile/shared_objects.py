"""Build shared libraries (.so) from C or C++ sources."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import Ended, Ending, workplace
from tsm2_tune.tuner.compile.environment import compiler_environment, program_path
from tsm2_tune.tuner.compile.failure_cause import (
    BELIEVED,
    KILLED,
    PASSING,
    REMOVED,
    Interrupted,
    interruption,
    is_killed,
    out_of_memory_kills,
    refuse_full_disk,
    signal_name,
)

LIMIT_SECONDS = 600.0  # time limit of the C compiler
COMPILERS = ("c++", "g++", "clang++")
C_FLAGS = (
    "-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-Wall", "-Wextra",
    "-ffp-contract=off",  # no fused multiply-add, so that all processors choose the same kernels
)  # fmt: skip
# Without the default libraries, because a C++ compiler would link the C++ library.
LINKING = ("-nodefaultlibs", "-s", "-Wl,--as-needed", "-Wl,-z,noexecstack")


def c_texts(folder: Traversable) -> dict[str, bytes]:
    """Return the C sources and headers in the folder: file name -> text."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith((".c", ".h"))}


def compiler_command() -> list[str]:
    """Return the C++ compiler's path and the other words of $CXX. Raise ToolMissing if there is no compiler."""
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise ToolMissing(
            f"C++ compiler {os.environ['CXX']!r} is not a command ({error}): fix or unset CXX"
        ) from None
    for name in named[:1] or COMPILERS:
        path = program_path(name)
        if path is not None:
            return [os.path.abspath(path), *named[1:]]
    if named and os.path.exists(named[0]):
        raise ToolMissing(
            f"C++ compiler {named[0]!r} is not executable: $CXX names it; make it executable or unset CXX"
        )
    if named:
        raise ToolMissing(f"C++ compiler {named[0]!r} not found: $CXX names it; install it or unset CXX")
    raise ToolMissing(
        f"no C++ compiler found: looked for $CXX and for {', '.join(COMPILERS)} in PATH; install g++ or clang++"
    )


def c_library(
    files: Mapping[str, bytes], what: str, *, options: Iterable[str] = (), libraries: Iterable[str] = ()
) -> bytes:
    """Build a shared library from C sources, and the files that they include (name -> content). Return its bytes.

    `options` and `libraries` are words for the compiler and the linker besides the common ones. Raise ToolMissing if
    there is no compiler, and the errors of `shared_object`.
    """
    compiler = compiler_command()
    sources = sorted(name for name in files if name.endswith(".c"))

    def command(folder: Path, output: Path) -> list[str]:
        included = ("-I", str(folder), "-Xassembler", "-I", "-Xassembler", str(folder))  # the second for .incbin
        line = [*compiler, *C_FLAGS, *included, *options, *LINKING, "-o", str(output)]
        line += [word for name in sources for word in ("-x", "c", str(folder / name))]
        return [*line, "-x", "none", *libraries, "-lm", "-lc", "-lgcc"]

    return shared_object(files, command, what)


def shared_object(
    files: Mapping[str, bytes],
    command: Callable[[Path, Path], list[str]],
    what: str,
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> bytes:
    """Build a shared library from `files` (name -> content) and return its bytes.

    `command` returns the compiler command for the folder with the files and the path of the output. `what` names the
    output in messages. A build that the machine made fail is repeated. Raise ToolMissing if the compiler fails,
    Interrupted if it is killed each time, InputError if no working folder can be created.
    """
    for is_last in (*[False] * (BELIEVED - 1), True):
        killed_before, parent = out_of_memory_kills(), cache.working_parent()
        try:
            with workplace(parent) as work:
                for file, content in files.items():
                    (work.folder / file).write_bytes(content)
                output = work.folder / what
                line = command(work.folder, output)
                environment = {**compiler_environment(), "TMPDIR": str(work.folder)}
                ended = work.run(line, limit_seconds=limit_seconds, environment=environment)
                if ended.is_well and output.is_file():
                    return output.read_bytes()
                was_removed = not all((work.folder / file).is_file() for file in files)
                refuse_full_disk(parent)
        except OSError as error:
            if error.errno in PASSING and not is_last:
                continue
            raise InputError(
                f"cannot build the {what} in {parent} ({error.strerror}): make it writable, with space left"
            ) from error
        why = None if ended.is_well else interruption(ended, killed_before=killed_before)
        if not was_removed and (why is None or ended.how is Ending.CALLED_OFF):
            break
    if why is not None and is_killed(why):
        raise Interrupted(f"{line[0]} does not build the {what}: {why}; {KILLED}")
    said = ended.messages.replace(str(work.folder), "").strip()[-2000:] or _silent(ended)
    if was_removed:
        said = REMOVED
    elif ended.is_well:
        said = "it exited with status 0, but wrote no output"
    raise ToolMissing(f"{line[0]} does not build the {what}: {said}")


def _silent(ended: Ended) -> str:
    """Return the error text for a compiler that failed without a message."""
    if ended.how is Ending.SIGNALLED:
        return f"it was killed by {signal_name(ended.status)}"
    return f"it {ended.how.value} {ended.status}, without a message"
