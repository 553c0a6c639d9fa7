"""`Work`: the least time of a product on a GPU, from its memory traffic and its arithmetic operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from tsm2_tune.runtime.elements import DTYPES, MATHS

VECTOR_BYTES = 16

Floats = np.ndarray[Any, Any]
Indices = Sequence[int] | np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Card:
    """The measured rates of the GPU on which kernels were tuned, or of the emulation on the CPU."""

    sms: int  # number of multiprocessors
    read_gbytes_per_s: float
    copy_gbytes_per_s: float  # bytes read plus bytes written
    gflops: dict[str, float]  # element type -> rate; a fused multiply-add counts as two operations


@dataclass(frozen=True, slots=True)
class Work:
    """A product C (m x n) = A (m x k) B (k x n) on a GPU, with the least times of memory traffic and arithmetic."""

    m: float
    n: float
    k: float
    element_bytes: int
    has_odd_lines: bool  # the leading dimension of A, or of B or C, is not a multiple of the vector loads
    memory_us: float  # time to read A and B once and write C once
    arithmetic_us: float

    @classmethod
    def of(
        cls,
        shape: tuple[int, int, int],
        dtype: str,
        card: Card,
        *,
        is_gram: bool = False,
        has_odd_lines: bool = False,
    ) -> Work:
        """Return the work of a product on this GPU. `dtype` is a name in DTYPES or MATHS.

        With `is_gram`, B is the transpose of A, so the time of reading B does not count.
        """
        m, n, k = map(float, shape)
        size = element_bytes(dtype)
        read, written = m * k + (0 if is_gram else k * n), m * n
        of_read = 1e-3 / card.read_gbytes_per_s
        of_written = max(2e-3 / card.copy_gbytes_per_s - of_read, of_read)
        gflops = card.gflops.get(dtype)
        flops = (8.0 if dtype in ("c64", "c128") else 2.0) * m * n * k
        arithmetic_us = flops / gflops * 1e-3 if gflops else 0.0
        return cls(m, n, k, size, has_odd_lines, size * (read * of_read + written * of_written), arithmetic_us)

    @property
    def least_us(self) -> float:
        """The least time of any kernel in microseconds, without the fixed time of its start."""
        return float(np.hypot(self.memory_us, self.arithmetic_us))


@dataclass(frozen=True, slots=True)
class WorkTable:
    """The `Work` of several kernels: arrays with a row for each kernel, or a number that is the same for all."""

    m: float | Floats
    n: float | Floats
    k: float | Floats
    has_odd_lines: Floats  # 1 or 0
    memory_us: Floats
    arithmetic_us: float | Floats

    @classmethod
    def of(cls, works: Sequence[Sequence[Work]]) -> WorkTable:
        """Return a table with these rows, one for each kernel. All rows have the same length."""
        return cls(*(_table(works, field.name) for field in fields(cls)))

    @classmethod
    def of_shape(cls, works: Sequence[Work], rows: Indices) -> WorkTable:
        """Return a table for one product. Row i is `works[rows[i]]`."""
        one, each = works[0], [[work] for work in works]
        odd, memory = _table(each, "has_odd_lines")[rows], _table(each, "memory_us")[rows]
        return cls(one.m, one.n, one.k, odd, memory, one.arithmetic_us)


def _table(works: Sequence[Sequence[Work]], name: str) -> Floats:
    return np.array([[getattr(one, name) for one in row] for row in works], np.float64)


@cache
def element_bytes(dtype: str) -> int:
    """Return the number of bytes of an element. `dtype` is a name in DTYPES or MATHS."""
    plain = next((of for (_, of), name in MATHS.items() if name == dtype), dtype)
    return DTYPES[plain].itemsize
