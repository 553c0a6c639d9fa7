"""A program in a process of its own: it has the descriptors and the signals that it has when it is run by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.on_host import IN_C
from tests.standin_calls import TESTS
from tsm2_tune.errors import InputError
from tsm2_tune.interpose.preload import PASSED_ON, Standing, ran

pytestmark = IN_C
Command = Callable[[str], list[str]]
BY_ITSELF = ("env",)
WAYS = ("run --library {library}", "run --report --library {library}", "record --output {folder}/products.txt")
# Writes down each signal as it comes; ends at SIGTERM.
COUNTS = """
import pathlib, signal, sys, time
seen = []
def note(number, frame):
    seen.append(signal.Signals(number).name)
    pathlib.Path(sys.argv[1]).write_text(" ".join(seen))
    if number == signal.SIGTERM:
        sys.exit(4)
for name in sys.argv[2:]:
    signal.signal(signal.Signals[name], note)
pathlib.Path(sys.argv[1]).write_text("ready")
while True:
    time.sleep(0.01)  # pause would not see a signal that comes just before it
"""
# Program that makes its standard input its controlling terminal, and then runs the command.
WITH_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def command(plain: str, tmp_path: Path) -> Command:
    def of(way: str) -> list[str]:
        return [sys.executable, "-m", "tsm2_tune", *way.format(library=plain, folder=tmp_path).split(), "--"]

    return of


def counting(file: Path, *names: str) -> list[str]:
    return [sys.executable, "-c", COUNTS, str(file), *names]


def awaited(file: Path, text: str) -> None:
    """Until the program has written this."""
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text() == text):
        assert time.monotonic() < deadline, file.read_text() if file.exists() else "the program has not begun"
        time.sleep(0.02)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", ["", "trap '' HUP INT QUIT; ", "trap '' USR1 WINCH CHLD; "])
def test_a_program_has_its_descriptors_and_signals(command: Command, way: str, before: str) -> None:
    """But for an ignored SIGCHLD, without which nobody learns a status, and two of the C library's (32, 33)."""
    own = 1 << signal.SIGCHLD - 1 | 3 << 31
    reading, writing = os.pipe()
    told = ["sh", "-c", f"grep '^Sig[BIC]' /proc/self/status >/dev/fd/{writing}"]
    with open(reading) as read, open(writing) as written:
        for of in (BY_ITSELF, command(way)):
            subprocess.run(
                ["sh", "-c", f'{before}exec $0 "$@"', *of, *told], check=True, pass_fds=(writing,), cwd=TESTS.parent
            )
        written.close()
        found = [int(line.split()[1], 16) | own for line in read.read().splitlines()]
    assert (len(found), found[3:]) == (6, found[:3])


@pytest.mark.parametrize("way", WAYS[1:])
def test_signals_go_to_the_program_once(command: Command, tmp_path: Path, way: str) -> None:
    file, names = tmp_path / "signals", sorted((one.name for one in PASSED_ON), key=lambda name: name == "SIGTERM")
    program = [*command(way), *counting(file, *names)]
    started = subprocess.Popen(program, stderr=subprocess.DEVNULL, cwd=TESTS.parent, start_new_session=True)
    awaited(file, "ready")
    for number, name in enumerate(names, start=1):
        started.send_signal(signal.Signals[name])
        awaited(file, " ".join(names[:number]))
    assert started.wait(60) == 4
    assert file.read_text().split() == names


@pytest.mark.parametrize(("typed", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_what_is_typed_reaches_the_program_once(command: Command, tmp_path: Path, typed: bytes, name: str) -> None:
    file = tmp_path / "signals"
    program = [sys.executable, "-c", WITH_TERMINAL, *command(WAYS[1]), *counting(file, name, "SIGUSR1", "SIGTERM")]
    typing, terminal = os.openpty()
    started = subprocess.Popen(program, stdin=terminal, cwd=TESTS.parent, start_new_session=True)
    awaited(file, "ready")
    os.write(typing, typed)
    awaited(file, name)
    started.send_signal(signal.SIGUSR1)  # before which a second one would come
    awaited(file, f"{name} SIGUSR1")
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 4
    os.close(terminal)
    os.close(typing)
    assert file.read_text() == f"{name} SIGUSR1 SIGTERM"


def test_a_signal_that_comes_before_the_program_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen, standing = subprocess.Popen, Standing(tmp_path / "none.so")

    def late(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return popen(*arguments, **named)

    monkeypatch.setattr(subprocess, "Popen", late)
    monkeypatch.setattr(Standing, "environment", lambda *_: dict(os.environ))
    assert ran(["sleep", "100"], standing, tmp_path) == 128 + signal.SIGTERM


def test_a_signal_that_comes_where_no_program_does_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))

    def refused(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError(7, "Argument list too long")

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(InputError, match="cannot run true: Argument list too long"):
        ran(["true"], Standing(tmp_path / "none.so"), tmp_path)
    assert came == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)
