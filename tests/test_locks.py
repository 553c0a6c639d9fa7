"""A device is one run's at a time."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.command import TUNE, run
from tests.on_host import ON_HOST
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.locks import device_lock
from tsm2_tune.tuner.target import Target, find_target


def target(name: str = "NVIDIA H200", uuid: str = "GPU-1") -> Target:
    return cast(Target, SimpleNamespace(spec="0", identity=SimpleNamespace(name=name, uuid=uuid)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "tsm2-tune"


def test_a_second_run_is_told_whose_the_device_is() -> None:
    busy = (
        rf"^device NVIDIA H200 is in use by a run of process {os.getpid()}: wait for its end with --wait, or choose"
    )
    with device_lock(target()), pytest.raises(DeviceError, match=busy), device_lock(target()):
        pass
    with device_lock(target()):
        pass


def test_devices_of_one_name_are_two(folder: Path) -> None:
    with device_lock(target()), device_lock(target(uuid="GPU-2")):
        assert {lock.name for lock in folder.iterdir()} == {"GPU-1.lock", "GPU-2.lock"}


def test_who_waits_says_so_and_comes_next() -> None:
    told, has_it, ended = list[str](), threading.Event(), threading.Event()

    def hold() -> None:
        with device_lock(target()):
            has_it.set()
            ended.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    has_it.wait(30)

    def say(sentence: str) -> None:
        told.append(sentence)
        ended.set()

    with device_lock(target(), say):
        assert ended.is_set()
    holder.join()
    assert told == [f"device NVIDIA H200 is in use by a run of process {os.getpid()}: waiting for its end"]


def test_a_run_that_another_one_calls_does_not_wait_for_that() -> None:
    """By its callback, say: it would wait for ever."""
    busy = "in use by a run of process"
    with device_lock(target()), pytest.raises(DeviceError, match=busy), device_lock(target(), print):
        pass
    with device_lock(target(), print):
        pass


def test_a_lock_whose_folder_was_removed_ends_without_a_word(folder: Path) -> None:
    """Two threads have it then."""
    with device_lock(target()):
        shutil.rmtree(folder)
        other = threading.Thread(target=lambda: device_lock(target()).__enter__())
        other.start()
        other.join()


def test_a_lock_with_odd_content_names_nobody(folder: Path) -> None:
    with device_lock(target()):
        (lock,) = folder.iterdir()
        lock.write_bytes(b"\xff\x1b[31m")
        with pytest.raises(DeviceError, match="in use by a run of another process"), device_lock(target()):
            pass


def test_files_are_this_users_alone(folder: Path) -> None:
    with device_lock(target(uuid="../../GPU 1")):
        (lock,) = folder.iterdir()
    assert (lock.name, folder.stat().st_mode & 0o777, lock.stat().st_mode & 0o777) == (
        ".._.._GPU_1.lock",
        0o700,
        0o600,
    )


@pytest.mark.parametrize("obstacle", ["a file", "a link", "a FIFO", "another's"])
def test_a_folder_that_cannot_hold_locks(obstacle: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if obstacle == "a file":
        folder.touch()
    elif obstacle == "a link":
        folder.mkdir()
        (folder / "GPU-1.lock").symlink_to("/dev/null")
    elif obstacle == "a FIFO":
        folder.mkdir()
        os.mkfifo(folder / "GPU-1.lock")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(DeviceError, match="set XDG_RUNTIME_DIR to a folder of yours"), device_lock(target()):
        pass


def test_a_relative_runtime_folder_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    with device_lock(target()):
        assert list(tmp_path.iterdir()) == []


class TestCommand:
    pytestmark = ON_HOST

    def test_a_second_run_is_refused_in_a_sentence(self, path: Path) -> None:
        with device_lock(find_target("cpu")):
            for command in (TUNE, ("ladder", "--device", "cpu", "--shapes", "64x64x64")):
                result = run(*command, "--db", str(path))
                assert result.exit_code == 2
                assert f"is in use by a run of process {os.getpid()}: wait for its end with --wait" in result.output
                assert result.output.count("\n") == 1
        assert not path.exists()

    def test_one_that_waits_goes_on(self, path: Path) -> None:
        has_it, ended = threading.Event(), threading.Event()

        def hold() -> None:
            with device_lock(find_target("cpu")):
                has_it.set()
                ended.wait(1.0)

        holder = threading.Thread(target=hold)
        holder.start()
        has_it.wait(30)
        result = run(*TUNE, "--wait", "--db", str(path))
        holder.join()
        assert result.exit_code == 0, result.output
        assert result.output.count(": waiting for its end") == 1
