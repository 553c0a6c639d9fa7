"""Repeat transactions that a database server aborted, for about a minute."""

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
POOL_TIMEOUT_SECONDS = 3600.0  # how long a thread waits for a connection while others of the process have them all
P = ParamSpec("P")
T = TypeVar("T")


class Lost(StoreError):
    """Error: the database server is unreachable, or it has rolled back the transaction."""


class _Repeating(threading.local):
    """A flag for each thread: whether it is executing a function that `repeated` wraps."""

    is_on = False


_REPEATING = _Repeating()


def until_committed(work: Callable[[], T]) -> T:
    """Call `work` and return its result. After a Lost error, wait and call `work` again, for at most about a minute.

    Raise Lost if the last call fails too. After a signal that ends the run, raise Lost instead of waiting long.
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
    """Decorate a function so that `until_committed` calls it. In nested calls only the outermost call is repeated.

    The function may contain only one transaction that writes.
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
