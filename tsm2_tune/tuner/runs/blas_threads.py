"""Keep NumPy's BLAS from starting a thread per core: tsm2-tune computes no products with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OPENBLAS_NUM_THREADS"  # read by OpenBLAS when it is loaded


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give one thread to the BLAS of a NumPy that this process or a child loads in the body.

    A number that the user has set is kept. The variable is unset afterwards.
    """
    if VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        del os.environ[VARIABLE]
