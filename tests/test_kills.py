"""A tuning that is killed, or whose worker is, goes on with nothing lost, doubled, misjudged or left behind.

`KILLS=100 python -m pytest tests/test_kills.py -k killed` kills each kind of process a hundred times.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests import kills
from tests.command import run
from tests.conftest import copy_cache
from tests.hasty_command import LEASE_SECONDS
from tests.kills import Place
from tests.on_host import has_compiler

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


@pytest.fixture(scope="module")
def warm(session_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the kernels."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(*kills.TUNE, "--db", str(folder / "results.db")).exit_code == 0
    copy_cache(folder / "cache")
    return folder / "cache"


@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("KILLS", "1"))))
@pytest.mark.parametrize("what", kills.KINDS)
def test_who_is_killed(what: str, seed: int, warm: Path, tmp_path: Path) -> None:
    """Workers while they time and verify for seconds, so that kernels are running when they are killed."""
    place, rng = (
        Place(tmp_path, warm, "tests.quickly_compiled" if what == "worker" else "tests.quick_command"),
        random.Random(seed),
    )
    if what == "compiler":
        kills.lose_half(place.folder / "cache", rng)
    kills.try_once(place, what, rng, seconds=0.5, kills=1 if what == "main" else rng.choice((1, 2, 3)))


def is_stopped(process: int) -> bool:
    """Return whether all threads of the process are stopped, or the process has ended."""
    try:
        states = [file.read_text().rpartition(") ")[2][0] for file in Path(f"/proc/{process}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
        return False
    return set(states) <= {"T", "Z"}


def stop_between_transactions(process: int, path: Path) -> None:
    """Stop the process where it does not lock the database, which nobody else could write then."""
    while True:
        os.kill(process, signal.SIGSTOP)
        while not is_stopped(process):  # its threads go on until the signal has reached them
            time.sleep(0.001)
        try:
            with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as connection:
                connection.execute("BEGIN EXCLUSIVE")  # refused beside one that reads, too
                return
        except sqlite3.OperationalError:
            os.kill(process, signal.SIGCONT)
            time.sleep(0.01)


def test_who_is_stopped_and_comes_back_late(warm: Path, tmp_path: Path) -> None:
    """Another run on the database does its work meanwhile; what it finds out later is not stored."""
    (tmp_path / "late").mkdir()
    (tmp_path / "other").mkdir()
    late = Place(tmp_path / "late", warm, "tests.hasty_command")
    other = Place(tmp_path / "other", warm, "tests.hasty_command", shared=late.database)
    with kills.ended(late.start()) as stopped:
        kills.wait_for_stage(late, stopped, 1)
        stop_between_transactions(stopped.pid, late.database)
        before = late.trials()
        time.sleep(2 * LEASE_SECONDS)
        kills.check_continued(other, before)
        after = late.trials()
        os.kill(stopped.pid, signal.SIGCONT)
        output, _ = stopped.communicate(timeout=kills.LIMIT_SECONDS)
    assert stopped.returncode == 0, output
    assert late.trials() == after
    kills.check_continued(late, after)
