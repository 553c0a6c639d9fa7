"""Workers that are forked from a process that has imported what they need: each would take as long for that as it
takes for a trial."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests import quick_worker
from tsm2_tune.tuner import worker


class _Serve:
    """`serve` in the environment that its worker is started in."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)

    def __call__(self, *arguments: Any) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        quick_worker.serve(*arguments)


def fork_workers(setattr: Callable[[object, str, object], None]) -> None:
    """Have this process start its workers so from now on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([quick_worker.__name__])
    started = worker.serve

    def process(target: Any, **options: Any) -> Any:
        return context.Process(target=_Serve() if target is started else target, **options)

    forking = SimpleNamespace(Pipe=context.Pipe, Process=process)
    setattr(worker, "multiprocessing", SimpleNamespace(get_context=lambda _: forking))
