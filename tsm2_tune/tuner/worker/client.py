"""The tuner's client of the worker, a child process that opens the device and launches the kernels.

A kernel that faults destroys its process's CUDA context, and a kernel that hangs ends only with its process.
Therefore the tuner never opens the device. It sends requests to the worker, and starts a new worker when the last one
has ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from tsm2_tune.errors import DeviceError, TuneError, WorkerError
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.tuner.compile.failure_cause import OF_ITS_OWN, signal_name
from tsm2_tune.tuner.device.target import HOST
from tsm2_tune.tuner.measure.vendor.finalists import VendorLibraries
from tsm2_tune.tuner.measure.vendor.libraries import FILES
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.signals import held
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker.child_process import start_child
from tsm2_tune.tuner.worker.protocol import Attempt, AttemptResult, FinalRound, FinalTimes, FullVerification
from tsm2_tune.tuner.worker.server import serve
from tsm2_tune.tuner.worker.time_limit import answers_in_time

START_LIMIT_SECONDS = 120.0  # for a worker to open its device: the first context is slow on a busy machine
END_SECONDS = 10.0  # for a killed process to end, which is slow while its driver waits for a device
# Signals by which a kernel that runs on the CPU can end its process. Any other signal comes from outside: from Linux
# when memory runs out, the user, or a resource limit.
OF_KERNELS = (*OF_ITS_OWN, signal.SIGBUS)
BEFORE_THE_KERNEL = (None, "release", "ceilings", "operands")  # stages in which no tested kernel runs
BETWEEN_REQUESTS = "search"  # the run's phase while the worker waits
SENT_AHEAD = "the next trial"  # the run's phase while the worker works on a request that was sent ahead
# Of the socket's buffer, for binaries that a busy process has not read: sending must not wait for a hanging kernel.
SENT_SHARE = 0.6
# Of a process on the CPU: its loaded kernels stay mapped, and Linux limits a process to 65530 mappings.
REQUESTS_PER_PROCESS = 1000

__all__ = ["Attempt", "AttemptResult", "FinalRound", "FinalTimes", "Worker", "WorkerError"]


class _NotTheKernel(Exception):
    """Error: the worker failed for a reason other than the tested kernel. The request must be repeated once."""


class Worker:
    """Client of a worker process. It returns a result for every request, even if the process crashes or hangs.

    `spec` names the device. `support` returns the tuner's own compiled kernels: for the name of a type those that
    fill operands and check results, for "" those with which a device measures. `phases` records the time of each
    stage that the process reports.
    """

    def __init__(
        self, spec: str, support: Callable[[str], bytes], *, limit_seconds: float, phases: PhaseTimer | None = None
    ) -> None:
        self._spec, self._support = spec, support
        self._phases = phases or PhaseTimer()
        self.limit_seconds = limit_seconds  # for each stage of a request
        self._process: Any = None
        self._trouble = ""  # why the last process did not open the device, with a remedy
        self._requests = 0
        self._connection: Connection | None = None
        self._most_bytes_ahead = 0  # of binaries that a busy process has not read
        self._is_open = False  # whether the process has opened its device
        self._supported = set[str]()  # types whose support kernels the process has
        self._sent = deque[Attempt]()  # requests that were sent ahead, in this order
        self._held_back = deque[Attempt]()  # later requests, which are too large to be sent ahead

    def start(self) -> None:
        """Start the worker process, unless it is running. Do not wait until it has opened its device."""
        if self._connection is None:
            self._start()

    def ceilings(self) -> Ceilings:
        """Measure and return the device's peak arithmetic rates and memory bandwidth.

        Raise WorkerError if the measurement fails.
        """
        answer = self._ask("ceilings")
        if isinstance(answer, AttemptResult):
            remedy = "; raise --run-limit" if answer.outcome is Outcome.TIMED_OUT else ""
            raise WorkerError(f"measuring the device's ceilings failed: {answer.detail}{remedy}")
        assert isinstance(answer, Ceilings)
        return answer

    def attempt(self, request: Attempt) -> AttemptResult:
        """Load, verify and time the request's kernel. Return the result, even if the kernel crashes the worker."""
        answer = self._ask(request)
        assert isinstance(answer, AttemptResult)
        return answer

    def send_ahead(self, request: Attempt) -> None:
        """Send the request of a later `attempt` call now. The calls must be in the order of the requests.

        The process begins it as soon as it has answered the requests before. If the process ends before it answers,
        the `attempt` call sends the request again. A large request is sent when the process is idle.
        """
        if self._connection is None or not self._is_open:
            return
        self._held_back.append(request)
        with suppress(OSError):  # the process has just ended: the caller that waits for its answer reports this
            while self._held_back and (not self._sent or self._is_small(self._held_back[0])):
                self._send(self._connection, self._held_back[0])
                self._sent.append(self._held_back.popleft())

    def _is_small(self, request: Attempt) -> bool:
        """Return whether the process's socket takes the request while the process is busy."""
        unread = (*list(self._sent)[1:], request)
        is_supported = request.problem.dtype_name in self._supported
        return is_supported and sum(len(one.entry.code) for one in unread) <= self._most_bytes_ahead

    def _send(self, connection: Connection, request: object) -> None:
        """Send the request, with the support kernels for its type if the process lacks them."""
        if isinstance(request, Attempt | FinalRound | FullVerification):
            name = request.problem.dtype_name
            if name not in self._supported:
                request = replace(request, support_code=self._support(name))
                self._supported.add(name)
        connection.send(request)

    def time_finalists(self, request: FinalRound) -> FinalTimes | AttemptResult:
        """Time several kernels, interleaved. Return their times, or an AttemptResult with the failure."""
        measured = (len(request.entries) + len(FILES) * request.vendor) * len(request.caches)
        answer = self._ask(request, limit_seconds=self.limit_seconds * measured)
        assert isinstance(answer, FinalTimes | AttemptResult)
        return answer

    def vendor(self) -> VendorLibraries:
        """Return the versions of NVIDIA's BLAS libraries on the device, or the reason why they cannot be used."""
        answer = self._ask("vendor")
        if isinstance(answer, AttemptResult):
            return VendorLibraries((), answer.detail)
        assert isinstance(answer, VendorLibraries)
        return answer

    def verify_in_full(self, request: FullVerification) -> AttemptResult:
        """Verify a kernel by many more checks than `attempt` does."""
        answer = self._ask(request)
        assert isinstance(answer, AttemptResult)
        return answer

    def release(self) -> None:
        """Free the matrices in device memory that the process keeps for the next request."""
        if self._is_open:
            self._ask("release")

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self._process = self._connection = None
        self._is_open = False
        for kept in (self._supported, self._sent, self._held_back):
            kept.clear()

    def _ask(self, request: object, limit_seconds: float | None = None) -> object:
        """Return the process's answer. If the process fails for a reason other than the kernel, retry once."""
        limit_seconds = self.limit_seconds if limit_seconds is None else limit_seconds
        self._requests += 1
        if self._spec == HOST and self._requests >= REQUESTS_PER_PROCESS:
            self._requests = 0
            self.close()
        try:
            answer = self._answer(request, limit_seconds)
        except _NotTheKernel:
            try:
                answer = self._answer(request, limit_seconds)
            except _NotTheKernel as died:
                return AttemptResult(Outcome.INTERRUPTED, str(died))
        if isinstance(answer, AttemptResult) and answer.outcome is Outcome.CRASHED:
            self._connected()  # raises if the device is gone: then the kernel is not at fault
        return answer

    def _answer(self, request: object, limit_seconds: float) -> object:
        """Send the request and return the answer, or an AttemptResult if the process died or exceeded its time limit.

        Raise _NotTheKernel if the process may have failed for a reason other than the kernel.
        """
        ahead = self._sent or self._held_back
        if ahead and ahead[0] is not request:
            self.close()  # otherwise the answer to the request sent ahead would arrive first
        connection = self._connected()
        stage: str | None = None
        try:
            if self._sent:
                self._sent.popleft()
            else:
                if ahead:
                    self._held_back.popleft()
                self._send(connection, request)
            while True:
                if not answers_in_time(connection, self._process.pid, limit_seconds):
                    self.close()
                    return AttemptResult(Outcome.TIMED_OUT, f"{stage or 'start'} took more than {limit_seconds:g} s")
                kind, content = connection.recv()
                if kind == "stage":
                    stage = str(content)
                    self._phases.enter(stage)
                elif kind == "error":
                    self.close()
                    raise content if isinstance(content, TuneError) else WorkerError(str(content))
                else:
                    outcome = content.outcome if isinstance(content, AttemptResult) else None
                    if outcome in (Outcome.CRASHED, Outcome.INTERRUPTED):
                        self.close()
                    if outcome is Outcome.INTERRUPTED:
                        raise _NotTheKernel(content.detail)
                    return content
        except (EOFError, ConnectionError):
            code = self._process.wait()
            self.close()
            died = f"the worker died {f'during {stage}' if stage else 'before it began'}{_cause(code)}"
            if stage in BEFORE_THE_KERNEL or _is_from_outside(code):
                raise _NotTheKernel(died) from None
            return AttemptResult(Outcome.CRASHED, died)
        finally:
            self._phases.enter(SENT_AHEAD if self._sent else BETWEEN_REQUESTS)

    def _connected(self) -> Connection:
        """Return the connection to a process that has opened its device; start the process if necessary.

        If the process dies while it opens the device, retry once with a new process. Raise DeviceError or WorkerError
        if the device does not open.
        """
        if self._connection is not None and self._is_open:
            return self._connection
        self._phases.enter("start of the worker")
        message = self._first_message() or self._first_message()
        if message is None:
            raise WorkerError(self._trouble)
        kind, content = message
        if kind != "ready":
            self.close()
            raise content if isinstance(content, TuneError) else WorkerError(str(content))
        assert self._connection is not None
        self._is_open = True
        return self._connection

    def _first_message(self) -> tuple[str, Any] | None:
        """Start a process if none runs. Return its first message, which says whether the device opened."""
        if self._connection is None:
            self._start()
        assert self._connection is not None
        if not answers_in_time(self._connection, self._process.pid, START_LIMIT_SECONDS):
            self.close()
            raise DeviceError(f"device {self._spec} does not open within {START_LIMIT_SECONDS:g} s: is it in use?")
        try:
            kind, content = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            died = f"the worker died while it opened device {self._spec}{_cause(code)}"
            self._trouble = f"{died}, twice: check the device, and other programs on this machine"
            self.close()
            return None
        return kind, content

    def _start(self) -> None:
        support_code = self._support("")
        with held():
            self._process, self._connection = self._started(support_code)
        self._most_bytes_ahead = int(SENT_SHARE * _buffer_bytes(self._connection))

    def _started(self, support_code: bytes) -> tuple[Any, Connection]:
        """Start a process. Return the process and its connection. Raise DeviceError if it cannot start."""
        try:
            return start_child(serve, self._spec, content=support_code)
        except OSError as error:
            raise DeviceError(
                f"cannot start a process for device {self._spec} ({error.strerror or error}): end other processes,"
                " or raise the limits of processes and open files (ulimit -u and -n, or the container's), then"
                " run this again"
            ) from None


def _buffer_bytes(connection: Connection) -> int:
    """Return the size of the buffer of the connection's socket, which holds messages that are not read yet."""
    with socket.socket(fileno=os.dup(connection.fileno())) as one:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _is_from_outside(exit_code: int | None) -> bool:
    return exit_code is not None and exit_code < 0 and -exit_code not in OF_KERNELS


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f" ({signal_name(-exit_code)})"
    return f" (exit status {exit_code})"
