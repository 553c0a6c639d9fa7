"""Build shared libraries (.so) from C or C++ sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

from tsm2_tune.errors import InputError, ToolMissing
from tsm2_tune.tuner.compile import cache
from tsm2_tune.tuner.compile.command_limits import Ended, Ending, workplace
from tsm2_tune.tuner.compile.environment import compiler_environment
from tsm2_tune.tuner.compile.failure_cause import refuse_full_disk, signal_name

LIMIT_SECONDS = 600.0  # time limit of the C compiler


def c_texts(folder: Traversable) -> dict[str, bytes]:
    """Return the C sources and headers in the folder: file name -> text."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith((".c", ".h"))}


def as_c(sources: Iterable[Path]) -> list[str]:
    """Return compiler arguments that name these files and make a C++ compiler read each of them as C."""
    return [*(word for source in sources for word in ("-x", "c", str(source))), "-x", "none"]


def shared_object(
    files: Mapping[str, bytes],
    command: Callable[[Path, Path], list[str]],
    what: str,
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> bytes:
    """Build a shared library from `files` (name -> content) and return its bytes.

    `command` returns the compiler command for the folder with the files and the path of the output. `what` names the
    output in messages. Raise ToolMissing if the compiler fails, InputError if no working folder can be created.
    """
    parent = cache.working_parent()
    try:
        with workplace(parent) as work:
            for file, content in files.items():
                (work.folder / file).write_bytes(content)
            output = work.folder / what
            line, environment = command(work.folder, output), {**compiler_environment(), "TMPDIR": str(work.folder)}
            ended = work.run(line, limit_seconds=limit_seconds, environment=environment)
            if not ended.is_well or not output.is_file():
                refuse_full_disk(parent)
                said = ended.messages.replace(str(work.folder), "").strip()[-2000:]
                said = "it exited with status 0, but wrote no output" if ended.is_well else said or _silent(ended)
                raise ToolMissing(f"{line[0]} does not build the {what}: {said}")
            return output.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot build the {what} in {parent} ({error.strerror}): make it writable, with space left"
        ) from error


def _silent(ended: Ended) -> str:
    """Return the error text for a compiler that failed without a message."""
    if ended.how is Ending.SIGNALLED:
        return f"it was killed by {signal_name(ended.status)}"
    return f"it {ended.how.value} {ended.status}, without a message"
