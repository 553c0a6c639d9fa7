"""A tuning run in a child process, which sends its events to the parent through a connection."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from tsm2_tune.errors import TuneError, WorkerError
from tsm2_tune.tuner.results.trial import in_a_line
from tsm2_tune.tuner.runs.events import Event, RunStarted
from tsm2_tune.tuner.runs.run import Run, RunResult
from tsm2_tune.tuner.runs.signals import SIGNALS, stoppable
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.worker.child_process import start_child

TOGETHER_SECONDS = 0.05  # events within this time are sent in one message
SILENCE_SECONDS = 1.0  # without an event for so long, the run's phase is sent
END_SECONDS = 30.0  # longest wait for the run to end

End = RunResult | TuneError | None  # None: it was stopped
Message = tuple[list[Event], str] | End  # events and the run's phase; the last message is the run's end


class ChildRun:
    """The parent process's view of a tuning run in a child process: receive its events, stop it, wait for its end."""

    def __init__(self, run: Run) -> None:
        """Start the process and send the run to it. Raise WorkerError if the system cannot start a process."""
        self.phases = PhaseTimer()  # the run's phases
        self.end: End = None
        self.has_ended = False
        try:
            self._process, self.connection = start_child(serve)
        except OSError as error:
            raise WorkerError(
                f"cannot start a process for a run ({error.strerror}): end other processes, or raise the limits of"
                " processes and open files, then run this again"
            ) from None
        with suppress(OSError):  # the process died, which `receive` reports
            self.connection.send(run)

    def receive(self) -> list[Event]:
        """Wait for events and return them. If the run has ended, return [] and set `end` and `has_ended`."""
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            self._lost()
            return []
        if isinstance(message, tuple):
            events, phase = message
            self.phases.enter(phase)
            return [replace(one, phases=self.phases) if isinstance(one, RunStarted) else one for one in events]
        self.end, self.has_ended = message, True
        self.close()
        return []

    @property
    def process_id(self) -> int:
        """The process id of the child process."""
        return self._process.pid

    def stop(self) -> None:
        """Send SIGTERM to the child process, so that the run ends."""
        with suppress(OSError):
            self._process.send_signal(signal.SIGTERM)

    def close(self, wait_seconds: float = END_SECONDS) -> None:
        """Wait for the process to end. Kill it after `wait_seconds`."""
        self.connection.close()
        self.has_ended = True
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _lost(self) -> None:
        """Set `end` to an error: the process ended without sending a result."""
        self.close(1.0)
        status = self._process.returncode
        known = {one.value: one.name for one in signal.Signals}
        by = f"by {known.get(-status, -status)}" if status < 0 else f"with exit status {status}"
        self.end = WorkerError(f"its process was killed {by}")


class _EventSender:
    """A thread that sends events to the parent, so that a slow parent does not delay the measurements."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._events = queue.SimpleQueue[Event | None]()
        self._phases, self._phase = PhaseTimer(), ""
        self._thread = threading.Thread(target=self._send_all, name="sender", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._phases = event.phases
        self._events.put(event)

    def end(self, end: End) -> None:
        """Send the remaining events, then `end`: the run's result or error."""
        self._events.put(None)
        self._thread.join()
        with suppress(OSError):  # the parent is gone
            self._connection.send(end)

    def _send_all(self) -> None:
        is_over = False
        with suppress(OSError):
            while not is_over:
                events = self._next_events()
                is_over = None in events
                pending, phase = [one for one in events if one is not None], self._phases.now
                if pending or phase != self._phase:
                    self._connection.send((pending, phase))
                    self._phase = phase

    def _next_events(self) -> list[Event | None]:
        """Wait for events and return them. Return [] if no event arrives within SILENCE_SECONDS."""
        with suppress(queue.Empty):
            events = [self._events.get(timeout=SILENCE_SECONDS)]
            if events != [None]:
                threading.Event().wait(TOGETHER_SECONDS)
                while not self._events.empty():
                    events.append(self._events.get())
            return events
        return []


def serve(connection: Connection) -> None:
    """Receive a Run, execute it, and send its events and its result. The child process executes this function."""
    end: End = None
    sender: _EventSender | None = None
    try:
        with stoppable():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            run = connection.recv()
            sender = _EventSender(connection)
            end = run.result(sender.send, is_child=True)
    except KeyboardInterrupt:
        pass
    except (EOFError, ConnectionError):
        return
    except TuneError as error:
        end = error
    except Exception:
        end = WorkerError(in_a_line(traceback.format_exc()))
    if sender is not None:
        sender.end(end)
