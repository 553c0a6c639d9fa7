"""Prevent NumPy's OpenBLAS from starting one thread per core: tsm2-tune computes nothing with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OPENBLAS_NUM_THREADS"  # read by OpenBLAS when it is loaded


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Set OPENBLAS_NUM_THREADS to 1 in the `with` block.

    A NumPy that this process or a child process imports in the block then uses one thread. If the user has set the
    variable, it is not changed. Otherwise it is unset afterwards.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[VARIABLE]
