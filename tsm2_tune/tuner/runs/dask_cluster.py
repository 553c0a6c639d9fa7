"""Tuning runs on the workers of a Dask cluster, one run per worker. dask-cuda starts one worker per GPU.

Dask only starts the runs and transports their events. The runs share a database, which stores the results and
determines which run tries which configuration. If a worker is lost, only its current measurement is lost. A worker
may join later.

The calling process and the workers exchange JSON. Dask itself unpickles its own messages: see docs/scale.md.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Self

from tsm2_tune import __version__
from tsm2_tune.errors import DeviceError, InputError, ToolMissing, TuneError, WorkerError, pip_install
from tsm2_tune.tuner.device.target import HOST
from tsm2_tune.tuner.results.storage.addresses import EXAMPLE, is_address, without_password
from tsm2_tune.tuner.results.trial import in_a_line
from tsm2_tune.tuner.runs.child_run import END_SECONDS, ChildRun, End
from tsm2_tune.tuner.runs.events import Event, Noted, RunStarted
from tsm2_tune.tuner.runs.json_codec import ChildEnded, EventBatch, Malformed, Message, RunBegan, read, written
from tsm2_tune.tuner.runs.leases.configurations import expire_claims
from tsm2_tune.tuner.runs.leases.owners import process_of, system
from tsm2_tune.tuner.runs.run import Run, RunResult
from tsm2_tune.tuner.search.phase_timer import PhaseTimer

ANSWER_SECONDS = 10.0  # longest wait for the scheduler
LOOK_SECONDS = 1.0  # between two checks of the list of workers, and of a worker's task
POLL_SECONDS = 0.2  # between two checks for messages
RETURN_SECONDS = 30.0  # how long to wait for a new worker after the last one was lost
CANCELLED = "cancelled"  # state of a task whose caller no longer waits for it
MESSAGES = (RunBegan, EventBatch, ChildEnded)


@dataclass(frozen=True, slots=True)
class Facts:
    """The versions and the machine that a worker reports."""

    version: str  # of tsm2-tune
    python: str  # major and minor
    system: str  # the machine and its boot, see leases/owners.py


@dataclass(slots=True)
class _Running:
    """The calling process's record of the run on one worker."""

    future: Any
    phases: PhaseTimer
    process: str = ""  # prefix of the owner string of its claims
    has_begun: bool = False  # whether its device is known
    is_over: bool = False  # whether its task has ended


class Cluster:
    """The tuning runs on the workers of a Dask scheduler. The name of a run is its worker's address."""

    def __init__(self, address: str, run: Run) -> None:
        """Raise InputError if the run's device is a GPU of this machine: the runs execute on the workers."""
        if run.device not in (None, HOST):
            raise InputError(
                f"--device {run.device} names a device of this machine: with --cluster each worker's run takes the"
                f" first GPU that it sees, as dask-cuda starts workers, or with --device {HOST} the host"
            )
        self._address, self._run = address, run
        self._client: Any = None
        self._queue: Any = None
        self._running: dict[str, _Running] = {}
        self._refused: set[str] = set()  # workers that no run was started on, or whose run has ended
        self._has_result = False
        self._checked_at = self._lost_at = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The addresses of the workers that have a run."""
        return tuple(map(_name, self._running))

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
        try:
            self._queue = distributed.Queue(f"tsm2-tune-{uuid.uuid4().hex}", client=self._client)
            self._begin()
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._client.cancel([one.future for one in self._running.values()], force=True)
            end = time.monotonic() + END_SECONDS
            while self._running and time.monotonic() < end:  # until each run has released its claims
                for _ in self._receive():
                    pass
        self._client.close()

    def events(self) -> Iterator[tuple[str, Event | End]]:
        """Yield (worker's address, event). The last item of each run contains the run's result or error instead of an
        event.
        """
        while self._running or self._may_return():
            yield from self._receive()

    def _begin(self) -> None:
        """Start a run on every worker. Raise DeviceError if there are no workers. Raise ToolMissing or InputError if
        a worker cannot execute the run.
        """
        facts = self._facts(list(self._client.nthreads()))
        if not facts:
            raise DeviceError(
                f"the Dask scheduler at {self._address} has no workers: start some with `dask cuda worker"
                f" {self._address}`, or `dask worker {self._address}`"
            )
        for worker, of_worker in facts.items():
            refusal = self._refusal(worker, of_worker)
            if refusal is not None:
                raise refusal
        self._start(facts)

    def _start(self, facts: Mapping[str, Facts | Exception]) -> None:
        systems = [one.system for one in facts.values() if isinstance(one, Facts)]
        for worker, one in facts.items():
            assert isinstance(one, Facts)
            database = without_password(self._database)
            run = replace(self._run.on(self._run.device, sharing=systems.count(one.system)), db=database)
            future = self._client.submit(
                work, written(run), self._queue.name, worker, key=f"tsm2-tune-{uuid.uuid4().hex}",
                workers=[worker], allow_other_workers=False, pure=False, retries=0,
            )  # fmt: skip
            self._running[worker] = _Running(future, PhaseTimer())

    @property
    def _database(self) -> str:
        """The database's address, or the file's absolute path, since workers have other working folders."""
        return self._run.db if is_address(self._run.db) else os.path.abspath(self._run.db)

    def _facts(self, workers: list[str]) -> dict[str, Facts | Exception]:
        found = self._client.run(facts_json, workers=workers, on_error="return")
        return {worker: _parsed_facts(one) for worker, one in found.items()}

    def _refusal(self, worker: str, facts: Facts | Exception) -> TuneError | None:
        """Return an error with the reason why the worker cannot execute the run; None if it can."""
        name, own = _name(worker), facts_here()
        if isinstance(facts, Exception):
            said = " ".join(str(facts).split())
            return ToolMissing(f"worker {name} cannot load tsm2-tune {own.version} ({said}): install it there")
        if (facts.version, facts.python) != (own.version, own.python):
            return ToolMissing(
                f"worker {name} has tsm2-tune {facts.version} on Python {facts.python}, and this is {own.version} on"
                f" {own.python}: install the same there and here"
            )
        if not is_address(self._run.db) and facts.system != own.system:
            return InputError(
                f"{self._run.db} is a file of this machine, and worker {name} is on another one: name a database that"
                f" all workers reach, such as --db {EXAMPLE}"
            )
        return None

    def _receive(self) -> Iterator[tuple[str, Event | End]]:
        """Yield the events that have arrived, and an error for each run whose worker has left the cluster.

        Raise WorkerError if the scheduler does not answer.
        """
        try:
            for message in self._messages():
                yield from self._events_of(message)
            if time.monotonic() - self._checked_at >= LOOK_SECONDS:
                yield from self._check_workers()
                self._checked_at = time.monotonic()
        except OSError as error:
            raise WorkerError(
                f"the Dask scheduler at {self._address} does not answer any more ({error}): every trial that ended"
                " is in the database: run the same command to continue"
            ) from None

    def _messages(self) -> list[object]:
        """Return the messages that have arrived. If there are none, sleep for POLL_SECONDS and return [].

        Dask's own timeout is not used: it would write an error to the scheduler's log.
        """
        found: list[object] = self._queue.get(batch=True)
        if not found:
            time.sleep(POLL_SECONDS)
        return found

    def _events_of(self, received: object) -> Iterator[tuple[str, Event | End]]:
        try:
            message: Message = read(received, MESSAGES)
        except Malformed as error:
            yield (
                self._address,
                Noted(f"a message that does not come from a run is ignored ({in_a_line(str(error))})"),
            )
            return
        worker, running = message.worker, self._running.get(message.worker)
        if running is None:  # its worker was considered lost
            return
        if isinstance(message, RunBegan):
            running.process = message.process
        elif isinstance(message, EventBatch):
            running.phases.enter(message.phase)
            for event in message.events:
                if isinstance(event, RunStarted):
                    event, running.has_begun = replace(event, phases=running.phases), True
                if running.has_begun or isinstance(event, Noted):
                    yield _name(worker), event
        else:
            yield from self._ended(worker, message.end)

    def _ended(self, worker: str, end: End) -> Iterator[tuple[str, End]]:
        del self._running[worker]
        self._refused.add(worker)
        self._has_result |= isinstance(end, RunResult)
        yield _name(worker), end

    def _check_workers(self) -> Iterator[tuple[str, End]]:
        """Yield an error for each run whose worker has left or failed. Start runs on new workers."""
        present = set(self._client.nthreads())
        for worker, running in list(self._running.items()):
            if worker not in present:
                running.future.cancel()
                with suppress(TuneError):
                    expire_claims(self._database, running.process)
                self._lost_at = time.monotonic()
                yield from self._ended(worker, WorkerError("its worker is lost"))
            elif running.is_over:  # and its last messages have been read
                yield from self._ended(worker, WorkerError("its worker failed: see its log"))
            running.is_over = running.future.status in ("error", "finished")
        new = [worker for worker in present if worker not in self._running and worker not in self._refused]
        if new and not self._has_result:  # else hardly any work remains
            facts = self._facts(new)
            refused = {worker for worker, one in facts.items() if self._refusal(worker, one) is not None}
            self._refused |= refused
            self._start({worker: one for worker, one in facts.items() if worker not in refused})

    def _may_return(self) -> bool:
        """Return whether to wait for a new worker.

        The result is True if a worker was lost less than RETURN_SECONDS ago and no run has completed.
        """
        return not self._has_result and 0 < self._lost_at > time.monotonic() - RETURN_SECONDS


def facts_here() -> Facts:
    """Return the facts of this process: the version of tsm2-tune, the version of Python and the id of its machine."""
    return Facts(__version__, "{}.{}".format(*sys.version_info), system())


def facts_json() -> str:
    """Return `facts_here()` as JSON."""
    return written(facts_here())


def _parsed_facts(message: object) -> Facts | Exception:
    """Return the Facts in a worker's reply. If the reply is an exception or malformed, return the exception."""
    try:
        return message if isinstance(message, Exception) else read(message, (Facts,))
    except Malformed as error:
        return error


def work(run: str, queue: str, name: str) -> None:
    """Execute a run in a child process, and put its events into the caller's queue. This is the Dask task on a
    worker.
    """
    distributed = _distributed()
    worker = distributed.get_worker()
    key = worker.get_current_task()
    to_caller = distributed.Queue(queue)
    member = ChildRun(read(run, (Run,)))
    try:
        to_caller.put(written(RunBegan(name, process_of(member.process_id))))
        while not member.has_ended:
            if wait([member.connection], timeout=LOOK_SECONDS):
                events = member.receive()
                message = (
                    ChildEnded(name, member.end) if member.has_ended else EventBatch(name, events, member.phases.now)
                )
                to_caller.put(written(message))
            task = worker.state.tasks.get(key)
            if task is None or task.state == CANCELLED:
                member.stop()
    finally:
        member.stop()
        member.close()


def _name(worker: str) -> str:
    return worker.partition("://")[2] or worker


def _distributed() -> Any:
    """Import and return Dask's module `distributed`. Raise ToolMissing if it is not installed."""
    try:
        import distributed
    except ModuleNotFoundError:
        raise ToolMissing(f"--cluster needs Dask: {pip_install('distributed')}") from None
    return distributed
