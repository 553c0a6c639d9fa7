"""A tuning run that is killed goes on where it stopped: nothing that was stored is lost, nothing is done twice."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tsm2_tune.tuner.compiler import Toolchain

pytestmark = pytest.mark.host

TUNE = [
    *(sys.executable, "-m", "tsm2_tune", "--device", "cpu", "--shapes", "64x2x64,33x3x17", "--dtype", "f32"),
    *("--max-trials", "4", "--seed", "3"),
]


def asked(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


TRIALS = "SELECT problem_id, config, outcome FROM trial ORDER BY 1, 2"


def test_killed_five_times_it_ends_the_same_and_then_does_nothing_new(tmp_path: Path, toolchain: Toolchain) -> None:
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    subprocess.run([*TUNE, "--db", str(whole)], check=True, stdout=subprocess.DEVNULL)

    rng = random.Random(5)
    stored: set[tuple[object, ...]] = set()
    for _ in range(5):
        process = subprocess.Popen([*TUNE, "--db", str(killed)], stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.8, 2.4))
        process.kill()
        process.wait()
        if killed.exists() and asked(killed, "SELECT 1 FROM sqlite_master WHERE name = 'trial'"):  # it got so far
            now = set(asked(killed, TRIALS))
            assert stored <= now
            stored = now
    subprocess.run([*TUNE, "--db", str(killed)], check=True, stdout=subprocess.DEVNULL)

    problems = "SELECT op, dtype, m, n, k FROM best ORDER BY 1, 2, 3, 4, 5"
    assert asked(killed, problems) == asked(whole, problems)
    trials = asked(killed, "SELECT p.dtype, p.m, t.config FROM trial t JOIN problem p ON p.id = t.problem_id")
    assert len(trials) == len(set(trials))
    assert set(trials) == set(
        asked(whole, "SELECT p.dtype, p.m, t.config FROM trial t JOIN problem p ON p.id = t.problem_id")
    )
    assert asked(killed, "PRAGMA integrity_check") == [("ok",)]

    before = dump(whole)
    again = subprocess.run([*TUNE, "--db", str(whole)], check=True, capture_output=True, text=True)
    assert again.stdout.count("(0 new trials") == 2
    assert dump(whole) == before
