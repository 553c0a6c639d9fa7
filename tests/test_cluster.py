"""Runs on the workers of a real Dask scheduler on this machine, each on a host that is pretended to be its own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'tsm2-tune[dask]'")

import tsm2_tune
from tests.command import run
from tests.dask_cluster import Workers, cluster
from tests.fabricated import plain_sql
from tests.quick_members import SHAPES, TRIALS, assert_complete
from tests.servers import TestServer
from tests.standing_in import Spied
from tsm2_tune.errors import DeviceError, InputError, ToolMissing, WorkerError
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.runs import dask_cluster as clusters
from tsm2_tune.tuner.runs.events import Event, OfRun, RunEnded, TrialStored
from tsm2_tune.tuner.runs.json_codec import encode
from tsm2_tune.tuner.runs.messages import Failed

pytestmark = [pytest.mark.usefixtures("session_cache", "toolchain"), pytest.mark.slow]


@pytest.fixture(scope="module")
def scheduler(
    tmp_path_factory: pytest.TempPathFactory, session_cache: None, toolchain: Toolchain
) -> Iterator[Workers]:
    """One for all tests that leave it alive."""
    with cluster(tmp_path_factory.mktemp("cluster")) as scheduler:
        yield scheduler


@pytest.fixture
def workers(scheduler: Workers) -> Workers:
    """Two."""
    scheduler.have(2)
    return scheduler


def trial_of(event: Event) -> TrialStored | None:
    """The trial that the event of a run tells of."""
    told = event.event if isinstance(event, OfRun) else None
    return told if isinstance(told, TrialStored) else None


def tuned(
    path: Path | str, workers: Workers, on_event: Callable[[Event], object] | None = None, **options: Any
) -> tsm2_tune.TuningResult:
    chosen: dict[str, Any] = {"max_trials": TRIALS, "family": "tsm2", "pairs": False, "budget": None} | options
    return tsm2_tune.tune(SHAPES, device="cpu", cluster=workers.address, db=path, on_event=on_event, **chosen)


def test_a_worker_that_is_killed_costs_nothing_but_time(path: Path, workers: Workers) -> None:
    events: list[Event] = []

    def kill(event: Event) -> None:
        if trial_of(event) and not any(map(trial_of, events)):
            workers.kill(0)
        events.append(event)

    result = tuned(path, workers, kill)
    assert_complete(path)
    assert sorted(event.trouble for event in events if isinstance(event, RunEnded)) == ["", "its worker is lost"]
    assert (len(result.winners), result.unfinished, result.is_complete) == (3, (), True)
    told = [trial.trial_id for trial in map(trial_of, events) if trial]
    assert len(set(told)) == len(told)
    assert set(told) <= {number for (number,) in plain_sql(path, "SELECT id FROM trial")}


def test_a_worker_that_comes_takes_the_place_of_the_last_one(path: Path, workers: Workers) -> None:
    killed: list[Event] = []

    def kill(event: Event) -> None:
        if trial_of(event) and not killed:
            killed.append(event)
            workers.kill(0)
            workers.kill(0)
            workers.add()

    tuned(path, workers, kill)
    assert killed
    assert_complete(path)


def test_the_command_shows_all_workers_in_one_display(path: Path, workers: Workers) -> None:
    options = ("--device", "cpu", "--family", "tsm2", "--no-pairs", "--max-trials", "1", "--db", str(path))
    result = run("--cluster", workers.address, "--shapes", "64x2x64,32x2x64", *options)
    assert result.exit_code == 0, result.output
    told = [line for line in result.stdout.splitlines() if line.startswith("127.0.0.1:")]
    assert [len([line for line in told if said in line]) for said in (": cpu ", " new trial")] == [2, 2]
    assert "next: tsm2-tune best" in result.stdout


HOSTILE: tuple[Any, ...] = (
    *(None, 1, "", "x", "{}", "[]", [], {}, ["127.0.0.1", [], ""], b"cos\nsystem\n(S'false'\ntR.", "[" * 100_000),
    *('{"is": "OpenDevice"}', '{"is": "TrialEnded"}', '{"is": "Opened", "target": 1}', '{"is": "TuneError"}'),
)


@pytest.mark.parametrize("item", HOSTILE, ids=lambda item: str(item)[:20])
def test_what_is_no_message_ends_its_worker(item: object) -> None:
    channel = clusters.DaskChannel(cast(Any, None), "")
    channel.received.append(item)
    answer = channel.recv()
    assert isinstance(answer, Failed)
    assert str(answer.error).startswith("its worker sent no valid message (")


def test_workers_need_no_way_to_the_database(server: TestServer, workers: Workers, spied: Spied) -> None:
    with suppress(Exception):
        server.sql("CREATE ROLE secretive LOGIN SUPERUSER PASSWORD 'hunter2'")
    name = server.new().partition("@/")[2].partition("?")[0]
    records = spied(clusters, "encode")
    assert tuned(server.url(name, "secretive:hunter2"), workers).is_complete
    sent = [encode(one) for (one,) in records]
    assert len(sent) > 4
    assert not any("hunter2" in one or name in one for one in sent)


def test_who_stops_stops_all(path: Path, workers: Workers) -> None:
    def stop(event: Event) -> None:
        if trial_of(event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(path, workers, stop)
    assert plain_sql(path, "SELECT * FROM lease") == []


def test_other_versions_are_refused(path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "__version__", "0.0.9")
    with pytest.raises(ToolMissing, match=r"has tsm2-tune .* on Python .*, and this is 0.0.9 on .*: install"):
        tuned(path, workers)
    assert not path.exists()


def test_a_scheduler_that_dies_is_an_error(path: Path, tmp_path: Path) -> None:
    def kill(event: Event) -> None:
        if trial_of(event):
            dying.close()

    with cluster(tmp_path) as dying:
        dying.have(1)
        with pytest.raises(WorkerError, match="does not answer any more"):
            tuned(path, dying, kill)


def test_what_no_cluster_has_is_refused(path: Path, tmp_path: Path) -> None:
    with cluster(tmp_path) as none, pytest.raises(DeviceError, match="has no workers: start some with"):
        tuned(path, none)


NOWHERE = ["tcp://127.0.0.1:1", "tcp://127.0.0.1", "nowhere", "tls://127.0.0.1:1", "ucx://a:1"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("address", "device", "refusal", "said"),
    [
        *((one, "cpu", DeviceError, rf"no Dask scheduler answers at {one} ") for one in NOWHERE),
        (NOWHERE[0], "0,1", InputError, "--device 0,1 names a device of this machine"),
        ("", "cpu", ToolMissing, r"--cluster needs Dask: .*pip install distributed"),
    ],
)
def test_what_no_cluster_is_or_has_is_said(
    path: Path, address: str, device: str, refusal: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not address:
        monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(refusal, match=said):
        tsm2_tune.tune("64x2x64", cluster=address or NOWHERE[0], device=device, db=path)
    gc.collect()  # an unfinished call must be harmless as garbage
