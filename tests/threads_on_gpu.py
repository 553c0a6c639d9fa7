"""Threads of a program that checks a module on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable

# After so many seconds a program prints where its threads are. That can crash one that runs, so wait until it hangs.
PATIENCE_SECONDS = 200


def in_threads(works: list[Callable[[], object]]) -> None:
    """Do the works at the same time."""
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
