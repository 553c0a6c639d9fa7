"""The devices of the workers of a Dask cluster. dask-cuda starts one worker per GPU.

Dask only starts the processes that use the devices, and transports messages. The calling process has the searches and
the database. If a worker is lost, the other workers try its candidates. A worker may join later.

The calling process and the workers exchange JSON. Dask itself unpickles its own messages: see docs/scale.md.
"""

from __future__ import annotations

import math
import sys
import time
import uuid
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import wait
from typing import Any, Self

from tsm2_tune import __version__
from tsm2_tune.errors import DeviceError, InputError, ToolMissing, TuneError, WorkerError, pip_install
from tsm2_tune.tuner.device.target import HOST, Target
from tsm2_tune.tuner.results.trial import in_a_line
from tsm2_tune.tuner.runs.device_process import serve_device
from tsm2_tune.tuner.runs.fleet import END_SECONDS, DevicePool, DeviceProcess
from tsm2_tune.tuner.runs.messages import ANSWERS, REQUESTS, Failed, Malformed, decode, encode
from tsm2_tune.tuner.runs.owners import system
from tsm2_tune.tuner.worker.child_process import start_child

ANSWER_SECONDS = 10.0  # longest wait for the scheduler
LOOK_SECONDS = 1.0  # between two checks of the list of workers, and of a worker's task
POLL_SECONDS = 0.05  # between two checks for messages
RETURN_SECONDS = 30.0  # how long to wait for a new worker after the last one was lost
PYTHON = "{}.{}".format(*sys.version_info)  # major and minor
CANCELLED = "cancelled"  # state of a task whose caller no longer waits for it


@dataclass(frozen=True, slots=True)
class Facts:
    """The versions and the machine that a worker reports."""

    version: str  # of tsm2-tune
    python: str  # major and minor
    system: str  # the machine and its boot, see owners.py


class DaskChannel:
    """The calling process's connection to the process on a worker: two queues of the scheduler, with JSON."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name
        self.received = deque[Any]()  # messages that were not read yet
        self.is_lost = False

    @cached_property
    def _to(self) -> Any:
        return _distributed().Queue(f"{self._name}-to", client=self._client)

    @cached_property
    def _from(self) -> Any:
        return _distributed().Queue(f"{self._name}-from", client=self._client)

    def send(self, message: object) -> None:
        """Send the message. Raise OSError if the worker was lost or the scheduler does not answer."""
        if self.is_lost:
            raise BrokenPipeError("the worker was lost")
        self._to.put(encode(message))

    def poll(self, timeout: float = 0.0) -> bool:
        """Return whether a message arrives within `timeout` seconds.

        Dask's own timeout is not used: it would write an error to the scheduler's log.
        """
        end = time.monotonic() + timeout
        while not self.received and not self.is_lost:
            self.received.extend(self._from.get(batch=True))
            if self.received or time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS)
        return bool(self.received)

    def recv(self) -> object:
        """Wait for a message and return it; if it is invalid, a Failed. Raise EOFError if the worker is lost."""
        while not self.poll(LOOK_SECONDS):
            if self.is_lost:
                raise EOFError
        try:
            return decode(self.received.popleft(), ANSWERS)
        except Malformed as error:
            return Failed(WorkerError(f"its worker sent no valid message ({in_a_line(str(error))})"))


@dataclass(slots=True)
class _Process:
    """The calling process's record of the process on one worker."""

    future: Any  # of the task that runs the process
    channel: DaskChannel
    is_over: bool = False  # whether its task has ended


class Cluster(DevicePool):
    """The devices of the workers of a Dask scheduler. The name of a device is its worker's address."""

    def __init__(self, address: str, device: Target | str | None) -> None:
        """Raise InputError if the device is a GPU of this machine: the workers use their own devices."""
        if device not in (None, HOST):
            raise InputError(
                f"--device {device} names a device of this machine: with --cluster each worker takes the"
                f" first GPU that it sees, as dask-cuda starts workers, or with --device {HOST} the host"
            )
        self._address, self._device = address, device
        self._client: Any = None
        self._processes: dict[str, _Process] = {}  # by worker
        self._done: set[str] = set()  # workers that no process was started on, or whose process has ended
        self._is_complete = False  # whether a device found no problem left
        self._present = frozenset[str]()  # workers at the last check
        self._checked_at = self._looked_at = self._lost_at = 0.0

    def __enter__(self) -> Self:
        distributed = _distributed()
        self._client = distributed.Client.__new__(distributed.Client)
        try:
            self._client.__init__(self._address, timeout=ANSWER_SECONDS, set_as_default=False)
        except Exception as error:  # Dask raises various types
            self._client.status = "closed"  # else its destructor would wait for a scheduler
            raise DeviceError(
                f"no Dask scheduler answers at {in_a_line(self._address)} ({in_a_line(str(error))}): start one with"
                " `dask scheduler`, and workers with `dask cuda worker` or `dask worker`; its address is as"
                " tcp://host:8786"
            ) from None
        return self

    def close(self) -> None:
        with suppress(OSError):
            self._client.cancel([one.future for one in self._processes.values()], force=True)
            end = time.monotonic() + END_SECONDS
            while time.monotonic() < end and any(not one.future.done() for one in self._processes.values()):
                time.sleep(POLL_SECONDS)
        for one in self._processes.values():
            one.channel.is_lost = True
        self._client.close()

    def started(self) -> dict[str, DeviceProcess]:
        """Start a process on each new worker.

        Raise DeviceError if there are no workers at the first call. Raise ToolMissing if a worker of the first call
        cannot execute the process; a worker that joins later is ignored then.
        """
        if self._is_complete:
            return {}
        is_first = not self._checked_at
        present = self._workers()
        facts = self._facts([one for one in present if one not in self._processes and one not in self._done])
        if is_first and not facts:
            raise DeviceError(
                f"the Dask scheduler at {self._address} has no workers: start some with `dask cuda worker"
                f" {self._address}`, or `dask worker {self._address}`"
            )
        refused = {worker: error for worker, one in facts.items() if (error := _refusal(worker, one)) is not None}
        if is_first and refused:
            raise next(iter(refused.values()))
        self._done |= refused.keys()
        machines = {worker: one.system for worker, one in facts.items() if isinstance(one, Facts)}
        sharing = Counter(machines.values())
        return {_name(worker): self._start(worker, sharing[machines[worker]]) for worker in facts.keys() - refused}

    def _start(self, worker: str, sharing: int) -> DeviceProcess:
        name = f"tsm2-tune-{uuid.uuid4().hex}"
        channel = DaskChannel(self._client, name)
        future = self._client.submit(
            work, name, key=name, workers=[worker], allow_other_workers=False, pure=False, retries=0
        )
        self._processes[worker] = _Process(future, channel)
        return DeviceProcess(channel, self._device, sharing)

    def is_awaited(self) -> bool:
        """Return whether to wait for a new worker: one was lost a short time ago, and no device was done."""
        return not self._is_complete and 0 < self._lost_at > time.monotonic() - RETURN_SECONDS

    def check(self) -> None:
        """Close the channels of workers that have left the cluster, or whose task has ended.

        Raise WorkerError if the scheduler does not answer.
        """
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at, present = time.monotonic(), self._workers()
        for worker, process in self._processes.items():
            if worker not in present:
                process.future.cancel()
                self._lost_at = time.monotonic()
                process.channel.is_lost = True
            elif process.is_over:  # since the last look, so that its last messages have been received
                process.channel.is_lost = True
            process.is_over = process.future.status in ("error", "finished")

    def end(self, name: str, *, is_complete: bool) -> str:
        """End the worker's task. Return how its process was lost, if it was."""
        worker = next(one for one in self._processes if _name(one) == name)
        process = self._processes.pop(worker)
        lost = "its worker failed: see its log" if process.is_over else "its worker is lost"
        if not is_complete:  # the next check asks at once whether the scheduler is lost too
            self._looked_at = self._checked_at = -math.inf
        process.channel.is_lost = True
        process.future.cancel()
        self._done.add(worker)
        self._is_complete |= is_complete
        return lost

    def _workers(self) -> frozenset[str]:
        """Return the addresses of the cluster's workers, which are asked for every LOOK_SECONDS."""
        if time.monotonic() - self._checked_at < LOOK_SECONDS:
            return self._present
        self._checked_at = time.monotonic()
        try:
            self._present = frozenset(self._client.nthreads())
            return self._present
        except OSError as error:
            raise WorkerError(
                f"the Dask scheduler at {self._address} does not answer any more ({error}): every trial that ended"
                " is in the database: run the same command to continue"
            ) from None

    def _facts(self, workers: list[str]) -> dict[str, Facts | Exception]:
        found = self._client.run(facts_here, workers=workers, on_error="return") if workers else {}
        return {worker: _parsed_facts(one) for worker, one in found.items()}


def _refusal(worker: str, facts: Facts | Exception) -> TuneError | None:
    """Return an error with the reason why the worker cannot execute the process; None if it can."""
    name = _name(worker)
    if isinstance(facts, Exception):
        said = " ".join(str(facts).split())
        return ToolMissing(f"worker {name} cannot load tsm2-tune {__version__} ({said}): install it there")
    if (facts.version, facts.python) != (__version__, PYTHON):
        return ToolMissing(
            f"worker {name} has tsm2-tune {facts.version} on Python {facts.python}, and this is {__version__} on"
            f" {PYTHON}: install the same there and here"
        )
    return None


def facts_here() -> str:
    """Return the facts of this process as JSON."""
    return encode(Facts(__version__, PYTHON, system()))


def _parsed_facts(message: object) -> Facts | Exception:
    """Return the Facts in a worker's reply. If the reply is an exception or malformed, return the exception."""
    try:
        return message if isinstance(message, Exception) else decode(message, (Facts,))
    except Malformed as error:
        return error


def work(name: str) -> None:
    """Start the process that uses the device, and transport its messages. This is the Dask task on a worker."""
    distributed = _distributed()
    worker = distributed.get_worker()
    key = worker.get_current_task()
    requests, answers = (distributed.Queue(f"{name}-{way}") for way in ("to", "from"))
    process, connection = start_child(serve_device)
    try:
        checked_at = time.monotonic()
        with suppress(EOFError, OSError):
            while True:
                for text in requests.get(batch=True):
                    connection.send(decode(text, REQUESTS))
                if wait([connection], timeout=POLL_SECONDS):
                    answers.put(encode(connection.recv()))
                if time.monotonic() - checked_at >= LOOK_SECONDS:
                    checked_at = time.monotonic()
                    task = worker.state.tasks.get(key)
                    if task is None or task.state == CANCELLED:
                        break
    finally:
        process.terminate()
        connection.close()
        process.wait()


def _name(worker: str) -> str:
    return worker.partition("://")[2] or worker


def _distributed() -> Any:
    """Import and return Dask's module `distributed`. Raise ToolMissing if it is not installed."""
    try:
        import distributed
    except ModuleNotFoundError:
        raise ToolMissing(f"--cluster needs Dask: {pip_install('distributed')}") from None
    return distributed
