"""The cache of binaries: only what this user wrote is loaded, no leftovers stay, and its size has a limit."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.command import refused, run
from tests.fake_compilers import WRITE, binary, calls, compiled, fake, mode
from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile import cache, command_limits
from tsm2_tune.tuner.compile.command_limits import workplace
from tsm2_tune.tuner.compile.compiler import Toolchain, cache_folder, remove_leftovers
from tsm2_tune.tuner.results.trial import Binary, Outcome

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_folder_that_others_can_write_is_refused(
    above: int, binaries_folder: Path, writing_compiler: Toolchain
) -> None:
    before = os.umask(0)
    try:
        path = binary(writing_compiler)
    finally:
        os.umask(before)
    folders = [binaries_folder, *binaries_folder.parents]
    assert [mode(one) for one in (path, path.with_suffix(".json"))] == [0o600] * 2
    assert {mode(one) for one in (path.parent, *folders[:3], binaries_folder / "working")} == {0o700}
    place = folders[above]
    for bits in (0o770, 0o702):
        place.chmod(bits)
        said = f"others can write to {place} (mode {bits:o}): chmod go-w it, or set XDG_CACHE_HOME to another folder"
        with pytest.raises(InputError, match=re.escape(said)):
            compiled(writing_compiler)
    refused("cache", "show")
    place.chmod(0o755)
    binary(writing_compiler)


def test_a_folder_is_trusted_if_sticky_above_and_own_where_links_lead(
    binaries_folder: Path, writing_compiler: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (theirs := tmp_path / "theirs").mkdir(mode=0o700)
    binaries_folder.parent.mkdir(parents=True)
    binaries_folder.symlink_to(theirs)
    assert binary(writing_compiler).is_relative_to(theirs)
    theirs.chmod(0o777)
    with pytest.raises(InputError, match=f"others can write to {theirs} "):
        compiled(writing_compiler)
    binaries_folder.unlink()
    binaries_folder.parent.chmod(0o1777)
    binary(writing_compiler)
    binaries_folder.chmod(0o1777)
    with pytest.raises(InputError, match="others can write"):
        compiled(writing_compiler)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InputError, match=f"belongs to user {owner}: remove it"):
        cache_folder()


def test_a_relative_home_is_ignored_and_an_unknown_one_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The XDG base directory specification says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("relative", "../relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache_folder() == tmp_path / "home" / ".cache" / "tsm2-tune" / "binaries"
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]
    users = {os.geteuid(): pwd.struct_passwd(("one", "x", 1, 1, "", str(tmp_path / "own"), ""))}
    monkeypatch.setattr(pwd, "getpwuid", lambda user: users[user])
    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        assert cache_folder() == tmp_path / "own" / ".cache" / "tsm2-tune" / "binaries"
    users.clear()
    with pytest.raises(InputError, match="set XDG_CACHE_HOME or HOME to an absolute path"):
        cache_folder()


def places_of(path: Path, binaries_folder: Path) -> dict[str, Path]:
    """Return what belongs to the binary at this path."""
    working = binaries_folder / "working"
    return {"binary": path, "report": path.with_suffix(".json"), "shard": path.parent, "working": working}


@pytest.mark.parametrize("which", ["binary", "report", "shard"])
def test_an_entry_that_others_could_have_written_is_not_loaded(
    which: str, binaries_folder: Path, writing_compiler: Toolchain
) -> None:
    path = binary(writing_compiler)
    place = places_of(path, binaries_folder)[which]
    for bits in (0o770, 0o702):
        place.chmod(bits)
        again = compiled(writing_compiler)
        assert isinstance(again, Binary)
        assert again.compile_seconds > 0
        assert mode(place) in (0o600, 0o700)
    assert compiled(writing_compiler) == Binary(path.read_bytes(), "k", 0, 0.0)


PLANTS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": lambda path: (path / "something").mkdir(parents=True),
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to what never ends": lambda path: path.symlink_to("/dev/zero"),
    "file": lambda path: path.touch(),
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("which", ["binary", "report", "shard", "working"])
def test_what_stands_in_place_of_an_entry_is_replaced(
    plant: str, which: str, binaries_folder: Path, writing_compiler: Toolchain
) -> None:
    path = binary(writing_compiler)
    content = path.read_bytes()
    place = places_of(path, binaries_folder)[which]
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    PLANTS[plant](place)
    assert binary(writing_compiler) == path
    remove_leftovers()
    run("cache", "show")
    assert compiled(writing_compiler) == Binary(path.read_bytes(), "k", 0, 0.0)
    assert (path.is_symlink(), path.read_bytes()) == (False, content)


def test_what_another_process_has_kept_meanwhile_stays(binaries_folder: Path, tmp_path: Path) -> None:
    kept = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        output = tmp_path / name / "output"
        output.write_text(name)
        kept.append(cache.keep(output, "aa", ".so", 0))
    assert kept[0] == kept[1]
    assert kept[0].read_text() == "first"


@pytest.mark.parametrize("removed", ["", "binaries/working", "binaries/working/*"])
def test_a_cache_that_is_removed_while_a_compiler_runs_is_made_anew(
    removed: str, binaries_folder: Path, tmp_path: Path
) -> None:
    script = f"[ $(wc -l < $calls) = 1 ] && rm -rf {binaries_folder.parent}/{removed}\n{WRITE.strip()} || exit 1\n"
    path = binary(fake(tmp_path, script))
    assert path.is_file()
    assert len(calls(tmp_path)) == 2


def test_a_cache_that_is_removed_all_the_time_ends_no_run(
    binaries_folder: Path, tmp_path: Path, writing_compiler: Toolchain
) -> None:
    stop = threading.Event()

    def remove() -> None:
        while not stop.wait(0.005):
            shutil.rmtree(binaries_folder.parent, ignore_errors=True)

    removing = threading.Thread(target=remove)
    removing.start()
    try:
        for number in range(20):
            remove_leftovers()
            answer = compiled(writing_compiler, str(number))
            assert isinstance(answer, Binary) or answer.outcome is Outcome.INTERRUPTED
    finally:
        stop.set()
        removing.join()
    assert binary(writing_compiler, "afterwards").is_file()


# --- Working folders ---


def test_folder_removed_before_its_lock_is_made_again(binaries_folder: Path) -> None:
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            remove_leftovers()

    others = [threading.Thread(target=remove) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(300):
            with workplace(cache.working_parent()) as work:
                assert work.folder.is_dir()
    finally:
        ended.set()
        for other in others:
            other.join()


GONE, FULL = FileNotFoundError(), OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "lost", "times"), [(GONE, 0, 1), (GONE, 3, 4), (GONE, 19, 20), (GONE, 20, 20), (FULL, 20, 1)]
)
def test_so_many_folders_are_tried(tmp_path: Path, error: OSError, lost: int, times: int) -> None:
    asked: list[str] = []

    def ask(request: dict[str, str]) -> None:
        asked.append(request["make"])
        if len(asked) <= lost:
            raise error

    with pytest.raises(type(error)) if lost == 20 else nullcontext():
        assert str(command_limits._made(cast(Any, SimpleNamespace(ask=ask)), tmp_path)) == asked[-1]
    assert len({*asked}) == len(asked) == times


def test_a_folder_that_another_process_made_anew_meanwhile_stays(
    binaries_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = cache.working_parent() / "left"
    left.mkdir()
    (left / "lock").touch()
    flock = fcntl.flock

    def quicker(lock: int, how: int) -> None:
        if (left / "lock").exists() and how & fcntl.LOCK_NB:
            (left / "lock").unlink()  # by another remover
            (left / "lock").touch()  # by the folder's new owner
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", quicker)
    remove_leftovers()
    assert left.is_dir()


def test_a_working_folder_stays_with_a_living_owner_or_one_to_come(
    binaries_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    parent = cache.working_parent()
    new, old, left = (parent / name for name in ("new", "old", "left"))
    for folder in (new, old, left):
        folder.mkdir()
    os.utime(old, (0, 0))
    for name in ("left/lock", "left/kernel.cu", "no folder"):
        (parent / name).touch()
    with workplace(parent) as work:
        for path in (work.folder, work.folder / "lock"):
            os.utime(path, (0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", no_lock)
            remove_leftovers()
            assert left.is_dir()
        remove_leftovers()
        assert sorted(parent.iterdir()) == sorted((new, work.folder))
    assert list(parent.iterdir()) == [new]


# --- Its size ---


def test_what_went_longest_unused_is_evicted(
    binaries_folder: Path, writing_compiler: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [binary(writing_compiler, str(number)) for number in range(10)]
    sizes = {entry.size_bytes for entry in cache.entries()}
    (size,) = sizes
    long_ago = time.time() - 10 * cache.SPARED_SECONDS
    for age, path in enumerate(paths[:9]):
        os.utime(path, (long_ago - age, long_ago - age))
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", str(10 * size))
    remove_leftovers()
    assert all(path.exists() for path in paths)
    assert binary(writing_compiler, "8") == paths[8]  # the oldest, which is the youngest now
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", str(5 * size))
    remove_leftovers()
    assert [path.exists() for path in paths] == [True, True, False, False, False, False, False, False, True, True]
    assert sorted({entry.binary for entry in cache.entries()}) == sorted(path for path in paths if path.exists())
    assert len(list(binaries_folder.rglob("*.json"))) == 4
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", "0")
    remove_leftovers()
    assert [path for path in paths if path.exists()] == [paths[8], paths[9]]  # this run used them


def test_nothing_that_a_link_leads_to_is_evicted_or_cleared(
    binaries_folder: Path, writing_compiler: Toolchain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    thesis = tmp_path / "elsewhere" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    os.utime(thesis, (0, 0))
    shard = binary(writing_compiler).parent
    (binaries_folder / ("00" if shard.name != "00" else "01")).symlink_to(thesis.parent)
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", "1")
    remove_leftovers()
    assert json.loads(run("cache", "show", "--json").output)["entries"] == 1
    assert run("cache", "clear").exit_code == 0
    assert thesis.exists()


@pytest.mark.parametrize("text", ["", "17", "3K", "500m", "much", "-1", "1.5G", "1e3", "9" * 40, "٣"])
def test_a_limit_is_told_as_a_size(text: str, binaries_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"": 2**31, "17": 17, "3K": 3072, "500m": 500 * 2**20}
    monkeypatch.setenv("TSM2_TUNE_CACHE_LIMIT", text)
    if text in sizes:
        assert json.loads(run("cache", "show", "--json").output)["limit_bytes"] == sizes[text]
    else:
        assert "TSM2_TUNE_CACHE_LIMIT is " in refused("cache", "show")


def test_the_cache_can_be_shown_and_cleared(binaries_folder: Path, writing_compiler: Toolchain) -> None:
    empty = json.loads(run("cache", "show", "--json").output)
    assert (empty["entries"], empty["bytes"], empty["oldest_use"]) == (0, 0, None)
    path = binary(writing_compiler)
    (binaries_folder / f"{'ab' * 32}.so").touch()
    size_bytes = path.stat().st_size + path.with_suffix(".json").stat().st_size
    shown = json.loads(run("cache", "show", "--json").output)
    assert (shown["folder"], shown["entries"], shown["bytes"]) == (str(binaries_folder), 1, size_bytes)
    assert shown["oldest_use"] == shown["newest_use"]
    assert f"bytes: {size_bytes}\n" in run("cache", "show").output
    with workplace(cache.working_parent()) as work:
        result = run("cache", "clear")
        assert result.output == (
            f"removed 1 compiled kernels, {size_bytes} bytes; 1 working folders are in use, and were kept\n"
        )
        assert work.folder.is_dir()
    assert [one.name for one in binaries_folder.iterdir()] == ["working"]
    assert binary(writing_compiler) == path
