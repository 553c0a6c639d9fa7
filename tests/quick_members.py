"""Runs in processes of their own that take few samples, and verify winners by few calls."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

from tests.quick_command import make_quick
from tsm2_tune.tuner.runs import child_run
from tsm2_tune.tuner.worker import child_process


def serve(connection: Connection) -> None:
    make_quick(setattr)
    child_run.serve(connection)


def quick_members(setattr: Callable[[object, str, object], None]) -> None:
    """Have processes that this one starts tune so from now on."""
    setattr(child_run, "start_child", lambda _: child_process.start_child(serve))
