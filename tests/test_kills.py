"""A tuning that is killed, or whose worker is, goes on with nothing lost, doubled, misjudged or left behind.

`KILLS=100 python -m pytest tests/test_kills.py -k killed` kills each kind of process a hundred times, at random
moments of a small tuning on the host. Then the same command goes on to its end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.command import run
from tests.conftest import copy_cache
from tests.databases import dump
from tests.fabricated import plain_sql
from tests.on_host import has_compiler
from tests.processes import ROOT
from tests.quick_command import LONG_TRIALS
from tests.servers import wait_until
from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

TRIALS = 2
TUNE = ("--device", "cpu", "--shapes", "16x1x16", "--family", "tsm2", "--max-trials", str(TRIALS), "--budget", "0")
MARK = "TSM2_TUNE_KILLED"  # in the environment of all that a run starts
OF_COMPILERS = ("cc1plus", "as", "collect2", "ld", "g++", "clang++", "c++")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
STAGES = (-1, 0, 0, 1, 1)  # trials from which on a kill may come: before, the search begins
REASONS = ("interrupted by the machine", "died while it opened", "measuring the device's ceilings", "own kernels")
LIMIT_SECONDS = 300.0  # for a tuning
STORED = "SELECT config, outcome FROM trial"
LEFT = {  # what an ended tuning leaves in its database
    "PRAGMA integrity_check": [("ok",)],
    "PRAGMA foreign_key_check": [],
    "SELECT owner FROM lease WHERE owner <> ''": [],
    "SELECT count(*) FROM measurement WHERE round = 0": [(TRIALS,)],
    "SELECT count(*) FROM best": [(1,)],
}


@dataclass(slots=True)
class Place:
    """Folders of a tuning process, which has its own for all that it writes."""

    folder: Path
    warm: Path  # a cache of compiled kernels to begin with
    has_long_trials: bool  # so that kernels are running when their worker is killed
    mark: str = field(default_factory=lambda: f"{os.getpid()}-{random.getrandbits(64):x}")

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir(parents=True)
        shutil.copytree(self.warm, self.folder / "cache")

    @property
    def database(self) -> Path:
        return self.folder / "results.db"

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """Begin to tune, in a session of its own. The process does not outlive the block."""
        own = {MARK: self.mark, "TMPDIR": f"{self.folder}/tmp", "XDG_CACHE_HOME": f"{self.folder}/cache"}
        own |= {MACHINE_VARIABLE: self.mark, LONG_TRIALS: "1" if self.has_long_trials else ""}
        with subprocess.Popen(
            [sys.executable, "-m", "tests.quick_command", *TUNE, "--db", str(self.database)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env=os.environ | own, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def processes(self) -> dict[int, list[str]]:
        """Number and command of all that was started here and still runs, whoever its parent is by now."""
        mark = f"{MARK}={self.mark}".encode()
        tmpdir = f"TMPDIR={self.folder}/".encode()  # which alone compilers have
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal():
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    if any(one == mark or one.startswith(tmpdir) for one in variables):
                        command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                        found[int(entry.name)] = command
        return found

    def processes_of(self, kind: str) -> list[int]:
        return [number for number, command in self.processes().items() if HELPERS[kind](command)]

    def has_come_to(self, stage: int) -> bool:
        stored = trials(self.database)
        return stage < 0 or (stored is not None and len(stored) >= stage)

    def files(self) -> list[str]:
        """Temporary files, and what compilers work in."""
        working = (self.folder / "cache").glob("**/working/*")
        return [str(path.relative_to(self.folder)) for path in (*(self.folder / "tmp").iterdir(), *working)]

    def assert_gone(self) -> None:
        """Every process that was started is gone, or soon is."""
        wait_until(lambda: not self.processes(), 20)


def trials(path: Path, sql: str = STORED) -> list[tuple[object, ...]] | None:
    """Return the stored trials; None if there is no database yet."""
    has_any = path.exists() and plain_sql(path, "SELECT 1 FROM sqlite_master WHERE name = 'trial'")
    return plain_sql(path, sql) if has_any else None


def is_worker(command: Sequence[str]) -> bool:
    return any(part.endswith(("worker.server:serve", "quick_worker:serve")) for part in command)


def is_compiler(command: Sequence[str]) -> bool:
    """Whether it compiles a kernel, in a folder of the cache."""
    is_part = bool(command) and Path(command[0]).name.startswith(OF_COMPILERS)
    return is_part and any("/working/" in part for part in command)


HELPERS: dict[str, Callable[[Sequence[str]], bool]] = {"worker": is_worker, "compiler": is_compiler}


def killed(place: Place, what: str, rng: random.Random, kills: int) -> int:
    """Kill processes of this kind at random moments. Return the run's exit status."""
    with place.started() as process:
        for _ in range(kills):
            stage = max(rng.choice(STAGES), 0 if what == "compiler" else -1)  # a compiler of kernels
            while process.poll() is None and not place.has_come_to(stage):
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 0.5))
            victims: list[int] = []
            while process.poll() is None and not victims:
                victims = [process.pid] if what == "main" else place.processes_of(what)
            if victims:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), rng.choice(SIGNALS))
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    by_signal = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGTERM, 128 + signal.SIGHUP}
    assert process.returncode in ({0} | by_signal if what == "main" else {0, 1, 2}), output
    assert "Traceback" not in output, output
    assert process.returncode not in (1, 2) or any(reason in output for reason in REASONS), output
    return process.returncode


@pytest.fixture(scope="module")
def warm(session_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the kernels."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(*TUNE, "--db", str(folder / "results.db")).exit_code == 0
    copy_cache(folder / "cache")
    return folder / "cache"


@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("KILLS", "1"))))
@pytest.mark.parametrize("what", ["main", *HELPERS])
def test_who_is_killed(what: str, seed: int, warm: Path, tmp_path: Path) -> None:
    rng = random.Random(seed)
    place = Place(tmp_path, warm, has_long_trials=what == "worker")
    if what == "compiler":  # with all kernels in the cache no compiler runs that could be killed
        for binary in sorted((place.folder / "cache").rglob("*.so"))[rng.randrange(2) :: 2]:
            for path in (binary, binary.with_suffix(".json")):
                path.unlink(missing_ok=True)
    status = killed(place, what, rng, kills=1 if what == "main" else rng.choice((1, 2, 3)))
    place.assert_gone()
    assert status == -signal.SIGKILL or place.files() == []  # whoever ends by himself cleans up at once
    before = set(trials(place.database) or ())
    with place.started() as process:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, output
    after = trials(place.database) or []
    assert len(after) == len(set(after)) == TRIALS
    assert before <= set(after)
    assert {outcome for _, outcome in after} == {"ok"}, "a verdict that no kernel deserves"
    assert {sql: plain_sql(place.database, sql) for sql in LEFT} == LEFT
    place.assert_gone()
    assert place.files() == []


ON_HOST = ("--device", "cpu", "--family", "tsm2", "--no-pairs")  # which pairs there are depends on who wins
TUNE_TWO = (
    *ON_HOST,
    "--shapes",
    "64x2x64,33x3x17",
    "--max-trials",
    "8",
    "--strategy",
    "exhaustive",
)  # the candidates in the order of the space
MOST_RUNS = 4  # a last final may make a kernel the fastest that was not in it: the next run measures another
ALL = "SELECT m, n, k, config, outcome FROM trial JOIN problem AS p ON p.id = problem_id ORDER BY 1, 2, 3, 4"


def killed_at(path: Path, count: int) -> set[tuple[object, ...]]:
    """The trials that are stored, when a process was killed as soon as there were so many."""
    command = [sys.executable, "-m", "tests.quick_command", *TUNE_TWO, "--db", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        wait_until(lambda: process.poll() is not None or len(trials(path, ALL) or ()) >= count)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    return set(plain_sql(path, ALL))


def test_killed_twice_it_ends_the_same_and_then_does_nothing_new(tmp_path: Path) -> None:
    whole, killed, stored = tmp_path / "whole.db", tmp_path / "killed.db", set[tuple[object, ...]]()
    assert run(*TUNE_TWO, "--db", str(whole)).exit_code == 0
    for moment in (1, 9):  # in the first problem, and in the second
        now = killed_at(killed, moment)
        assert stored <= now
        assert len(now) < 16, "it was killed too late"
        stored = now
    assert run(*TUNE_TWO, "--db", str(killed)).exit_code == 0
    assert stored <= set(plain_sql(killed, ALL))
    assert [row[:-1] for row in plain_sql(killed, ALL)] == [row[:-1] for row in plain_sql(whole, ALL)]
    problems = "SELECT m, n, k FROM best ORDER BY 1, 2, 3"
    assert plain_sql(killed, problems) == plain_sql(whole, problems)
    assert plain_sql(killed, "PRAGMA integrity_check") == [("ok",)]
    for _ in range(MOST_RUNS):
        before = dump(whole)
        again = run(*TUNE_TWO, "--db", str(whole))
        assert (again.exit_code, again.output.count("(0 new trials")) == (0, 2)
        if dump(whole) == before:
            return
    pytest.fail("each run measured another final")
