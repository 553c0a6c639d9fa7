"""A run on several devices. Each device is used by a process of its own, which may be on another machine.

This process has the searches and the database. A thread for each device takes problems from the queue, sends the
candidates to the device's process and stores the trials. If a device's process dies, the other devices try the
candidates that it was asked for.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection
from typing import NamedTuple, Self

from tsm2_tune.errors import TuneError, WorkerError
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.storage.retry import until_committed
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import in_a_line
from tsm2_tune.tuner.runs.device_process import serve_device
from tsm2_tune.tuner.runs.events import (
    Event,
    FleetStarted,
    Noted,
    OfRun,
    ProblemEnded,
    RunEnded,
    RunStarted,
    is_interruption,
)
from tsm2_tune.tuner.runs.messages import Channel
from tsm2_tune.tuner.runs.problem_queue import ProblemQueue
from tsm2_tune.tuner.runs.remote_executor import ExecutorLost, RemoteExecutor
from tsm2_tune.tuner.runs.run import Run, TuningResult, solved, winners
from tsm2_tune.tuner.runs.signals import Stopped, held
from tsm2_tune.tuner.worker.child_process import start_child

END_SECONDS = 30.0  # longest wait for a device's process to end
LOOK_SECONDS = 0.5  # between two looks whether devices have joined or were lost


class DeviceProcess(NamedTuple):
    """A process that will use a device."""

    channel: Channel
    device: Target | str | None  # a string is resolved there; None: GPU 0, or the host
    sharing: int  # number of devices that share its machine's processors


class DevicePool(ABC):
    """The processes that use the devices of a run. It is a context manager: its exit ends all processes."""

    @abstractmethod
    def started(self) -> Mapping[str, DeviceProcess]:
        """Start processes for new devices, and return them by the device's name."""

    def is_awaited(self) -> bool:
        """Return whether to wait for another process, although none is left. By default no process joins later."""
        return False

    def check(self) -> None:
        """Close the channels of processes that were lost. By default the system closes them."""
        return

    @abstractmethod
    def end(self, name: str, *, is_complete: bool) -> str:
        """End a process. Return how it was lost, if it was. `is_complete` says that no problem was left for it."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalDevices(DevicePool):
    """Devices of this machine, each used by a child process."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = dict(targets)
        self._processes: dict[str, tuple[subprocess.Popen[bytes], Connection]] = {}

    def close(self) -> None:
        with held():
            for process, connection in self._processes.values():
                with suppress(OSError):
                    process.send_signal(signal.SIGTERM)
                # A signal that comes just before a read does not interrupt it. The threads that receive from the
                # processes see the end of the pipe.
                with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as pipe:
                    pipe.shutdown(socket.SHUT_RDWR)
            for process, _ in self._processes.values():
                _await_end(process)

    def started(self) -> dict[str, DeviceProcess]:
        """Start a process for each device at the first call. Raise WorkerError if the system cannot start one."""
        found = dict[str, DeviceProcess]()
        for name, target in self._targets.items():
            try:
                self._processes[name] = start_child(serve_device)
            except OSError as error:
                raise WorkerError(
                    f"cannot start a process for {name} ({error.strerror}): end other processes, or raise the limits"
                    " of processes and open files, then run this again"
                ) from None
            found[name] = DeviceProcess(self._processes[name][1], target, len(self._targets))
        self._targets = {}
        return found

    def end(self, name: str, *, is_complete: bool) -> str:
        """Close the connection and wait for the process to end. Kill it after END_SECONDS. Return how it ended."""
        process, connection = self._processes.pop(name)
        connection.close()
        _await_end(process)
        status = process.returncode
        if status >= 0:
            return f"its process ended with exit status {status}"
        known = {one.value: one.name for one in signal.Signals}
        return f"its process was killed by {known.get(-status, -status)}"


def _await_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Fleet:
    """A run on several devices, of one or more kinds. Each kind of device tunes every problem."""

    def __init__(self, run: Run, devices: DevicePool, tell: Callable[[Event], object]) -> None:
        self._run, self._devices, self._tell = run, devices, tell
        self._received = queue.SimpleQueue[tuple[str, Event | BaseException | None]]()  # from the threads
        self._threads: dict[str, threading.Thread] = {}
        self._executors: dict[str, RemoteExecutor] = {}
        self._targets: dict[str, Target] = {}  # by device
        self._kinds = set[str]()  # kinds of devices that are known before the devices open
        self._queues: dict[str, ProblemQueue] = {}  # by kind of device
        self._failures: dict[str, BaseException] = {}  # by device
        self._ended: dict[tuple[str, Problem], ProblemEnded] = {}  # by kind of device
        self._interrupted = 0
        self._lock = threading.Lock()

    def result(self) -> TuningResult:
        """Execute the run and return its result. Raise an error if every device fails, or if the database fails."""
        with ExitStack() as stack:
            try:
                with self._devices:
                    processes = self._devices.started()  # raises before a database is created
                    store = until_committed(lambda: stack.enter_context(Store.open(self._run.db, create=True)))
                    self._start(processes, store, stack)
                    self._tell(FleetStarted(tuple(self._threads), self._run.problems))
                    while self._threads or self._devices.is_awaited():
                        self._handle(*self._next())
                        self._devices.check()
                        self._start(self._devices.started(), store, stack)
            except Stopped as stopped:
                self._join()
                stopped.unstored = sum(one.unstored for one in self._queues.values())
                raise
            finally:
                self._join()
            for note in chain.from_iterable(one.left() for one in self._queues.values()):
                self._tell(note)
            self._refuse_failure()
            by_kind = {target.identity.name: target for target in self._targets.values()}
            cache, asked = self._run.options.cache, self._run.problems
            won = tuple(chain.from_iterable(winners(store, one, one.cache(cache), asked) for one in by_kind.values()))
        return TuningResult(
            tuple(self._targets.values()), solved(self._ended.values(), won), won, self._interrupted, self._unfinished
        )

    def _join(self) -> None:
        """Wait for the threads, whose processes have ended."""
        for one in tuple(self._queues.values()):
            one.stop()
        for thread in self._threads.values():
            thread.join()

    def _start(self, processes: Mapping[str, DeviceProcess], store: Store, stack: ExitStack) -> None:
        """Start a thread for each new process."""
        for name, process in processes.items():
            options = replace(self._run.options, sharing=process.sharing)
            executor = RemoteExecutor(process.channel, process.device, options, wait=self._run.wait)
            self._executors[name] = executor
            if isinstance(process.device, Target):
                self._kinds.add(process.device.identity.name)
            thread = threading.Thread(target=self._serve, args=(name, executor, store, stack), name=name, daemon=True)
            self._threads[name] = thread
            with held():
                thread.start()

    def _next(self) -> tuple[str, Event | BaseException | None]:
        with suppress(queue.Empty):
            return self._received.get(timeout=LOOK_SECONDS)
        return "", None

    def _handle(self, name: str, received: Event | BaseException | None) -> None:
        """Report an event of a device, or the end of its thread: None, or its error."""
        if not name:
            return
        if received is None or isinstance(received, BaseException):
            self._threads.pop(name).join()
            lost = self._devices.end(name, is_complete=received is None)
            received = WorkerError(lost) if isinstance(received, ExecutorLost) else received
            if received is not None:
                self._failures[name] = received
            self._tell(RunEnded(name, "" if received is None else str(received)))
            return
        self._interrupted += is_interruption(received)
        if isinstance(received, ProblemEnded):
            self._ended[self._targets[name].identity.name, received.problem] = received
        self._tell(OfRun(name, received))

    def _serve(self, name: str, executor: RemoteExecutor, store: Store, stack: ExitStack) -> None:
        """Tune problems on a device: the function of its thread."""
        end: BaseException | None = None
        try:
            for event in self._events(name, executor, store, stack):
                self._received.put((name, event))
        except TuneError as error:
            end = error
        except Exception:
            end = WorkerError(in_a_line(traceback.format_exc()))
        self._received.put((name, end))

    def _events(self, name: str, executor: RemoteExecutor, store: Store, stack: ExitStack) -> Iterator[Event]:
        target = executor.open(lambda sentence: self._received.put((name, Noted(sentence))))
        self._targets[name] = target
        yield RunStarted(target, self._run.problems, executor.options, executor.phases)
        yield from self._run.events(self._queue_of(target, store, stack), executor, store)

    def _queue_of(self, target: Target, store: Store, stack: ExitStack) -> ProblemQueue:
        """Return the queue of the devices of this kind."""
        with self._lock:
            kind = target.identity.name
            if kind not in self._queues:
                leases = stack.enter_context(store.leases(kind))
                self._queues[kind] = ProblemQueue(self._run.spaces(target), store, leases)
            return self._queues[kind]

    def _refuse_failure(self) -> None:
        """Raise an error if every device failed: the common error, or a WorkerError with the different errors."""
        if not self._failures or self._failures.keys() < self._executors.keys():
            return
        texts = {name: str(error) for name, error in self._failures.items()}
        if len(set(texts.values())) == 1:
            raise next(iter(self._failures.values()))
        raise WorkerError("every device failed: " + "; ".join(f"{name}: {text}" for name, text in texts.items()))

    @property
    def _unfinished(self) -> tuple[Problem, ...]:
        """The problems that were not tuned on some kind of device, because devices of this kind failed."""
        if not self._kinds <= self._queues.keys():  # no device of a kind has opened
            return self._run.problems
        missing = set(chain.from_iterable(one.unfinished for one in self._queues.values()))
        return tuple(one for one in self._run.problems if one in missing)
