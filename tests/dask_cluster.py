"""A Dask scheduler and workers on this machine, each worker a process that tunes quickly on a host of its own.

python -m tests.dask_cluster scheduler FILE
python -m tests.dask_cluster worker FILE
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.quick_members import quick_members

END_SECONDS = 60.0


class Workers:
    """Processes of workers, in the order in which they were started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler")
        try:
            self.address = self._scheduler_address()
        except BaseException:
            self.close()
            raise

    @property
    def _file(self) -> Path:
        return self._folder / "scheduler.json"

    def add(self, **environment: str) -> None:
        """Start a worker. Its host is a device of its own, as another GPU would be."""
        locks = tempfile.mkdtemp(dir=self._folder)
        self._start("worker", XDG_RUNTIME_DIR=locks, **environment)

    def kill(self, number: int) -> None:
        """End a worker, the first of which is 0, as a machine that is switched off does."""
        self._processes[1 + number].kill()
        self._processes[1 + number].wait()

    def close(self) -> None:
        """End all."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _scheduler_address(self) -> str:
        """What the scheduler writes into its file, once the whole of it is there."""
        end = time.monotonic() + END_SECONDS
        while True:
            with suppress(FileNotFoundError, json.JSONDecodeError):
                address: str = json.loads(self._file.read_text())["address"]
                return address
            assert time.monotonic() < end
            time.sleep(0.05)

    def _start(self, what: str, **environment: str) -> None:
        command = [sys.executable, "-m", "tests.dask_cluster", what, str(self._file)]
        paths = os.pathsep.join(one for one in sys.path if one)
        environment = {**os.environ, "PYTHONPATH": paths, **environment}
        self._processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Workers]:
    """A scheduler with so many workers that have come to it."""
    from distributed import Client

    started = Workers(folder)
    try:
        for _ in range(workers):
            started.add()
        with Client(started.address, set_as_default=False) as client:
            end = time.monotonic() + END_SECONDS
            while len(client.nthreads()) < workers:
                assert time.monotonic() < end
                time.sleep(0.05)
        yield started
    finally:
        started.close()


async def serve(what: str, file: str) -> None:
    """Be a scheduler, or a worker."""
    from distributed import Scheduler, Worker

    if what == "scheduler":
        server = await Scheduler(host="127.0.0.1", port=0, dashboard=False, scheduler_file=file)
    else:
        server = await Worker(scheduler_file=file, nthreads=1, dashboard=False, host="127.0.0.1")
    await server.finished()


if __name__ == "__main__":
    quick_members(setattr)
    asyncio.run(serve(*sys.argv[1:]))
