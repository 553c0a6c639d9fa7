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

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS = 0.1  # between two looks at whether what was raised is on its way still
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
    waiting: int | None = None  # the signal that came meanwhile
    stopping: bool = False  # one has come: those after it change nothing, so that the end is undisturbed
    raised: weakref.ref[Stopped] | None = None  # for it; dead once something swallowed it
    last: float | None = None  # when the end is forced, as a second signal came

    @property
    def is_due(self) -> bool:
        """Whether Stopped must be raised again: a destructor swallowed it, or the end takes too long."""
        swallowed = self.raised is not None and self.raised() is None
        return self.stopping and (swallowed or (self.last is not None and time.monotonic() > self.last))


_state = _State()


@contextmanager
def stoppable(signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Raise Stopped here when one of the signals comes, except for those that are ignored, as nohup has it.

    A destructor or a callback of a weak reference swallows what is raised in it. So a thread sends the signal again
    until it gets here.
    """
    before = {}
    closed = threading.Event()
    if threading.current_thread() is threading.main_thread():
        _state.stopping, _state.waiting, _state.raised, _state.last = False, None, None, None
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _stop)
        if before:
            arguments = (closed, threading.get_ident(), next(iter(before)))
            threading.Thread(target=_send_again, args=arguments, name="signals", daemon=True).start()
    try:
        yield
    finally:
        closed.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            _state.stopping = False


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
        if not _state.held and _state.waiting is not None:
            number, _state.waiting = _state.waiting, None
            raise _stopped(number)


def is_stopping() -> bool:
    """Whether a signal has come that ends the run."""
    return _state.stopping


def _stop(number: int, _: FrameType | None) -> None:
    if _state.stopping and not _state.is_due:
        _state.last = _state.last or time.monotonic() + LAST_SECONDS
        return
    is_forced, _state.stopping = _state.stopping and _state.last is not None, True
    _state.last = time.monotonic() + LAST_SECONDS if is_forced else None
    if _state.held and not is_forced:
        _state.waiting = number
    else:
        raise _stopped(number)


def _stopped(number: int) -> Stopped:
    """Return what to raise. No frame keeps it, so that its end is seen."""
    error = Stopped(number)
    _state.raised = weakref.ref(error)
    return error


def _send_again(closed: threading.Event, thread: int, number: int) -> None:
    """Send the signal to the thread whenever Stopped is due again."""
    while not closed.wait(LOOK_SECONDS):
        if _state.is_due:
            signal.pthread_kill(thread, number)
