"""Kill the tuner, its worker or its compilers at random moments of a small tuning on the host, and look what is left.

Each time: a tuning of kernels that are all right is started and killed; then the same command goes on to its end. The
database must open and be whole, what was stored must still be there, every trial must be there once and be right, and
neither a process nor a temporary file may be left.

`python -m tests.kills --device cpu ...` is the command as it is, but for kernels that are compiled quickly.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE

ROOT = Path(__file__).parents[1]
SHAPE, TRIALS = "16x1x16", 2
TUNE = ["--device", "cpu", "--shapes", SHAPE, "--family", "tsm2", "--max-trials", str(TRIALS), "--budget", "0"]
MARK = "TSM2_TUNE_KILLED"  # in the environment of all that a run starts
OF_COMPILERS = ("cc1plus", "as", "collect2", "ld", "g++", "clang++", "c++")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
STAGES = (-1, 0, 0, 1, 1)  # trials from which on a kill may come: before, the search begins
REASONS = ("interrupted by the machine", "died while it opened", "measuring the device's ceilings", "own kernels")
END_SECONDS = 20.0  # for what was started to be gone
LIMIT_SECONDS = 300.0  # for a tuning


@dataclass(slots=True)
class Place:
    """Folders of a tuning process, which has its own for all that it writes."""

    folder: Path
    warm: Path | None  # a cache of compiled kernels to begin with
    command: str = "tsm2_tune"  # the module that tunes
    mark: str = field(default_factory=lambda: f"{os.getpid()}-{random.getrandbits(64):x}")

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir(parents=True)
        if self.warm is None:
            (self.folder / "cache").mkdir()
        else:
            shutil.copytree(self.warm, self.folder / "cache")

    @property
    def database(self) -> Path:
        return self.folder / "results.db"

    def start(self) -> subprocess.Popen[str]:
        """Begin to tune, in a session of its own."""
        own = {MARK: self.mark, "TMPDIR": f"{self.folder}/tmp", "XDG_CACHE_HOME": f"{self.folder}/cache"}
        return subprocess.Popen(
            [sys.executable, "-m", self.command, *TUNE, "--db", str(self.database)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env={**os.environ, **own, MACHINE_VARIABLE: self.mark}, start_new_session=True,
        )  # fmt: skip

    def processes(self) -> dict[int, list[str]]:
        """Number and command of all that was started here and still runs, whoever its parent is by now."""
        mark = f"{MARK}={self.mark}".encode()
        tmpdir = f"TMPDIR={self.folder}/".encode()  # which alone compilers have
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                if any(one == mark or one.startswith(tmpdir) for one in variables):
                    command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    found[int(entry.name)] = command
            except OSError:
                continue
        return found

    def files(self) -> list[str]:
        """Temporary files, and what compilers work in."""
        working = (self.folder / "cache").glob("**/working/*")
        return [str(path.relative_to(self.folder)) for path in (*(self.folder / "tmp").iterdir(), *working)]

    def trials(self) -> set[tuple[object, ...]]:
        """Return the stored trials; none if there is no database yet."""
        return set(asked(self.database, "SELECT config, outcome FROM trial")) if has_trials(self.database) else set()


def asked(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        return connection.execute(sql).fetchall()


def has_trials(path: Path) -> bool:
    return path.exists() and bool(asked(path, "SELECT 1 FROM sqlite_master WHERE name = 'trial'"))


def is_worker(command: Sequence[str]) -> bool:
    return any(part.endswith(("worker.server:serve", "quick_worker:serve")) for part in command)


def is_compiler(command: Sequence[str]) -> bool:
    """Whether it compiles a kernel, in a folder of the cache."""
    is_part = bool(command) and Path(command[0]).name.startswith(OF_COMPILERS)
    return is_part and any("/working/" in part for part in command)


HELPERS: dict[str, Callable[[Sequence[str]], bool]] = {"worker": is_worker, "compiler": is_compiler}


def killed(place: Place, what: str, rng: random.Random, most_seconds: float, kills: int) -> int:
    """Kill processes of this kind at random moments. Return the run's exit status."""
    with ended(place.start()) as process:
        for _ in range(kills):
            stage = rng.choice(STAGES)
            wait_for_stage(place, process, max(stage, 0) if what == "compiler" else stage)  # a compiler of kernels
            until = time.monotonic() + rng.uniform(0, most_seconds)
            while time.monotonic() < until and process.poll() is None:
                time.sleep(0.01)
            if victims := wait_for_victim(place, process, what):
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), rng.choice(SIGNALS))
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    check_end(process.returncode, output, what)
    return process.returncode


def wait_for_stage(place: Place, process: subprocess.Popen[str], trials: int) -> None:
    """Until the database has so many trials; below 0 not at all, at 0 until there is one."""
    while trials >= 0 and process.poll() is None:
        if has_trials(place.database) and len(place.trials()) >= trials:
            return
        time.sleep(0.02)


def wait_for_victim(place: Place, process: subprocess.Popen[str], what: str) -> list[int]:
    """The processes of the kind, as soon as there is one; none where the run ends before."""
    while process.poll() is None:
        if what == "main":
            return [process.pid]
        victims = [number for number, command in place.processes().items() if HELPERS[what](command)]
        if victims:
            return victims
        time.sleep(0.01)
    return []


def check_end(status: int, output: str, what: str) -> None:
    """A run that is killed ends as the signal says; one whose helpers are killed goes on, or says what it lacks."""
    allowed = {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGTERM, 128 + signal.SIGHUP}
    if what != "main":
        allowed = {0, 1, 2}
    if status not in allowed:
        raise AssertionError(f"exit status {status}: {output}")
    if "Traceback" in output:
        raise AssertionError(output)
    if status in (1, 2) and not any(reason in output for reason in REASONS):
        raise AssertionError(f"exit status {status} for no reason: {output}")


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, which does not outlive this."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def check_gone(place: Place) -> None:
    """Every process that was started is gone, or soon is."""
    end = time.monotonic() + END_SECONDS
    while found := place.processes():
        if time.monotonic() > end:
            raise AssertionError(f"still running: {found}")
        time.sleep(0.02)


def check_continued(place: Place, before: set[tuple[object, ...]]) -> None:
    """The same command ends with every trial, each once and right."""
    with ended(place.start()) as process:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode != 0:
        raise AssertionError(f"continued, exit status {process.returncode}: {output}")
    trials = asked(place.database, "SELECT config, outcome FROM trial")
    if len(trials) != TRIALS or len(set(trials)) != TRIALS or not before <= set(trials):
        raise AssertionError(f"before {before}, after {trials}")
    if any(outcome != "ok" for _, outcome in trials):
        raise AssertionError(f"a verdict that no kernel deserves: {trials}")
    for sql, answer in (
        ("PRAGMA integrity_check", [("ok",)]),
        ("PRAGMA foreign_key_check", []),
        ("SELECT owner FROM lease WHERE owner <> ''", []),
        ("SELECT count(*) FROM measurement WHERE round = 0", [(TRIALS,)]),
        ("SELECT count(*) FROM best", [(1,)]),
    ):
        if (found := asked(place.database, sql)) != answer:
            raise AssertionError(f"{sql}: {found}")
    check_gone(place)
    if files := place.files():
        raise AssertionError(f"left behind: {files}")


def try_once(place: Place, what: str, rng: random.Random, *, seconds: float, kills: int) -> None:
    """One tuning, killed and continued."""
    status = killed(place, what, rng, seconds, kills)
    check_gone(place)
    if status != -signal.SIGKILL and (files := place.files()):  # whoever ends by himself cleans up at once
        raise AssertionError(f"left behind at once: {files} ({status})")
    check_continued(place, place.trials())


def lose_half(cache: Path, rng: random.Random) -> None:
    """Remove every second compiled kernel: with all of them no compiler runs that could be killed."""
    binaries = sorted(cache.rglob("*.so"))
    for binary in binaries[rng.randrange(2) :: 2]:
        for path in (binary, binary.with_suffix(".json")):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    from tests.quick import keep_answers
    from tests.quick_command import compile_quickly
    from tsm2_tune.__main__ import main

    keep_answers(setattr)
    compile_quickly(setattr)
    main()
