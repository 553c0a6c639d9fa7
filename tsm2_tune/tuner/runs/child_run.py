"""A run in a process of its own: its events come through a connection, and it ends with who started it."""

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

TOGETHER_SECONDS = 0.05  # events that come within so much of each other are sent together
SILENCE_SECONDS = 1.0  # without an event, after which it is told what the run is at
END_SECONDS = 30.0  # for a run that was asked to end, to do so

End = RunResult | TuneError | None  # None: it was stopped
Message = tuple[list[Event], str] | End  # events with the phase that the run is in; at last how it ended


class ChildRun:
    """Our side of the process."""

    def __init__(self, run: Run) -> None:
        """Start it. Raise WorkerError if the system does not."""
        self.phases = PhaseTimer()  # of the run
        self.end: End = None
        self.has_ended = False
        try:
            self._process, self.connection = start_child(serve)
        except OSError as error:
            raise WorkerError(
                f"no process can be started for a run ({error.strerror}): end others, or raise the limits of"
                " processes and open files, then run this again"
            ) from None
        with suppress(OSError):  # it died: then it has no message
            self.connection.send(run)

    def receive(self) -> list[Event]:
        """Return the events that have come, waiting for some; none where it has ended: then `end` says how."""
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
        """The id of the process."""
        return self._process.pid

    def stop(self) -> None:
        """Ask it to end."""
        with suppress(OSError):
            self._process.send_signal(signal.SIGTERM)

    def close(self, wait_seconds: float = END_SECONDS) -> None:
        """End it for good, where it does not end by itself before."""
        self.connection.close()
        self.has_ended = True
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _lost(self) -> None:
        """It ended without a word."""
        self.close(1.0)
        status = self._process.returncode
        known = {one.value: one.name for one in signal.Signals}
        by = f"by {known.get(-status, -status)}" if status < 0 else f"with exit status {status}"
        self.end = WorkerError(f"its process was ended {by}")


class _EventSender:
    """Sends events from a thread: a reader that is late keeps no trial waiting."""

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
        """Send what is left, and this."""
        self._events.put(None)
        self._thread.join()
        with suppress(OSError):  # nobody reads any more
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
        """Events that have come, after a while none."""
        with suppress(queue.Empty):
            events = [self._events.get(timeout=SILENCE_SECONDS)]
            if events != [None]:
                threading.Event().wait(TOGETHER_SECONDS)
                while not self._events.empty():
                    events.append(self._events.get())
            return events
        return []


def serve(connection: Connection) -> None:
    """Do the run that comes through the connection, in the process of a member, and tell of it."""
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
