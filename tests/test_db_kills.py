"""Commands of a database that are killed at many points leave the database as before or as after.

Each command runs once, and its statements and SQLite's own steps are counted; then again, for each of so many points
among these, in a process that is killed there. Afterwards the same command ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.databases import database_of, dump, facts
from tests.fabricated import configuration, downgrade, trial, tuning_run
from tests.processes import python
from tests.tampering import good_database, with_waste
from tsm2_tune.tuner.results.maintenance import migration, vacuum
from tsm2_tune.tuner.results.merge import importer

pytestmark = pytest.mark.slow

POINTS = 12  # of each command
STEPS = 50  # steps of SQLite's virtual machine that count as one

connect = sqlite3.connect


class Counting:
    """Counts what SQLite does; at the last point the process ends."""

    def __init__(self, last: int) -> None:
        self.count, self._last = 0, last

    def __call__(self, *_: object) -> int:
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def connected(self, *arguments: Any, **named: Any) -> sqlite3.Connection:
        """Connect as sqlite3.connect does, and count the connection's steps."""
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_progress_handler(self, STEPS)  # of a connection whose transactions the program bounds: gone
        connection.set_trace_callback(self)
        return connection


def counted(command: Callable[[], object], last: int = 0) -> int:
    """Return how many points the command has; the process is killed at the point `last`."""
    counting = Counting(last)
    sqlite3.connect = counting.connected  # type: ignore[assignment]
    try:
        command()
    finally:
        sqlite3.connect = connect
    return counting.count


def killed(command: Callable[[], object], last: int) -> bool:
    """Return whether a process of the command was killed at the point `last`."""
    child = os.fork()
    if child == 0:
        counted(command, last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFSIGNALED(status)


def content(path: Path) -> list[str]:
    """All that is in the database but leases, which are of the moment."""
    return [line for line in dump(path) if "lease" not in line]


def points(total: int, number: int) -> list[int]:
    """The first, the last, and others between."""
    return sorted({max(1, total * at // (number - 1)) for at in range(number)})


def of_one_database(
    folder: Path, number: int, make: Callable[[Path], object], command: Callable[[Path], object]
) -> int:
    """Kill a command that changes one database; how often it was."""
    first, path, after = folder / "first.db", folder / "results.db", folder / "after.db"
    make(first)
    shutil.copy(first, after)
    total = counted(lambda: command(after))
    states, kills = [content(first), content(after)], 0
    for last in points(total, number):
        for old in folder.glob("results.db*"):
            old.unlink()
        shutil.copy(first, path)
        kills += killed(lambda: command(path), last)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert content(path) in states, f"point {last} of {total}"
        for kept in folder.glob("results.db.schema-?"):
            assert content(kept) == states[0]
        command(path)
        assert content(path) == states[1]
    return kills


def of_merging(folder: Path, number: int) -> int:
    """Kill a merge: each problem on each device is as before or as after."""
    source, first, path, after = (folder / f"{name}.db" for name in ("source", "first", "results", "after"))
    importer.HOLD_SECONDS = 0.0  # so that each problem has a transaction of its own
    good_database(source)
    others = (trial(400.0 + threads, configuration(threads)) for threads in (64, 128, 256))
    database_of(first, *others, run=tuning_run(uuid="GPU-2"))
    shutil.copy(first, after)
    total = counted(lambda: tsm2_tune.import_trials(source, after))
    states, kills, between = [facts(first), facts(after)], 0, 0
    for last in points(total, number):
        shutil.copy(first, path)
        kills += killed(lambda: tsm2_tune.import_trials(source, path), last)
        found = facts(path)
        for place, part in found.items():
            assert part in [state.get(place) for state in states], f"point {last} of {total}"
        between += found not in states
        tsm2_tune.import_trials(source, path)
        assert facts(path) == states[1]
    assert between > 0  # else no kill was in the middle
    return kills


def older(path: Path) -> None:
    good_database(path)
    downgrade(path)


COMMANDS: dict[str, Callable[[Path, int], int]] = {
    "vacuum": lambda own, most: of_one_database(own, most, with_waste, lambda path: vacuum.vacuum(path, alone=True)),
    "migrate": lambda own, most: of_one_database(own, most, older, lambda path: migration.migrate(path, keep=True)),
    "merge": of_merging,
}


@pytest.mark.usefixtures("session_cache")
def test_after_a_kill_the_database_is_as_before_or_as_after(tmp_path: Path) -> None:
    """In a process that forks: this one has threads."""
    found = python("-m", "tests.test_db_kills", tmp_path, POINTS, cwd=Path(__file__).parents[1])
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == [f"{name}: killed {POINTS} times" for name in COMMANDS]


if __name__ == "__main__":
    for name, kill in COMMANDS.items():
        folder = Path(sys.argv[1], name)
        folder.mkdir()
        print(f"{name}: killed {kill(folder, int(sys.argv[2]))} times", flush=True)
