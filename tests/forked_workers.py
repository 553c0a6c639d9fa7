"""Processes that are forked from one that has imported what they need: each would take as long for that as it takes
for a trial."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import current_process
from typing import Any

from tests import quick_worker
from tsm2_tune.tuner.worker import client, server
from tsm2_tune.tuner.worker.child_process import memory_file


class _Serve:
    """A function in the environment that its process is started in."""

    def __init__(self, serve: Callable[..., None], content: bytes) -> None:
        self.serve, self.content, self.environment = serve, content, dict(os.environ)

    def __call__(self, *arguments: Any) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may start processes
        with memory_file(self.content) as standard_input:
            os.dup2(standard_input, 0)
        self.serve(*arguments)


class _Process:
    """A forked process with the methods of a Popen."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid, self.kill = process.pid, process.kill

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        return code


def fork_child(serve: Callable[..., None], *arguments: str, content: bytes = b"") -> tuple[Any, Connection]:
    """Do what `start_child` does, by a fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.quick_members"])
    ours, theirs = context.Pipe()
    with theirs:
        process = context.Process(target=_Serve(serve, content), args=(theirs, *arguments), daemon=True)
        process.start()
    return _Process(process), ours


def fork_workers(setattr: Callable[[object, str, object], None]) -> None:
    """Have this process start its workers so from now on."""

    def start_child(serve: Any, *arguments: str, content: bytes = b"") -> tuple[Any, Connection]:
        return fork_child(quick_worker.serve if serve is server.serve else serve, *arguments, content=content)

    setattr(client, "start_child", start_child)
