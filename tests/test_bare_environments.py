"""Streams that are closed, and sizes and variables that are empty or 0: nothing is known of them, and all works."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.command import TUNE, run
from tests.databases import database_of
from tests.fabricated import trial
from tests.processes import python
from tests.standing_in import Disk
from tsm2_tune import export
from tsm2_tune.console import tables
from tsm2_tune.tuner.compile.environment import program_path
from tsm2_tune.tuner.compile.failure_cause import refuse_full_disk
from tsm2_tune.tuner.device.emulator import limits
from tsm2_tune.tuner.doctor import storage
from tsm2_tune.tuner.doctor.finding import Question
from tsm2_tune.tuner.results.storage.mounts import free_bytes_of

NO_FOLDER = "no folder for the cache: set XDG_CACHE_HOME or HOME to an absolute path"


def closed(
    streams: str, *arguments: str, folder: Path, module: str = "tsm2_tune"
) -> subprocess.CompletedProcess[str]:
    """Run the command from a shell that closes these streams first."""
    script = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(script, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("streams", "command", "status"),
    [
        ("2>&-", "best", 2), (">&-", "best", 2), (">&-", "devices", 0), ("<&-", "cache show", 0),
        ("<&- >&- 2>&-", "devices", 0), ("<&- >&- 2>&-", "--shapes 8", 2),
    ],
)  # fmt: skip
def test_a_closed_stream_changes_no_exit_status(streams: str, command: str, status: int, tmp_path: Path) -> None:
    ended = closed(streams, *command.split(), folder=tmp_path)
    assert ended.returncode == status, ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_run_with_closed_streams_stores_its_trials(tmp_path: Path) -> None:
    """No file of it has the number of standard error, to which others write."""
    tuned = closed("<&- >&- 2>&-", *TUNE, "--db", "results.db", folder=tmp_path, module="tests.quick_command")
    assert tuned.returncode == 0
    assert "1 trial" in closed("2>&-", "db", "check", "--db", "results.db", folder=tmp_path).stdout


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom a container's image does not know."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (TUNE, 2),
        (("ladder", "--device", "cpu", "--shapes", "64x64x64"), 2),
        (("record", "--output", "-", "--", "true"), 2),
        (("import", "trials.jsonl", "--db", "results.db"), 0),
        (("cache", "show"), 2),
        (("best",), 2),
    ],
)
@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_is_told_what_to_set(
    arguments: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database_of("tuned.db", trial())
    export("tuned.db", format="trials", output="trials.jsonl")
    ended = run(*arguments)
    assert ended.exit_code == status, ended.output
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    assert (NO_FOLDER in ended.output) is (arguments[0] not in ("import", "best"))


def test_no_module_asks_for_a_folder_where_it_is_imported(tmp_path: Path) -> None:
    script = "import pwd; pwd.getpwuid = {}.__getitem__; from tsm2_tune.__main__ import main; main()"
    environment = {"PYTHONPATH": os.getcwd(), "PATH": os.environ["PATH"]}
    ended = python("-c", script, *TUNE, env=environment, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (2, f"Error: {NO_FOLDER}\n")


@pytest.mark.usefixtures("homeless")
def test_the_doctor_finds_no_cache_without_a_home() -> None:
    (found,) = storage.cache(Question("cpu", "results.db"))
    assert (found.state, found.found) == ("problem", NO_FOLDER)


def test_empty_variables_and_sizes_of_0_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "00")
    assert tables.console().width == Console(_environ={}).width > 0
    monkeypatch.setenv("COLUMNS", "30")
    assert tables.console(stderr=True).width == 30
    monkeypatch.setenv("PATH", "")
    assert program_path("sh") == shutil.which("sh", path=os.defpath) is not None
    monkeypatch.setattr(os, "sysconf", lambda _: 0)
    assert limits.memory_bytes() > 0


def test_a_disk_of_no_size_is_not_full(disk: Disk, tmp_path: Path) -> None:
    """Some file systems in user space report a size of 0."""
    disk(f_blocks=0, f_bavail=0, f_frsize=0, f_files=0, f_favail=0)
    refuse_full_disk(tmp_path)
    assert free_bytes_of(tmp_path) is None
    assert storage._of_space("cache", "it", None).state == "ok"
