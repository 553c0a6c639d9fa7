"""A run to which a signal comes in a destructor, or in a callback of a weak reference: Python drops what that raises.

python -m tests.swallowing_command in_destructor 15 r.db
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from tests.command import TUNE
from tests.quick_command import make_quick
from tsm2_tune.__main__ import main
from tsm2_tune.tuner.worker.client import AttemptResult, Worker

BEFORE_IT = 1  # attempts, so that trials are stored


def in_destructor(work: Callable[[], None]) -> None:
    """Do the work in a destructor."""

    class Ended:
        def __del__(self) -> None:
            work()

    Ended()


def in_weak_reference(work: Callable[[], None]) -> None:
    """Do the work in a callback of a weak reference."""

    class Ended:
        pass

    ended = Ended()
    reference = weakref.ref(ended, lambda _: work())
    del ended
    assert reference() is None


def stopped_within(swallowing: Callable[[Callable[[], None]], None], number: int) -> Callable[..., AttemptResult]:
    """Return an attempt to which one signal comes, after a while."""
    attempt, made = Worker.attempt, count()

    def attempted(*arguments: Any) -> AttemptResult:
        if next(made) == BEFORE_IT:
            swallowing(lambda: os.kill(os.getpid(), number))
            print("swallowed", file=sys.stderr)
        return attempt(*arguments)

    return attempted


if __name__ == "__main__":
    make_quick(setattr)
    name, number, path = sys.argv[1:]
    swallowing = {"in_destructor": in_destructor, "in_weak_reference": in_weak_reference}[name]
    Worker.attempt = stopped_within(swallowing, int(number))  # type: ignore[method-assign]
    sys.argv = ["tsm2-tune", *TUNE[:-1], "1000", "--db", path]
    main()
