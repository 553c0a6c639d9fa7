"""A program with the stand-in before its cuBLAS."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tsm2_tune.errors import InputError

OF_A_SIGNAL = 128  # and its number: the exit status after it, as shells have it
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the stand-in is to do."""

    standin: Path
    pack: Path | None = None  # none: all products are left to cuBLAS
    has_times: bool = False  # whether GPU times are taken
    compared: int = 0  # products of each shape whose results are compared with cuBLAS's

    def environment(self, journal: Path | None) -> dict[str, str]:
        """Of the program: this process's, and what the stand-in reads."""
        told: Mapping[str, str | None] = {
            "LD_PRELOAD": ":".join(filter(None, (str(self.standin), os.environ.get("LD_PRELOAD")))),
            "TSM2_LIBRARY": None if self.pack is None else str(self.pack.absolute()),
            "TSM2_JOURNAL": None if journal is None else str(journal),
            "TSM2_TIMES": "1" if self.has_times else None,
            "TSM2_COMPARED": str(self.compared) if self.compared else None,
        }
        plain = {name: value for name, value in os.environ.items() if name not in told}
        return plain | {name: value for name, value in told.items() if value is not None}


def become(program: Sequence[str], standing: Standing) -> NoReturn:
    """Let this process become the program. InputError where it cannot."""
    environment = standing.environment(None)
    path = _found(program[0])
    try:
        os.execve(path, list(program), environment)
    except OSError as error:
        raise InputError(f"cannot run {program[0]}: {error.strerror}") from None


@contextmanager
def journal_folder() -> Iterator[Path]:
    """A folder for what the stand-in writes down, which goes in the end."""
    with tempfile.TemporaryDirectory(prefix="tsm2-tune-") as folder:
        yield Path(folder)


def ran(program: Sequence[str], standing: Standing, journal: Path) -> int:
    """The program's exit status, as a shell has it. Signals that end programs are passed on to it, and awaited.

    InputError where it cannot be started.
    """
    path = _found(program[0])
    try:
        started = subprocess.Popen(program, executable=path, env=standing.environment(journal))
    except OSError as error:
        raise InputError(f"cannot run {program[0]}: {error.strerror}") from None
    before = {number: signal.signal(number, lambda number, _: started.send_signal(number)) for number in PASSED_ON}
    try:
        status = started.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else OF_A_SIGNAL - status


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise InputError(f"cannot run {name}: no such program is in PATH, or it is no executable file")
    return path
