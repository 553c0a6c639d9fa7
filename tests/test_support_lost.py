"""The tuner's own kernels are compiled again once where they are lost while a worker opens its device."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from tsm2_tune.errors import WorkerError
from tsm2_tune.tuner.worker.client import Worker


def test_lost_support_kernels_are_compiled_again(support_path: str) -> None:
    paths = iter([f"{support_path}.gone", support_path])
    worker = Worker("cpu", lambda: next(paths), limit_seconds=30.0)
    try:
        assert worker.ceilings().read_gbytes_per_s > 0
    finally:
        worker.close()


@pytest.mark.parametrize("opening", [False, True])
def test_support_kernels_that_are_lost_twice_end_the_run_in_a_sentence(opening: bool, support_path: str) -> None:
    """On a host they are needed for the ceilings; on a GPU to open the device."""
    worker = (Opening if opening else Worker)("cpu", lambda: f"{support_path}.gone", limit_seconds=30.0)
    with pytest.raises(WorkerError, match=r"\.gone was removed") as ended:
        worker.ceilings()
    assert ("twice: find out what cleans the cache" in str(ended.value)) == opening
    worker.close()


class Opening(Worker):
    """A worker whose process says that it misses the kernels when it opens its device."""

    def _started(self, path: str) -> tuple[Any, Connection]:
        ours, theirs = multiprocessing.Pipe()
        theirs.send(("lost", f"{path} was removed"))
        process = SimpleNamespace(pid=os.getpid(), kill=lambda: None, wait=lambda *_: 0)
        return process, ours
