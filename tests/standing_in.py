"""Fixtures in place of patches that many tests need: a disk, the time of day, the log of a function's calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from tests.call_log import logged

ROOMY = {"f_blocks": 2**30, "f_bavail": 2**30, "f_frsize": 4096, "f_files": 2**30, "f_favail": 2**30, "f_flag": 0}


class Disk(Protocol):
    def __call__(self, folder: str | Path = "/", /, **values: int) -> None:
        """State what the disk of the folder differs in from a roomy one, such as f_bavail."""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return a function that makes all disks roomy but one."""

    def state(folder: str | Path = "/", /, **values: int) -> None:
        def statvfs(path: str | Path) -> SimpleNamespace:
            return SimpleNamespace(**ROOMY | (values if Path(path).is_relative_to(folder) else {}))

        monkeypatch.setattr(os, "statvfs", statvfs)

    return state


@pytest.fixture
def time_of_day(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock whose `ahead_seconds` the time of day is ahead."""
    clock = SimpleNamespace(ahead_seconds=0)
    for name, per_second in (("time", 1), ("time_ns", 10**9)):
        now = getattr(time, name)
        monkeypatch.setattr(time, name, lambda now=now, unit=per_second: now() + clock.ahead_seconds * unit)
    return clock


def wait_by(monkeypatch: pytest.MonkeyPatch, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """Let what waits for a database's server do so by this clock."""
    for name in ("outage", "retry"):
        clock = SimpleNamespace(monotonic=monotonic, sleep=sleep)
        monkeypatch.setattr(f"tsm2_tune.tuner.results.storage.{name}.time", clock)


class Spied(Protocol):
    def __call__(self, place: object, name: str) -> list[Any]:
        """Return the log of the arguments with which the place's function of this name is called, as before."""


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> Spied:
    """Return a function that logs the calls of another one."""

    def spy(place: object, name: str) -> list[Any]:
        log, function = list[Any](), getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda *arguments, **named: logged(log, arguments, function(*arguments, **named))
        )
        return log

    return spy
