"""The disposable process that owns the device: it loads, verifies and measures, and may die of it.

A kernel that faults poisons its process for good, and one that hangs can only be ended with it. So the parent
never opens the device; it sends requests to a worker, watches the stages that the worker reports, and starts
another one when the last is gone.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tsm2_tune.errors import DeviceError, TuneError, WorkerError
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.tuner.measure.vendor.finalists import Libraries
from tsm2_tune.tuner.measure.vendor.libraries import FILES
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.runs.signals import held
from tsm2_tune.tuner.search.phase_timer import Phases
from tsm2_tune.tuner.worker.child_process import start_child
from tsm2_tune.tuner.worker.protocol import Attempt, AttemptResult, FullVerification, Rematch, Rematched
from tsm2_tune.tuner.worker.server import serve
from tsm2_tune.tuner.worker.time_limit import answers_in_time

START_LIMIT_SECONDS = 120.0  # for a worker to open its device: a busy machine's first context takes a while
END_SECONDS = 10.0  # for a killed process to be gone: it is not while its driver waits for a device
# What a kernel on the host can die of. Every other signal is somebody else's: that of a machine without memory,
# of whoever ends the session, of a limit.
OF_KERNELS = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
)
BEFORE_THE_KERNEL = (None, "release", "ceilings", "operands")  # stages that no kernel under test takes part in
BETWEEN_REQUESTS = "search"  # the phase in which the worker waits
ASKED_AHEAD = "the next trial"  # the phase of a worker that works ahead, when nobody waits for it
CLEANED = "see who cleans the cache of kernels"
REQUESTS_PER_PROCESS = 1000  # a library once loaded stays mapped, and mappings are limited (65530 on Linux)

Meanwhile = Callable[[], bool]  # does a little of other work; False if there is none now


def nothing_meanwhile() -> bool:
    """There is no other work."""
    return False


__all__ = ["Attempt", "AttemptResult", "Rematch", "Rematched", "Worker", "WorkerError"]


class _Innocent(Exception):
    """The process died before the kernel began, was killed from outside or lost its device: it is asked once more."""


class Worker:
    """The parent's side: requests out, results back, whatever happens to the process.

    `support` gives the path of the tuner's own kernels, compiled again where they were lost. `phases` is told of the
    stages that the process reports.
    """

    def __init__(
        self, spec: str, support: Callable[[], str], *, limit_seconds: float, phases: Phases | None = None
    ) -> None:
        self._spec, self._support = spec, support
        self._phases = phases or Phases()
        self.limit_seconds = limit_seconds  # for each stage of a request
        self._process: Any = None
        self._trouble = ""  # why the last process did not open the device, and a remedy for when that comes again
        self._requests = 0
        self._connection: Connection | None = None
        self._is_open = False  # whether the process has said that its device is
        self._asked_ahead: Attempt | None = None  # the attempt that the process works on ahead

    def start(self) -> None:
        """Start the process, if there is none. It opens its device meanwhile: a request waits for that."""
        if self._connection is None:
            self._start()

    def ceilings(self) -> Ceilings:
        """Measured now, on the device."""
        answer = self._ask("ceilings")
        if isinstance(answer, AttemptResult):
            remedy = "; raise --run-limit" if answer.outcome is Outcome.TIMED_OUT else ""
            raise WorkerError(f"measuring the device's ceilings failed: {answer.detail}{remedy}")
        assert isinstance(answer, Ceilings)
        return answer

    def attempt(self, request: Attempt, meanwhile: Meanwhile = nothing_meanwhile) -> AttemptResult:
        """Return the result, also where the kernel took the worker down with it.

        `meanwhile` is done until it is there.
        """
        answer = self._ask(request, meanwhile=meanwhile)
        assert isinstance(answer, AttemptResult)
        return answer

    def ask_ahead(self, request: Attempt) -> None:
        """Ask for what `attempt` is to be called for next, while the process is at something else.

        It begins with that at once. Where it ends before that, `attempt` asks again.
        """
        is_due_to_end = self._requests + 1 >= REQUESTS_PER_PROCESS
        if self._connection is None or not self._is_open or self._asked_ahead is not None or is_due_to_end:
            return
        with suppress(OSError):  # it has just ended, as whoever waits for its answer is told
            self._connection.send(request)
            self._asked_ahead = request

    def rematch(self, request: Rematch) -> Rematched | AttemptResult:
        """Return the measurements, or an AttemptResult that says why there are none."""
        measured = (len(request.entries) + len(FILES) * request.vendor) * len(request.caches)
        answer = self._ask(request, limit_seconds=self.limit_seconds * measured)
        assert isinstance(answer, Rematched | AttemptResult)
        return answer

    def vendor(self) -> Libraries:
        """Return whether the vendor's libraries are there and serve this device."""
        answer = self._ask("vendor")
        if isinstance(answer, AttemptResult):
            return Libraries((), answer.detail)
        assert isinstance(answer, Libraries)
        return answer

    def verify_in_full(self, request: FullVerification) -> AttemptResult:
        """Return the verdict, in a result without a measurement; OK where it is right."""
        answer = self._ask(request)
        assert isinstance(answer, AttemptResult)
        return answer

    def release(self) -> None:
        """Have the process give back its operands, which it keeps for the next request, if there is one."""
        if self._is_open:
            self._ask("release")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self._process = self._connection = self._asked_ahead = None
        self._is_open = False

    def _ask(
        self, request: object, limit_seconds: float | None = None, meanwhile: Meanwhile = nothing_meanwhile
    ) -> object:
        limit_seconds = self.limit_seconds if limit_seconds is None else limit_seconds
        self._requests += 1
        if self._requests >= REQUESTS_PER_PROCESS and self._asked_ahead is None:
            self._requests = 0
            self.close()
        answer = self._answer_of_two(request, limit_seconds, meanwhile)
        if isinstance(answer, AttemptResult) and answer.outcome is Outcome.CRASHED:
            self._connected()  # an error where the device is gone: then that was no fault of the kernel's
        return answer

    def _answer_of_two(self, request: object, limit_seconds: float, meanwhile: Meanwhile) -> object:
        """Return the process's answer; that of a second one where the first failed for no fault of the kernel's."""
        try:
            return self._answer(request, limit_seconds, meanwhile)
        except _Innocent:
            pass
        try:
            return self._answer(request, limit_seconds, meanwhile)
        except _Innocent as died:
            return AttemptResult(Outcome.INTERRUPTED, str(died))

    def _answer(self, request: object, limit_seconds: float, meanwhile: Meanwhile) -> object:
        """Return the process's answer, or how it ended; _Innocent where that may be none of its doing."""
        if self._asked_ahead is not None and self._asked_ahead is not request:
            self.close()  # its next answer is nobody's
        connection = self._connected()
        stage: str | None = None
        try:
            if self._asked_ahead is None:
                connection.send(request)
            self._asked_ahead = None
            while True:
                self._let(meanwhile, connection)
                if not answers_in_time(connection, self._process.pid, limit_seconds):
                    self.close()
                    return AttemptResult(Outcome.TIMED_OUT, f"{stage or 'start'} took more than {limit_seconds:g} s")
                kind, content = connection.recv()
                if kind == "stage":
                    stage = str(content)
                    self._phases.enter(stage)
                elif kind == "lost":
                    self.close()
                    raise _Innocent(str(content))
                elif kind == "error":
                    self.close()
                    raise content if isinstance(content, TuneError) else WorkerError(str(content))
                else:
                    outcome = content.outcome if isinstance(content, AttemptResult) else None
                    if outcome in (Outcome.CRASHED, Outcome.INTERRUPTED):
                        self.close()
                    if outcome is Outcome.INTERRUPTED:
                        raise _Innocent(content.detail)
                    return content
        except (EOFError, ConnectionError):
            code = self._process.wait()
            self.close()
            died = f"the worker died {f'during {stage}' if stage else 'before it began'}{_cause(code)}"
            if stage in BEFORE_THE_KERNEL or _is_from_outside(code):
                raise _Innocent(died) from None
            return AttemptResult(Outcome.CRASHED, died)
        finally:
            self._phases.enter(BETWEEN_REQUESTS if self._asked_ahead is None else ASKED_AHEAD)

    def _let(self, meanwhile: Meanwhile, connection: Connection) -> None:
        """Do other work, a little at a time, until the process says something or there is none."""
        try:
            while not connection.poll() and meanwhile():
                pass
        except BaseException:  # nobody is to take the answer for that to another request
            self.close()
            raise

    def _connected(self) -> Connection:
        """Return the way to a process that has opened its device. One that dies of that, or finds no kernels of the
        tuner's own, is followed by another one.
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
        """Return the process's first message, about its device; None if the process died or must be started again."""
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
            self._trouble = f"{died}, twice: see that the device works, and what else runs here"
            self.close()
            return None
        if kind == "lost":
            self._trouble = f"{content}, twice: {CLEANED}"
            self.close()
            return None
        return kind, content

    def _start(self) -> None:
        support_path = self._support()
        with held():
            self._process, self._connection = self._started(support_path)

    def _started(self, support_path: str) -> tuple[Any, Connection]:
        """Return a new process and the way to it. Raise DeviceError if the system refuses either."""
        try:
            return start_child(serve, self._spec, support_path)
        except OSError as error:
            raise DeviceError(
                f"no process can be started for device {self._spec} ({error.strerror or error}): end others, or raise"
                " the limits of processes and open files (ulimit -u and -n, or the container's), then run this again"
            ) from None


def _is_from_outside(exit_code: int | None) -> bool:
    return exit_code is not None and exit_code < 0 and -exit_code not in OF_KERNELS


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        known = {one.value for one in signal.Signals}
        return f" ({signal.Signals(-exit_code).name})" if -exit_code in known else f" (signal {-exit_code})"
    return f" (exit status {exit_code})"
