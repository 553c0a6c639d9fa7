"""Databases on a network file system, and in places that cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tsm2_tune
from tests.command import completed, run
from tests.databases import database_of
from tests.fabricated import configuration, downgrade, plain_sql, trial
from tests.reported import LIBRARY
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import mounts
from tsm2_tune.tuner.results.storage.mounts import network_of
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.usefixtures("session_cache")
LOCAL = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
READ = ("best", "show", "show 1", "export --format trials --output -", "report --output -")


def mounted(monkeypatch: pytest.MonkeyPatch, folder: Path, *mounts_there: tuple[str, str]) -> None:
    """Have these places, each with a type, be mounted there."""
    table = folder / "mountinfo"
    lines = [f"40 22 0:50 / {at} rw,relatime - {kind} server:/home rw,vers=4.2\n" for at, kind in mounts_there]
    table.write_text(LOCAL + "".join(lines))
    monkeypatch.setattr(mounts, "MOUNTS", table)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of two trials on a network file system."""
    path = tmp_path / "share" / "results.db"
    path.parent.mkdir()
    database_of(path, *(trial(500.0, configuration(threads)) for threads in (128, 256)))
    mounted(monkeypatch, tmp_path, (str(path.parent), "nfs4"))
    return path


@pytest.mark.parametrize(
    ("mounts_there", "kind"),
    [
        ([("/data", "nfs4")], "nfs4"),
        ([("/data", "nfs4"), ("/data/own", "xfs")], ""),
        ([("/data/own", "ext4"), ("/data", "cifs")], ""),
        ([("/data/own", "ext4"), ("/data/own", "9p")], "9p"),
        ([("/data", "fuse.sshfs")], "fuse.sshfs"),
        ([("/data", "fuse.fuse-overlayfs")], ""),
        ([("/data", "fuseblk")], ""),
        ([("/data/own\\040files", "nfs"), ("/data", "beegfs")], "beegfs"),
        ([("/", "lustre"), ("/data/own/results.db", "tmpfs")], ""),
        ([("/", "gpfs")], "gpfs"),
        ([("/dat", "smb3")], ""),
        ([], ""),
    ],
)
def test_the_mount_that_a_file_is_on_decides(
    mounts_there: list[tuple[str, str]], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, tmp_path, *mounts_there)
    assert network_of(Path("/data/own/results.db")) == kind
    mounted(monkeypatch, tmp_path, *((at.replace("own", "own\\040one"), kind) for at, kind in mounts_there))
    assert network_of(Path("/data/own one/results.db")) == kind


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        pytest.param("--device cpu --shapes 16x1x16 --db {new}", marks=pytest.mark.slow),
        "import {remote} --db {new}",
        "import {local} --db {remote}",
        "forget 1 --db {remote}",
    ],
)
def test_nothing_is_written_there(command: str, is_older: bool, remote: Path, tmp_path: Path) -> None:
    new, local = remote.with_name("new.db"), Path(shutil.copy(remote, tmp_path / "local.db"))
    if is_older:
        downgrade(remote)
    before = remote.read_bytes()
    said = run(*command.format(new=new, local=local, remote=remote).split())
    assert said.exit_code == 2
    assert "is on a network file system (nfs4), where two machines that write to a SQLite file corrupt" in said.stderr
    assert "for several machines a PostgreSQL database, postgresql+psycopg://user@host/name" in said.stderr
    assert run("best", "--db", str(remote)).exit_code == 0
    assert os.listdir(remote.parent) == [remote.name]
    assert remote.read_bytes() == before


def test_it_can_be_read_without_locks_and_without_files(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_charts = SimpleNamespace(javascript_bundle=lambda snippet: LIBRARY + snippet)
    monkeypatch.setitem(sys.modules, "vl_convert", without_charts)
    assert len(tsm2_tune.best(remote)) == 1
    for command in READ:
        completed(*command.split(), "--db", str(remote))
    assert tsm2_tune.import_trials(remote, tmp_path / "local.db").trials == 2
    assert os.listdir(remote.parent) == [remote.name]


def test_what_is_written_meanwhile_is_told(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, new = Path(shutil.copy(remote, tmp_path / "local.db")), tmp_path / "new.db"
    with Store.open(remote, create=False) as store:
        plain_sql(remote, "DELETE FROM trial WHERE id = 2")
        assert len(store.listing()) == 2  # of the copy
    check = mounts.Unchanged.check

    def late(unchanged: mounts.Unchanged) -> None:
        plain_sql(remote, "DELETE FROM sample")
        check(unchanged)

    monkeypatch.setattr(mounts.Unchanged, "check", late)
    sentence = "was written to while it was read: run this again when no run writes to it"
    with pytest.raises(StoreError, match=sentence), Store.open(remote, create=False):
        pass
    Path(f"{remote}-journal").write_bytes(b"")
    writes = pytest.raises(StoreError, match=r"-journal shows that a program writes to .*: wait")
    with writes, Store.open(remote, create=False):
        pass
    said = run("db", "merge", str(local), str(remote), "--db", str(new))
    assert (said.exit_code, "-journal shows that" in said.stderr, new.exists()) == (2, True, False)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become somebody else")
def test_a_place_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    database_of(path, trial(500.0))
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(0o755)
    text = "import sys, tsm2_tune; print(len(tsm2_tune.best(sys.argv[1])))"
    nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    done = subprocess.run(
        [*nobody, sys.executable, "-c", text, str(path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    if "No module named" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("the interpreter is in a folder that others may not read")
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert os.listdir(tmp_path) == [path.name]
