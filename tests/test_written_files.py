"""Tests of the checks that a file can be written."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from tests.command import refused
from tests.processes import python
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.written_files import refuse_unwritable, write, write_all, written


def test_a_pipe_without_a_name_of_its_own_is_written_into() -> None:
    """/dev/stdout is one if another program reads the output."""
    reads, writes = os.pipe()
    try:
        refuse_unwritable(f"/dev/fd/{writes}")
        write("kernels", f"/dev/fd/{writes}")
        assert os.read(reads, 100) == b"kernels"
        with pytest.raises(InputError, match="not a regular file"):
            refuse_unwritable(f"/dev/fd/{writes}", is_ordinary=True)
    finally:
        os.close(reads)
        os.close(writes)


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, database = tmp_path / "gone", tmp_path / "results.db"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    said = refused("export", "--format", "csv", "--output", "out.csv", path=database)
    assert "cannot write out.csv: its folder does not exist" in said
    monkeypatch.undo()


def test_a_file_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one gets what umask leaves, which is not changed for it: other threads make files too."""
    secret, new, plain = (tmp_path / name for name in ("secret", "new", "plain"))
    secret.touch(0o600)
    plain.touch()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was changed"))
    write_all({secret: b"kernels", new: b"kernels"})
    assert [stat.S_IMODE(one.stat().st_mode) for one in (secret, new)] == [0o600, stat.S_IMODE(plain.stat().st_mode)]


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    path.write_text("kept")
    path.chmod(0o444)
    for attempt in (refuse_unwritable, partial(write, "kernels")):
        with pytest.raises(InputError, match="it is read-only; make it writable, or name another --output"):
            attempt(path)
    assert path.read_text() == "kept"


@pytest.mark.parametrize("has_links", [True, False])
def test_all_files_or_none(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last file cannot be replaced after the others were."""
    first, new, last = tmp_path / "first.h", tmp_path / "new.py", tmp_path / "last.so"
    first.write_text("former")
    first.chmod(0o640)
    replace = Path.replace

    def refused(self: Path, target: Path) -> Path:
        if target == last:
            raise PermissionError(1, "Operation not permitted")
        return replace(self, target)

    def no_link(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", refused)
    if not has_links:
        monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(InputError, match=r"last.so \(Operation not permitted\)"):
        write_all({first: b"latter", new: b"latter", last: b"latter"})
    assert [one.name for one in tmp_path.iterdir()] == ["first.h"]
    assert (first.read_text(), stat.S_IMODE(first.stat().st_mode)) == ("former", 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_another_users_file_in_a_sticky_folder_is_refused_first(tmp_path: Path) -> None:
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    theirs = folder / "kernels.so"
    theirs.write_text("theirs")
    theirs.chmod(0o666)
    text = f"""
import os
from pathlib import Path
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.written_files import refuse_unwritable, write_all
os.chdir({str(folder)!r})
os.seteuid(12345)
contents = dict.fromkeys(map(Path, ("kernels.h", "kernels.so")), b"")
for attempt in (lambda: refuse_unwritable("kernels.so"), lambda: write_all(contents)):
    try:
        attempt()
    except InputError as error:
        print(error)
"""
    for above in (tmp_path, *tmp_path.parents[:3]):  # pytest's, which are this user's alone
        above.chmod(above.stat().st_mode | 0o011)
    found = python("-c", text, check=True)
    assert found.stdout.count("it belongs to another user, and in its folder only the owner can replace a file") == 2
    assert ([one.name for one in folder.iterdir()], theirs.read_text()) == (["kernels.so"], "theirs")


def test_names_may_be_as_long_as_is_allowed(tmp_path: Path) -> None:
    for length in (245, 255):
        path = tmp_path / f"{'k' * (length - 4)}.csv"
        refuse_unwritable(path)
        write("new\r\né", path)
        assert path.read_bytes() == "new\r\né".encode()
    with pytest.raises(InputError, match="its name is too long"):
        refuse_unwritable(tmp_path / ("k" * 256))


def test_a_keyword_is_no_name_of_a_module(tmp_path: Path) -> None:
    path = tmp_path / "class.py"
    path.touch()
    assert written("module", str(path), "").endswith(
        "rename it before you import it, to a name that is not a keyword of Python"
    )
