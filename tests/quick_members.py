"""Processes that use a device, take few samples, and verify winners by few calls."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fabricated import plain_sql
from tests.quick import keep_answers
from tests.quick_command import make_quick
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.runs import dask_cluster, device_process, fleet
from tsm2_tune.tuner.worker import child_process


def serve(connection: Connection) -> None:
    keep_answers(setattr)
    make_quick(setattr)
    device_process.serve_device(connection)


def quick_members(
    setattr: Callable[[object, str, object], None], start_child: Callable[..., Any] = child_process.start_child
) -> list[Any]:
    """Have processes that this one starts tune so from now on. Return the list of those that it starts."""
    started = list[Any]()

    def start(_: object) -> Any:
        process, connection = start_child(serve)
        started.append(process)
        return process, connection

    for module in (fleet, dask_cluster):
        setattr(module, "start_child", start)
    return started


SHAPES, TRIALS = "64x2x64,32x2x64,64x4x64", 2


def assert_complete(path: Path, *, kinds: int = 1) -> None:
    """Each trial is there once, every winner is verified in full, and no run has a lease."""
    problems = len(SHAPES.split(","))
    of_problems = plain_sql(path, "SELECT count(*) FROM trial GROUP BY device_name, problem_id")
    assert of_problems == [(TRIALS,)] * problems * kinds
    with Store.open(path, create=False) as store:
        assert [row.verified_in_full for row in store.best()] == [1] * problems * kinds
    assert plain_sql(path, "SELECT owner FROM lease WHERE owner <> ''") == []
