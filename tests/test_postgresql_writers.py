"""Several who write, and whole runs, at once into a database on a server, which is restarted or away meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

import tsm2_tune
from tests.fabricated import BASIS, GPU, PROBLEM, configuration, final, trial, tuning_run
from tests.forked_workers import fork_child
from tests.quick_members import quick_members
from tests.servers import TestServer, asked, wait_until
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results import insert
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import fleet
from tsm2_tune.tuner.runs.events import FleetStarted, RunEnded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FAMILIES = ("tsm2",)
AWAY_SECONDS = 6.0  # longer than a run takes to start
TUNE = [
    "--device", "cpu", "--shapes", "16x1x16,20x2x12", "--family", "tsm2", "--max-trials", "6", "--budget", "0",
    "--no-pairs",
]  # fmt: skip
TRIALS = "SELECT p.m, t.config, t.outcome FROM trial t JOIN problem p ON p.id = problem_id ORDER BY 1, 2"
WRITERS, FINALS = 4, 3
CONFIGS = [configuration(32 * threads, columns) for threads in range(1, 9) for columns in (1, 2, 4, 8)]
FIRST, SECOND = configuration(128), configuration(256)
ROUNDS = "SELECT round, count(*) FROM measurement WHERE round > 0 GROUP BY round ORDER BY round"
# Connections of this database that wait for a lock.
WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_database AS here ON here.oid = database
WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
"""
# From now on a transaction that stores measurements takes its time to commit.
SLOW_COMMIT = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON measurement DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION wait();
"""


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """The store in the server's database."""
    with Store.open(address, create=True) as store:
        yield store


def test_several_at_once_do_everything_once(address: str) -> None:
    """They also make the tables at once."""
    begin, opened, tried = (threading.Barrier(WRITERS, timeout=60) for _ in range(3))

    def write(number: int) -> tuple[bool, list[int]]:
        run, rounds = tuning_run(uuid=f"GPU-{number}"), list[int]()
        begin.wait()
        with Store.open(address, create=True) as store, store.leases(GPU) as ours:
            opened.wait()
            is_taken = ours.take(PROBLEM)
            for config in CONFIGS:
                store.add_trial(run, trial(500.0 + number, config))
            for us in range(400, 400 + FINALS):
                timed = final((CONFIGS[0], us), (CONFIGS[1], 410.0))
                rounds.append(store.add_final(run, timed, FAMILIES, BASIS))
            tried.wait()
        return is_taken, rounds

    with ThreadPoolExecutor(WRITERS) as pool:
        results = list(pool.map(write, range(WRITERS)))
    assert sorted(is_taken for is_taken, _ in results) == [False] * (WRITERS - 1) + [True]
    rounds = [number for _, numbers in results for number in numbers]
    assert sorted(rounds) == list(range(1, WRITERS * FINALS + 1))
    assert asked(address, "SELECT count(*), count(DISTINCT config) FROM trial") == [(len(CONFIGS),) * 2]
    assert asked(address, "SELECT count(*) FROM measurement WHERE round = 0") == [(len(CONFIGS),)]
    assert asked(address, ROUNDS) == [(number, 2) for number in range(1, WRITERS * FINALS + 1)]
    assert asked(address, "SELECT count(*) FROM problem") == [(1,)]
    assert asked(address, "SELECT count(*), count(DISTINCT device_uuid) FROM run") == [(WRITERS, WRITERS)]
    for table in ("lease", "receipt"):
        assert asked(address, f"SELECT * FROM {table}") == []


# A server that is restarted


def test_a_restart_loses_and_doubles_nothing(server: TestServer, address: str) -> None:
    told, rounds, ended = list[int](), list[int](), threading.Event()

    def write() -> None:
        with Store.open(address, create=True) as store, store.leases(GPU) as ours:
            for number in range(10_000):
                config = configuration(32, 1, number + 1)
                assert ours.take(PROBLEM)
                told.append(store.add_trial(tuning_run(), trial(500.0 + number, config)))
                if number > 0:
                    timed = final((config, 300.0), (configuration(32, 1, number), 310.0))
                    rounds.append(store.add_final(tuning_run(), timed, FAMILIES, BASIS))
                if ended.is_set():
                    return

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            for is_last in (False, False, False, True):
                enough = len(rounds) + 3
                wait_until(lambda enough=enough: len(rounds) > enough or writer.done())  # type: ignore[misc]
                if not is_last:
                    server.restart()
        finally:
            ended.set()
        writer.result(60)
    assert asked(address, "SELECT id FROM trial ORDER BY id") == [(number,) for number in told]
    assert asked(address, "SELECT count(DISTINCT config) FROM trial") == [(len(told),)]
    assert rounds == list(range(1, len(rounds) + 1))
    assert asked(address, ROUNDS) == [(number, 2) for number in rounds]


def with_a_broken_commit(monkeypatch: pytest.MonkeyPatch, end: Callable[[Connection], object]) -> list[int]:
    """The first commit of what is written ends so, and nobody hears its answer; empty once that has been."""
    commit, left = Connection.commit, [1]

    def broken(connection: Connection) -> None:
        if left and connection.get_execution_options().get("isolation_level") == "READ COMMITTED":
            left.pop()
            end(connection)
            raise OperationalError("COMMIT", {}, gone(), connection_invalidated=True)
        commit(connection)

    monkeypatch.setattr(Connection, "commit", broken)
    return left


def break_off(connection: Connection) -> None:
    """Ask the server to commit, and close the connection."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.pgconn.send_query(b"COMMIT")
    driver.close()


ENDS: dict[str, Callable[[Connection], object]] = {
    "committed": Connection.commit, "not committed": lambda _: None, "committing": break_off
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_the_answer_to_a_commit_is_lost(
    address: str, store: Store, monkeypatch: pytest.MonkeyPatch, impatient: None, end: str
) -> None:
    """The round is stored once, whether the server has committed it, has not, or still does, which is waited for."""
    for config in (FIRST, SECOND):
        store.add_trial(tuning_run(), trial(500.0, config))
    if end == "committing":
        asked(address, SLOW_COMMIT)
    left = with_a_broken_commit(monkeypatch, ENDS[end])
    assert store.add_final(tuning_run(), final((FIRST, 400.0), (SECOND, 410.0)), FAMILIES, BASIS) == 1
    assert left == []
    assert asked(address, ROUNDS) == [(1, 2)]


def test_who_writes_of_all_waits_for_who_writes_of_one_problem(address: str, store: Store) -> None:
    """`forget` waits so for a run that stores a trial."""
    one_is_at_it, one_may_end, order = threading.Event(), threading.Event(), list[str]()

    def one() -> None:
        with store.database.transaction(writes=True, about=(GPU, PROBLEM.text)):
            one_is_at_it.set()
            assert one_may_end.wait(60)
            order.append("one")

    def every() -> None:
        with store.database.transaction(writes=True):
            order.append("all")

    with ThreadPoolExecutor(2) as pool:
        pool.submit(one)
        assert one_is_at_it.wait(60)
        pool.submit(every)
        wait_until(lambda: bool(order) or asked(address, WAITING) == [(1,)])
        one_may_end.set()
    assert order == ["one", "all"]


def gone() -> Exception:
    import psycopg

    return psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize("way", ["pg_terminate_backend(pid)", "deadlock"])
def test_a_transaction_that_the_server_ends_is_made_again(
    address: str, store: Store, monkeypatch: pytest.MonkeyPatch, impatient: None, way: str
) -> None:
    import psycopg

    add, left = insert.add_measurement, [1]

    def ended(connection: Connection, *arguments: Any, **named: Any) -> None:
        if left:
            left.pop()
            if way == "deadlock":
                raise OperationalError("", {}, psycopg.errors.DeadlockDetected("deadlock detected"))
            asked(address, f"SELECT {way} FROM pg_stat_activity WHERE state = 'idle in transaction'")
        add(connection, *arguments, **named)

    monkeypatch.setattr(insert, "add_measurement", ended)
    assert store.add_trial(tuning_run(), trial(500.0)) > 0
    assert left == []
    assert asked(address, "SELECT count(*) FROM trial JOIN measurement ON trial_id = trial.id") == [(1,)]


def test_a_server_that_stays_away_is_told(server: TestServer, impatient: None) -> None:
    address = server.new()
    with Store.open(address, create=True) as store:
        server.stop()
        try:
            with pytest.raises(StoreError, match="cannot be reached"):
                store.add_trial(tuning_run(), trial(500.0))
        finally:
            server.start()
        assert store.add_trial(tuning_run(), trial(500.0)) == 1


# Whole runs


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


@pytest.mark.usefixtures("session_cache", "toolchain")
def test_members_wait_for_a_lost_server(server: TestServer, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("toolchain")
def test_several_runs_begin_only_where_the_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[object]()
    monkeypatch.setattr(fleet, "start_child", started.append)
    with pytest.raises(StoreError, match="cannot be reached"):
        tsm2_tune.tune("8x8x8", device=two_devices(), db="postgresql://u@127.0.0.1:1/d")
    assert started == []
