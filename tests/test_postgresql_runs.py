"""Whole runs at once into a database on a server: one is killed, or the server is away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tsm2_tune
from tests.forked_workers import fork_child
from tests.quick_members import quick_members
from tests.servers import TestServer, asked, wait_until
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.runs import fleet
from tsm2_tune.tuner.runs.events import FleetStarted, RunEnded

ROOT = Path(__file__).parents[1]
AWAY_SECONDS = 6.0  # longer than a run takes to start
TUNE = [
    "--device", "cpu", "--shapes", "16x1x16,20x2x12", "--family", "tsm2", "--max-trials", "6", "--budget", "0",
    "--no-pairs",
]  # fmt: skip
TRIALS = "SELECT p.m, t.config, t.outcome FROM trial t JOIN problem p ON p.id = problem_id ORDER BY 1, 2"


@pytest.mark.usefixtures("toolchain", "session_cache")
def test_four_runs_one_of_them_killed_do_everything_once(address: str, tmp_path: Path) -> None:
    """Each run has its own lock of the device, as on four machines. The others finish the killed run's work."""
    runs = [tuned(address, tmp_path / str(number)) for number in range(4)]
    wait_until(lambda: bool(has_trials(address)) or any(one.poll() is not None for one in runs), seconds=300)
    before = set(asked(address, TRIALS))
    runs[0].kill()
    for number, one in enumerate(runs):
        output, _ = one.communicate(timeout=300)
        assert number == 0 or one.returncode == 0, output
        assert "Traceback" not in output
    trials = asked(address, TRIALS)
    assert before <= set(trials)
    assert len(trials) == len(set(trials)) == 12
    assert {outcome for *_, outcome in trials} == {"ok"}
    assert asked(address, "SELECT count(*) FROM measurement WHERE round = 0") == [(12,)]
    rounds = [number for (number,) in asked(address, "SELECT DISTINCT round FROM measurement WHERE round > 0")]
    assert sorted(rounds) == list(range(1, len(rounds) + 1))
    assert asked(address, "SELECT m, verified_in_full FROM best ORDER BY m") == [(16, 1), (20, 1)]
    assert asked(address, "SELECT owner FROM lease WHERE owner <> ''") == []


def tuned(address: str, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.quick_command", *TUNE, "--db", address],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={**os.environ, MACHINE_VARIABLE: str(folder)},
    )  # fmt: skip


def has_trials(address: str) -> list[Any]:
    there = asked(address, "SELECT 1 FROM pg_tables WHERE tablename = 'trial'")
    return there and asked(address, "SELECT 1 FROM trial LIMIT 1")


def two_devices() -> list[Target]:
    """The host as two."""
    host = find_target("cpu")
    return [replace(host, identity=replace(host.identity, uuid=f"pretended {at}")) for at in range(2)]


@pytest.mark.slow
@pytest.mark.usefixtures("session_cache", "toolchain")
def test_members_wait_for_an_unreachable_server_at_start(
    server: TestServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_members(monkeypatch.setattr, fork_child)
    is_over = threading.Event()

    def restart() -> None:
        time.sleep(AWAY_SECONDS)
        server.start()
        is_over.wait()  # the server ends with the thread that started it

    restarting = threading.Thread(target=restart)
    troubles = list[str]()

    def told(event: object) -> None:
        if isinstance(event, FleetStarted):
            server.stop()
            restarting.start()
        if isinstance(event, RunEnded):
            troubles.append(event.trouble)

    tsm2_tune.tune(
        "64x2x64,32x2x64", device=two_devices(), db=address, on_event=told, max_trials=2, family="tsm2", pairs=False,
        budget=None,
    )  # fmt: skip
    assert troubles == ["", ""]
    assert asked(address, "SELECT count(*) FROM trial GROUP BY problem_id") == [(2,), (2,)]
    server.stop()
    is_over.set()
    restarting.join()
    server.start()


@pytest.mark.slow
@pytest.mark.usefixtures("toolchain")
def test_several_runs_begin_only_where_the_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[object]()
    monkeypatch.setattr(fleet, "start_child", started.append)
    with pytest.raises(StoreError, match="cannot be reached"):
        tsm2_tune.tune("8x8x8", device=two_devices(), db="postgresql://u@127.0.0.1:1/d")
    assert started == []
