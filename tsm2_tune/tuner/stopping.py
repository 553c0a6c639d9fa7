"""Signals that end a run: Ctrl-C, SIGTERM and SIGHUP, each once, and never in the middle of what must be whole."""

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
LOOK_SECONDS = 0.1  # between two looks at whether what was raised is on its way still
AGAIN_SECONDS = 0.005  # where it was swallowed: many destructors in a row may do that
LAST_SECONDS = 5.0  # that the end may take once a second signal asks for it


class Stopped(KeyboardInterrupt):
    """A signal asked the run to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.unstored = 0  # trials that ended, and that a database which is away does not have


@dataclass(slots=True)
class _State:
    """Signals of this process. Its main thread alone runs handlers."""

    held: int = 0  # how many `held` are open
    number: int | None = None  # the first signal that came: it ends the run, and gives the exit status
    is_waiting: bool = False  # whether it is to be raised when the last `held` closes
    raised: weakref.ref[Stopped] | None = None  # for it; dead once something swallowed it
    last: float | None = None  # when the end is forced, as a second signal came

    @property
    def is_due(self) -> bool:
        """Whether Stopped must be raised again: a destructor swallowed it, or the end takes too long."""
        swallowed = self.raised is not None and self.raised() is None and not self.is_waiting
        return self.number is not None and (swallowed or (self.last is not None and time.monotonic() > self.last))


_state = _State()
_sending = threading.Lock()  # held while a signal is sent again, so that none is sent once nobody handles it


@contextmanager
def stoppable(signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Raise Stopped here when one of the signals comes, except for those that are ignored, as nohup has it.

    A destructor or a callback of a weak reference swallows what is raised in it. So a thread sends the signal again
    until it gets here.
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
            with held():  # so that all handlers are put back
                with _sending:
                    closed.set()
                signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a system call: it delivers what was sent just before
                for changed, handler in before.items():
                    signal.signal(changed, handler)
        finally:
            if before:
                _state.number = None


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises Stopped here, as in `stoppable`, where Python's own handler would have raised KeyboardInterrupt.

    Whoever has a handler of its own keeps it, as all other signals do.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with stoppable((signal.SIGINT,)):
            yield
    else:
        yield


@contextmanager
def held() -> Iterator[None]:
    """A signal that comes while this is open raises when it closes: for what would leave something half done."""
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
    """Whether a signal has come that ends the run."""
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
    """Return what to raise for the first signal. No frame keeps it, so that its end is seen."""
    error = Stopped(signal.SIGINT if _state.number is None else _state.number)
    _state.raised = weakref.ref(error)
    return error


def _send_again(closed: threading.Event, thread: int) -> None:
    """Send the first signal to the thread whenever Stopped is due again."""
    seconds = LOOK_SECONDS
    while not closed.wait(seconds):
        with _sending:
            number = None if closed.is_set() or not _state.is_due else _state.number
            if number is not None:
                signal.pthread_kill(thread, number)
        seconds = LOOK_SECONDS if number is None else AGAIN_SECONDS
