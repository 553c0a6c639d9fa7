"""Repeat transactions that a server aborted, for a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import outage
from tsm2_tune.tuner.runs.signals import is_stopping

WAITS_SECONDS = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # a server restarts in less than their sum
A_MOMENT_SECONDS = 1.0
P = ParamSpec("P")
T = TypeVar("T")


class Lost(StoreError):
    """An error: the server is unreachable, or has rolled the transaction back."""


class _Repeating(threading.local):
    """Whether the thread is already in a call of `until_committed`."""

    is_on = False


_REPEATING = _Repeating()


def until_committed(work: Callable[[], T]) -> T:
    """Return the result of `work`, repeated while its transaction is lost. Raise Lost if the last try is lost too.

    A signal that ends the run also ends the wait.
    """
    began, is_away = time.monotonic(), False
    try:
        for seconds in WAITS_SECONDS:
            try:
                return work()
            except Lost:
                if is_stopping() and seconds > A_MOMENT_SECONDS:
                    raise
                if not is_away:
                    outage.begin(began)
                is_away = True
                time.sleep(seconds)
        return work()
    finally:
        if is_away:
            outage.end()


def repeated(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function in `until_committed`. In nested calls only the outermost call repeats.

    The function may write in one transaction only.
    """

    @wraps(work)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        if _REPEATING.is_on:
            return work(*arguments, **named)
        _REPEATING.is_on = True
        try:
            return until_committed(lambda: work(*arguments, **named))
        finally:
            _REPEATING.is_on = False

    return called
