"""Signals that end a run: Ctrl-C, SIGTERM and SIGHUP, each once, and never in the middle of what must be whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the run to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.unstored = 0  # trials that ended, and that a database which is away does not have


@dataclass(slots=True)
class _State:
    """Of this process: handlers run in its main thread alone."""

    held: int = 0  # how many `held` are open
    waiting: int | None = None  # the signal that came meanwhile
    stopping: bool = False  # one has come: those after it change nothing, so that the end is undisturbed


_state = _State()


@contextmanager
def stoppable(signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Each of the signals raises Stopped here, but for those that are ignored, as nohup has it."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        _state.stopping, _state.waiting = False, None
        for number in signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
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
            raise Stopped(number)


def is_stopping() -> bool:
    """Whether a signal has come that ends the run."""
    return _state.stopping


def _stop(number: int, _: FrameType | None) -> None:
    if _state.stopping:
        return
    _state.stopping = True
    if _state.held:
        _state.waiting = number
    else:
        raise Stopped(number)
