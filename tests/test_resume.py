"""A tuning run that is killed goes on where it stopped: nothing that was stored is lost, nothing is done twice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import run
from tests.databases import dump
from tests.kills import asked, has_trials
from tests.on_host import ON_HOST

pytestmark = ON_HOST

TUNE = ["--device", "cpu", "--shapes", "64x2x64,33x3x17", "--family", "tsm2", "--max-trials", "8"]
TUNE += ["--no-pairs"]  # which ones there are depends on who wins
TUNE += ["--strategy", "exhaustive"]  # its order does not depend on times
MOST_RUNS = 4  # where the machine is busy, a run's last final may leave one as the fastest that was not in it
MOMENTS = (1, 9)  # trials that are stored, or a few more: of the first problem, and of the second


TRIALS = "SELECT problem_id, config, outcome FROM trial ORDER BY 1, 2"


def killed_at(path: Path, trials: int) -> set[tuple[object, ...]]:
    """The trials that are stored, when a process was killed as soon as there were so many."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.quick_command", *TUNE, "--db", str(path)],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    try:
        while not (has_trials(path) and len(asked(path, TRIALS)) >= trials):
            assert process.poll() is None
            time.sleep(0.005)
    finally:
        process.kill()
        process.wait()
    return set(asked(path, TRIALS))


def test_killed_twice_it_ends_the_same_and_then_does_nothing_new(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    assert run(*TUNE, "--db", str(whole)).exit_code == 0

    stored: set[tuple[object, ...]] = set()
    for moment in MOMENTS:
        now = killed_at(killed, moment)
        assert stored <= now
        assert len(now) < 16, "it was killed too late"
        stored = now
    assert run(*TUNE, "--db", str(killed)).exit_code == 0
    assert stored <= set(asked(killed, TRIALS))

    problems = "SELECT op, dtype, m, n, k FROM best ORDER BY 1, 2, 3, 4, 5"
    assert asked(killed, problems) == asked(whole, problems)
    trials = asked(killed, "SELECT p.dtype, p.m, t.config FROM trial t JOIN problem p ON p.id = t.problem_id")
    assert len(trials) == len(set(trials))
    assert set(trials) == set(
        asked(whole, "SELECT p.dtype, p.m, t.config FROM trial t JOIN problem p ON p.id = t.problem_id")
    )
    assert asked(killed, "PRAGMA integrity_check") == [("ok",)]

    for _ in range(MOST_RUNS):
        before = dump(whole)
        again = run(*TUNE, "--db", str(whole))
        assert again.exit_code == 0
        assert again.output.count("(0 new trials") == 2
        if dump(whole) == before:
            return
    pytest.fail("each run measured another final")


def test_another_strategy_goes_on_too(tmp_path: Path) -> None:
    """In the order that its seed decides; the run says what ended it."""
    tries = ["--device", "cpu", "--shapes", "64x2x64", "--family", "tsm2", "--no-pairs", "--strategy", "random"]
    whole, parts = tmp_path / "whole.db", tmp_path / "parts.db"
    result = run(*tries, "--max-trials", "3", "--db", str(whole))
    assert "--max-trials reached, " in result.output
    for most in ("1", "3"):
        assert run(*tries, "--max-trials", most, "--db", str(parts)).exit_code == 0
    in_order = "SELECT config FROM trial ORDER BY id"
    assert asked(parts, in_order) == asked(whole, in_order)
    other = tmp_path / "other.db"
    assert run(*tries, "--max-trials", "3", "--seed", "1", "--db", str(other)).exit_code == 0
    assert asked(other, in_order) != asked(whole, in_order)
