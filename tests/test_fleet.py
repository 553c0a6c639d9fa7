"""Runs on several devices: processes of this machine, which use the host by several names, and Dask's workers."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

import tsm2_tune
from tests.command import completed
from tests.dask_cluster import END_SECONDS, Workers, cluster
from tests.fabricated import plain_sql
from tests.forked_workers import fork_child
from tests.quick_members import SHAPES, TRIALS, assert_complete, quick_members
from tests.servers import TestServer, wait_until
from tests.standing_in import Spied
from tsm2_tune.errors import DeviceError, InputError, ToolMissing, WorkerError
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.target import Target, find_target
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Trial
from tsm2_tune.tuner.runs import dask_cluster as clusters
from tsm2_tune.tuner.runs.events import (
    Event,
    FleetStarted,
    OfRun,
    ProblemEnded,
    ProblemStarted,
    RunEnded,
    TrialStored,
)
from tsm2_tune.tuner.runs.messages import Failed, encode
from tsm2_tune.tuner.runs.signals import Stopped

pytestmark = [pytest.mark.usefixtures("session_cache"), pytest.mark.slow]

PROBLEMS = sorted(f"{one}:f32" for one in SHAPES.split(","))


@pytest.fixture(autouse=True)
def members(monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain) -> list[Any]:
    """Processes of runs, in the order in which they were started."""
    return quick_members(monkeypatch.setattr, fork_child)


@pytest.fixture(scope="module")
def scheduler(
    tmp_path_factory: pytest.TempPathFactory, session_cache: None, toolchain: Toolchain
) -> Iterator[Workers]:
    """One for all tests that leave it alive."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'tsm2-tune[dask]'")
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


def pretended(*names: str) -> list[Target]:
    """The host as several devices of these names."""
    host = find_target("cpu")
    identities = [replace(host.identity, name=name, uuid=f"pretended {at}") for at, name in enumerate(names)]
    return [replace(host, identity=one) for one in identities]


Tell = Callable[[Event], object]
Devices = list[Target] | Workers


def tuned(path: Path | str, devices: Devices, on_event: Tell | None = None, **options: Any) -> tsm2_tune.TuningResult:
    chosen: dict[str, Any] = {"max_trials": TRIALS, "family": "tsm2", "pairs": False, "budget": None} | options
    chosen |= {"device": "cpu", "cluster": devices.address} if isinstance(devices, Workers) else {"device": devices}
    return tsm2_tune.tune(SHAPES, db=path, on_event=on_event, **chosen)


def alive(members: list[Any]) -> list[Any]:
    return [one for one in members if one.poll() is None]


@pytest.fixture(params=["local", "dask"])
def two(request: pytest.FixtureRequest) -> Devices:
    """Two devices of one kind."""
    if request.param == "local":
        return pretended("card", "card")
    workers: Workers = request.getfixturevalue("workers")
    return workers


def test_a_device_that_is_killed_costs_nothing_but_time(path: Path, two: Devices, members: list[Any]) -> None:
    events: list[Event] = []

    def kill_one(event: Event) -> None:
        if trial_of(event) and not any(map(trial_of, events)):
            if isinstance(two, Workers):
                two.kill(0)
            else:  # the one that tried it: it has been asked for more of the problem
                members[("cpu", "cpu (1)").index(cast(OfRun, event).run)].kill()
        events.append(event)

    result = tuned(path, two, kill_one)
    assert_complete(path)
    lost = "its worker is lost" if isinstance(two, Workers) else "its process was killed by SIGKILL"
    assert sorted(event.trouble for event in events if isinstance(event, RunEnded)) == ["", lost]
    assert (len(result.winners), result.unfinished, result.is_complete) == (3, (), True)
    told = [trial.trial_id for trial in map(trial_of, events) if trial]
    assert len(set(told)) == len(told)
    assert set(told) <= {number for (number,) in plain_sql(path, "SELECT id FROM trial")}


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ZeroDivisionError])
def test_no_run_outlives_who_asked_for_it(
    path: Path, two: Devices, members: list[Any], raised: type[BaseException]
) -> None:
    def stop(event: Event) -> None:
        if trial_of(event):
            raise raised

    with pytest.raises(raised):
        tuned(path, two, stop)
    assert (len(members), alive(members)) == (0 if isinstance(two, Workers) else 2, [])
    assert plain_sql(path, "SELECT * FROM lease") == []  # they were asked to end, and gave everything back


# Processes of this machine


def test_two_runs_divide_the_problems(path: Path, members: list[Any]) -> None:
    events: list[Event] = []
    result = tuned(path, pretended("card", "card"), events.append)
    assert_complete(path)
    assert sorted(one.problem.text for one in result.ended) == PROBLEMS
    assert [one.new_trials for one in result.ended] == [TRIALS] * 3
    assert (len(result.winners), result.unfinished, result.unsolved, len(result.targets)) == (3, (), (), 2)
    assert isinstance(events[0], FleetStarted)
    assert events[0].runs == ("cpu", "cpu (1)")
    assert {one.run for one in events if isinstance(one, OfRun) and trial_of(one)} == {"cpu", "cpu (1)"}
    begun = [one.event.space for one in events if isinstance(one, OfRun) and isinstance(one.event, ProblemStarted)]
    assert {len(space.kept) for space in begun} <= {19, 38}
    assert (len(members), alive(members)) == (2, [])


def test_where_every_run_dies_it_is_an_error(path: Path, members: list[Any]) -> None:
    def kill_all(event: Event) -> None:
        if trial_of(event):
            for process in alive(members):
                process.kill()

    with pytest.raises(WorkerError, match="its process was killed by SIGKILL"):
        tuned(path, pretended("card", "card"), kill_all)


def test_cards_of_two_kinds_each_tune_every_problem(path: Path, members: list[Any]) -> None:
    def kill_the_other(event: Event) -> None:
        if isinstance(event, OfRun) and isinstance(event.event, ProblemEnded) and event.run == "cpu (1)":
            members[1].kill()

    result = tuned(path, pretended("one", "another"), kill_the_other)
    assert len(result.unfinished) == 2  # what no run of a kind has ended is left
    assert not result.is_complete
    result = tuned(path, pretended("one", "another"))
    assert_complete(path, kinds=2)
    assert len(result.ended) == len(result.winners) == 6


def test_a_kind_of_which_no_device_opens_is_left(path: Path) -> None:
    one, another = pretended("one", "another")
    toolchain = replace(one.toolchain, compiler="/bin/false")
    broken = [replace(target, toolchain=toolchain) for target in (one, another)]
    result = tuned(path, [one, broken[1]])
    assert len(result.winners) == 3
    assert sorted(problem.text for problem in result.unfinished) == PROBLEMS
    with pytest.raises(ToolMissing, match="/bin/false does not compile the tuner's own kernels"):
        tuned(path, broken)


def test_a_signal_counts_the_trials_that_a_lost_server_cannot_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[int]()

    def away(_: Store, __: object, trials: Sequence[Trial], *___: object) -> NoReturn:
        refused.append(len(trials))
        raise Lost("away")

    def stop(event: Event) -> None:
        if trial_of(event):
            monkeypatch.setattr(Store, "add_trials", away)
            wait_until(lambda: bool(refused))
            raise Stopped

    with pytest.raises(Stopped) as ended:
        tuned(path, pretended("card", "card"), stop, max_trials=20)
    assert ended.value.unstored >= refused[0]


PROGRAM = """
import os, signal, sys
from tests.quick import keep_answers
from tests.quick_members import quick_members
from tests.test_fleet import pretended, tuned
from tsm2_tune.tuner.runs import fleet
class Last(fleet.RemoteExecutor):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
keep_answers(setattr)
quick_members(setattr)
if sys.argv[2] == "at once":
    fleet.RemoteExecutor = Last
tuned(sys.argv[1], pretended("card", "card"), max_trials=None)
"""


@pytest.mark.parametrize("when", ["at once", "after a trial"])
def test_nothing_outlives_who_asked_for_it_and_was_killed(path: Path, when: str) -> None:
    """A run that was sent by who was killed since does not begin."""
    mark = f"TSM2_TUNE_FLEET={os.getpid()} {when}"
    environment = {**os.environ, "TSM2_TUNE_FLEET": mark.partition("=")[2], "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), when], env=environment) as process:
        if when == "after a trial":
            wait_until(
                lambda: path.exists() and bool(plain_sql(path, "SELECT 1 FROM sqlite_master WHERE name = 'best'"))
            )
            wait_until(lambda: bool(plain_sql(path, "SELECT id FROM trial")), 120)
            process.kill()
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not any(mark.encode() in one for one in environments()), 120)
    assert bool(plain_sql(path, "SELECT id FROM trial")) == (when == "after a trial")


def environments() -> Iterator[bytes]:
    """Yield the environment of each process on this machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                yield (entry / "environ").read_bytes()


# Dask's workers


def test_a_worker_that_comes_takes_the_place_of_the_last_one(
    path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "RETURN_SECONDS", END_SECONDS)  # a busy machine starts it late
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
    result = completed("--cluster", workers.address, "--shapes", "64x2x64,32x2x64", *options)
    told = [line for line in result.stdout.splitlines() if line.startswith("127.0.0.1:")]
    assert [len([line for line in told if said in line]) for said in (": cpu ", " new trial")] == [2, 2]


def test_workers_need_no_way_to_the_database(server: TestServer, workers: Workers, spied: Spied) -> None:
    with suppress(Exception):
        server.sql("CREATE ROLE secretive LOGIN SUPERUSER PASSWORD 'hunter2'")
    name = server.new().partition("@/")[2].partition("?")[0]
    records = spied(clusters, "encode")
    assert tuned(server.url(name, "secretive:hunter2"), workers).is_complete
    sent = [encode(one) for (one,) in records]
    assert len(sent) > 4
    assert not any("hunter2" in one or name in one for one in sent)


def test_what_is_no_message_ends_its_worker() -> None:
    channel = clusters.DaskChannel(None, "name")
    channel.received.append('{"is": "OpenDevice"}')
    answer = channel.recv()
    assert isinstance(answer, Failed)
    assert str(answer.error).startswith("its worker sent no valid message (")


def test_other_versions_are_refused(path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "__version__", "0.0.9")
    with pytest.raises(ToolMissing, match=r"has tsm2-tune .* on Python .*, and this is 0.0.9 on .*: install"):
        tuned(path, workers)
    assert not path.exists()


def test_a_scheduler_that_dies_or_has_no_workers_is_an_error(path: Path, tmp_path: Path, scheduler: Workers) -> None:
    def kill(event: Event) -> None:
        if trial_of(event):
            dying.close()

    with cluster(tmp_path) as dying:
        with pytest.raises(DeviceError, match="has no workers: start some with"):
            tuned(path, dying)
        dying.have(1)
        with pytest.raises(WorkerError, match="does not answer any more"):
            tuned(path, dying, kill)


NOWHERE = ["tcp://127.0.0.1:1", "nowhere", "tls://127.0.0.1:1"]


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
    pytest.importorskip("distributed")
    if not address:
        monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(refusal, match=said):
        tsm2_tune.tune("64x2x64", cluster=address or NOWHERE[0], device=device, db=path)
    gc.collect()  # an unfinished call must be harmless as garbage
