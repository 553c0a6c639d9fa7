"""A Dask scheduler and workers on this machine, each worker a process that tunes quickly on a host of its own.

python -m tests.dask_cluster scheduler FILE
python -m tests.dask_cluster worker FILE
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers import wait_until
from tsm2_tune.tuner.device.lock import MACHINE_VARIABLE

END_SECONDS = 180.0  # each worker imports what runs are made of


class Workers:
    """A scheduler, and workers in the order in which they were started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scheduler = self._started("scheduler")
        self._workers: list[subprocess.Popen[bytes]] = []  # that live
        self.address = ""
        try:
            wait_until(self._has_address, END_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def _file(self) -> Path:
        return self._folder / "scheduler.json"

    def add(self) -> None:
        """Start a worker. Its host is a device of its own, as another GPU would be."""
        self._workers.append(self._started("worker", **{MACHINE_VARIABLE: tempfile.mkdtemp(dir=self._folder)}))

    def have(self, count: int) -> None:
        """Start workers until there are so many, and wait until all have come to the scheduler."""
        from distributed import Client

        for _ in range(count - len(self._workers)):
            self.add()
        with Client(self.address, set_as_default=False) as client:
            wait_until(lambda: len(client.nthreads()) == count, END_SECONDS)

    def kill(self, number: int) -> None:
        """End a worker, the first of those that live is 0, as a machine that is switched off does."""
        process = self._workers.pop(number)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all."""
        self._workers.insert(0, self._scheduler)
        while self._workers:
            self.kill(-1)

    def _has_address(self) -> bool:
        """Read the scheduler's address from its file. Return False while the file is not complete."""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            self.address = json.loads(self._file.read_text())["address"]
        return bool(self.address)

    def _started(self, what: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.dask_cluster", what, str(self._file)]
        paths = os.pathsep.join(one for one in sys.path if one)
        environment = {**os.environ, "PYTHONPATH": paths, **environment}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


@contextmanager
def cluster(folder: Path) -> Iterator[Workers]:
    """A scheduler that has no workers yet."""
    started = Workers(folder)
    try:
        yield started
    finally:
        started.close()


async def serve(what: str, file: str) -> None:
    """Be a scheduler, or a worker."""
    from distributed import Scheduler, Worker

    if what == "scheduler":
        server = await Scheduler(host="127.0.0.1", port=0, dashboard=False, scheduler_file=file)
    else:
        from tests.quick_members import quick_members  # a scheduler does not wait for what runs are made of

        quick_members(setattr)
        server = await Worker(scheduler_file=file, nthreads=1, dashboard=False, host="127.0.0.1")
    await server.finished()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
