"""Stop a run on Ctrl-C, SIGTERM or SIGHUP, but not within a `with held()` block."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS = 0.1  # between two checks whether something swallowed the exception
AGAIN_SECONDS = 0.005  # between two checks after that, since many destructors in a row may swallow it
LAST_SECONDS = 5.0  # time for the run to end after a second signal


class Stopped(KeyboardInterrupt):
    """Exception that ends the run after a signal."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.stored_in = ""  # the database that a command has written to, if it need not write
        self.unstored = 0  # completed trials that could not be stored, since the database is unreachable


@dataclass(slots=True)
class _State:
    """The signal state of this process. Only the main thread executes signal handlers."""

    held: int = 0  # number of open `held` contexts
    number: int | None = None  # the first signal; it ends the run and gives the exit status
    is_waiting: bool = False  # whether the last `held` to close raises it
    raised: weakref.ref[Stopped] | None = None  # the exception; dead once something swallowed it
    last: float | None = None  # after a second signal, the time when the end is forced

    @property
    def is_due(self) -> bool:
        """Whether to raise Stopped again: a destructor swallowed it, or the run goes on after a second signal."""
        swallowed = self.raised is not None and self.raised() is None and not self.is_waiting
        return self.number is not None and (swallowed or (self.last is not None and time.monotonic() > self.last))


_state = _State()
_sending = threading.Lock()  # held while a signal is sent again: none may be sent after the handlers are restored


@contextmanager
def stoppable(signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Raise Stopped in the `with` block when one of the signals arrives. Signals that are ignored, as under nohup,
    stay ignored.

    Python swallows exceptions in destructors and in weak reference callbacks. So a thread sends the signal again
    until the exception leaves the block.
    """
    before: dict[int, Any] = {}
    closed = threading.Event()
    try:
        with held():
            if threading.current_thread() is threading.main_thread():
                _state.number, _state.is_waiting, _state.raised, _state.last = None, False, None, None
                for number in signals:
                    if signal.getsignal(number) is not signal.SIG_IGN:
                        before[number] = signal.signal(number, _stop)
            if before:
                arguments = (closed, threading.get_ident())
                threading.Thread(target=_send_again, args=arguments, name="signals", daemon=True).start()
        yield
    finally:
        try:
            with held():  # so that all handlers are restored
                with _sending:
                    closed.set()
                signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a system call, which delivers pending signals
                for changed, handler in before.items():
                    signal.signal(changed, handler)
        finally:
            if before:
                _state.number = None


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Stopped on Ctrl-C in the `with` block, if Python's default handler for SIGINT is installed.

    Other handlers are not replaced.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with stoppable((signal.SIGINT,)):
            yield
    else:
        yield


@contextmanager
def held() -> Iterator[None]:
    """Delay signals: if one arrives in the `with` block, Stopped is raised at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.held += 1
    try:
        yield
    finally:
        _state.held -= 1
        if not _state.held and _state.is_waiting:
            _state.is_waiting = False
            raise _stopped()


def is_stopping() -> bool:
    """Return whether a signal has arrived that ends the run."""
    return _state.number is not None


def _stop(number: int, _: FrameType | None) -> None:
    is_first, is_forced = _state.number is None, _state.last is not None
    if is_first:
        _state.number = number
    elif not _state.is_due:
        _state.last = _state.last or time.monotonic() + LAST_SECONDS
        return
    elif is_forced:
        _state.last = time.monotonic() + LAST_SECONDS
    if _state.held and not is_forced:
        _state.is_waiting = True
    else:
        raise _stopped()


def _stopped() -> Stopped:
    """Return a Stopped exception for the first signal.

    No frame keeps the exception alive. So a dead weak reference to it shows that a destructor swallowed it.
    """
    error = Stopped(signal.SIGINT if _state.number is None else _state.number)
    _state.raised = weakref.ref(error)
    return error


def _send_again(closed: threading.Event, thread: int) -> None:
    """Send the first signal to the thread again as long as Stopped has to be raised again."""
    seconds = LOOK_SECONDS
    while not closed.wait(seconds):
        with _sending:
            number = None if closed.is_set() or not _state.is_due else _state.number
            if number is not None:
                signal.pthread_kill(thread, number)
        seconds = LOOK_SECONDS if number is None else AGAIN_SECONDS
