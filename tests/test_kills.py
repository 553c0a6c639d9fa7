"""A tuning that is killed, or whose worker is, goes on with nothing lost, doubled, misjudged or left behind.

`KILLS=100 python -m pytest tests/test_kills.py -k killed` kills each kind of process a hundred times.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import kills
from tests.command import run
from tests.conftest import copy_cache
from tests.databases import dump
from tests.kills import Place, asked, has_trials
from tests.on_host import has_compiler

pytestmark = [
    pytest.mark.slow,
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
@pytest.mark.parametrize("what", ["main", *kills.HELPERS])
def test_who_is_killed(what: str, seed: int, warm: Path, tmp_path: Path) -> None:
    """Workers while they time and verify for seconds, so that kernels are running when they are killed."""
    command, rng = "tests.kills" if what == "worker" else "tests.quick_command", random.Random(seed)
    place = Place(tmp_path, warm, command)
    if what == "compiler":
        kills.lose_half(place.folder / "cache", rng)
    kills.try_once(place, what, rng, seconds=0.5, kills=1 if what == "main" else rng.choice((1, 2, 3)))


ON_HOST = ("--device", "cpu", "--family", "tsm2", "--no-pairs")  # which pairs there are depends on who wins
TUNE = (*ON_HOST, "--shapes", "64x2x64,33x3x17", "--max-trials", "8", "--strategy", "exhaustive")  # in its own order
MOST_RUNS = 4  # where the machine is busy, a run's last final may leave one as the fastest that was not in it
ALL = "SELECT m, n, k, config, outcome FROM trial JOIN problem AS p ON p.id = problem_id ORDER BY 1, 2, 3, 4"


def killed_at(path: Path, trials: int) -> set[tuple[object, ...]]:
    """The trials that are stored, when a process was killed as soon as there were so many."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.quick_command", *TUNE, "--db", str(path)],
        stdout=subprocess.DEVNULL, cwd=kills.ROOT,
    )  # fmt: skip
    try:
        while not (has_trials(path) and len(asked(path, ALL)) >= trials):
            assert process.poll() is None
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    return set(asked(path, ALL))


def test_killed_twice_it_ends_the_same_and_then_does_nothing_new(tmp_path: Path) -> None:
    whole, killed, stored = tmp_path / "whole.db", tmp_path / "killed.db", set[tuple[object, ...]]()
    assert run(*TUNE, "--db", str(whole)).exit_code == 0
    for moment in (1, 9):  # in the first problem, and in the second
        now = killed_at(killed, moment)
        assert stored <= now
        assert len(now) < 16, "it was killed too late"
        stored = now
    assert run(*TUNE, "--db", str(killed)).exit_code == 0
    assert stored <= set(asked(killed, ALL))
    assert [row[:-1] for row in asked(killed, ALL)] == [row[:-1] for row in asked(whole, ALL)]
    problems = "SELECT m, n, k FROM best ORDER BY 1, 2, 3"
    assert asked(killed, problems) == asked(whole, problems)
    assert asked(killed, "PRAGMA integrity_check") == [("ok",)]
    for _ in range(MOST_RUNS):
        before = dump(whole)
        again = run(*TUNE, "--db", str(whole))
        assert (again.exit_code, again.output.count("(0 new trials")) == (0, 2)
        if dump(whole) == before:
            return
    pytest.fail("each run measured another final")
