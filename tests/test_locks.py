"""A device is one run's at a time."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.command import TUNE, completed, refused
from tests.on_host import ON_HOST
from tests.processes import python
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.device import lock
from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE, _name, device_lock
from tsm2_tune.tuner.device.target import Target, find_target


def target(name: str = "NVIDIA H200", uuid: str = "GPU-1") -> Target:
    return cast(Target, SimpleNamespace(spec="0", identity=SimpleNamespace(name=name, uuid=uuid)))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(MACHINE_VARIABLE, str(tmp_path))
    return str(tmp_path)


def test_devices_of_one_name_are_two_and_environments_share_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in a folder that a variable names are several locks, which do not exclude each other."""
    with device_lock(target()):
        with device_lock(target(uuid="GPU-2")):
            pass
        for variable in ("XDG_RUNTIME_DIR", "TMPDIR", "HOME"):
            monkeypatch.setenv(variable, str(tmp_path))
            monkeypatch.setattr(tempfile, "tempdir", None)
            with pytest.raises(DeviceError, match="in use by a run of process"), device_lock(target()):
                pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_users_share_the_lock() -> None:
    """Neither user leaves a file that the other one cannot use, whoever comes first."""
    text = """
import os, sys
from types import SimpleNamespace
from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.device.lock import device_lock
os.setuid(12345)
try:
    with device_lock(SimpleNamespace(spec="0", identity=SimpleNamespace(name="NVIDIA H200", uuid="GPU-1"))):
        print("taken")
except DeviceError as error:
    print(error)
"""

    def said_by_another_user() -> str:
        return python("-c", text, check=True).stdout

    with device_lock(target()):
        assert f"in use by a run of process {os.getpid()}: wait" in said_by_another_user()
    assert said_by_another_user() == "taken\n"
    with device_lock(target()):
        pass


@pytest.mark.slow
def test_a_lock_ends_with_its_process() -> None:
    """Even if it is killed."""
    text = """
import time
from tests.test_locks import device_lock, target
with device_lock(target()):
    print("taken", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DeviceError, match=f"in use by a run of process {holder.pid}:"), device_lock(target()):
            pass
        holder.kill()
        with device_lock(target(), print):
            pass


@contextmanager
def held(device: Target, seconds: float) -> Iterator[threading.Event]:
    """A thread has the device until the event is set, or so long."""
    has_it, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with device_lock(device):
            has_it.set()
            ended.wait(seconds)

    holder = threading.Thread(target=hold)
    holder.start()
    has_it.wait(30)
    yield ended
    holder.join()


def test_who_waits_says_so_and_comes_next() -> None:
    told = list[str]()
    with held(target(), 30) as ended:

        def say(sentence: str) -> None:
            told.append(sentence)
            ended.set()

        with device_lock(target(), say):
            assert ended.is_set()
    assert told == [f"device NVIDIA H200 is in use by a run of process {os.getpid()}: waiting for its end"]


def test_a_run_that_another_one_calls_does_not_wait_for_that() -> None:
    """By its callback, say: it would wait for ever."""
    busy = "in use by a run of process"
    with device_lock(target()), pytest.raises(DeviceError, match=busy), device_lock(target(), print):
        pass
    with device_lock(target(), print):
        pass


def test_a_lock_socket_that_does_not_listen_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(_name(target()))
        with pytest.raises(DeviceError, match="in use by a run of another process"), device_lock(target()):
            pass

    def refused(*_: object) -> bool:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(lock, "_is_bound", refused)
    with pytest.raises(DeviceError, match="cannot be created"), device_lock(target()):
        pass


class TestCommand:
    pytestmark = ON_HOST

    def test_a_second_run_is_refused_in_a_sentence(self, path: Path) -> None:
        with device_lock(find_target("cpu")):
            for command in (TUNE, ("ladder", "--device", "cpu", "--shapes", "64x64x64")):
                said = refused(*command, path=path)
                assert f"is in use by a run of process {os.getpid()}: wait for its end with --wait" in said
        assert not path.exists()

    def test_one_that_waits_goes_on(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.bind(_name(find_target("cpu")))
            other.listen()

            def end() -> None:
                with other, other.accept()[0]:
                    time.sleep(1.0)  # while the command waits, however long it took to start

            holder = threading.Thread(target=end)
            holder.start()
            result = completed(*TUNE, "--wait", "--db", str(path))
            holder.join()
        assert result.output.count(": waiting for its end") == 1
        assert re.search(r"^\d+ seconds?: \d waiting\b", result.output, re.MULTILINE), result.output
