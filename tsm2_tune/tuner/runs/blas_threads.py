"""NumPy's BLAS starts a thread for each core where it is loaded; nothing that tsm2-tune does multiplies by it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OPENBLAS_NUM_THREADS"  # read by OpenBLAS when it is loaded


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A NumPy that is loaded within it has one thread, and so has that of a process that is started within it.

    A number that somebody has set is left. Programs that are started later see nothing of it.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[VARIABLE]
