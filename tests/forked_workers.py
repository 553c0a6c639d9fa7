"""Workers that are forked from a process that has imported what they need: each would take as long for that as it
takes for a trial."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests import quick_worker
from tsm2_tune.tuner.worker import client, server


class _Serve:
    """`serve` in the environment that its worker is started in."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)

    def __call__(self, *arguments: Any) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        quick_worker.serve(*arguments)


class _Process:
    """A forked process with the methods of a Popen."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid, self.kill = process.pid, process.kill

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        return code


def fork_workers(setattr: Callable[[object, str, object], None]) -> None:
    """Have this process start its workers so from now on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([quick_worker.__name__])

    def start_child(serve: Any, *arguments: str) -> tuple[Any, Connection]:
        ours, theirs = context.Pipe()
        with theirs:
            process = context.Process(
                target=_Serve() if serve is server.serve else serve, args=(theirs, *arguments), daemon=True
            )
            process.start()
        return _Process(process), ours

    setattr(client, "start_child", start_child)
