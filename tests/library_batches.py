"""Batches of products, and their arrays of pointers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from tests.calls import Call

ASCENDING = ("", "", "")
SMALL = "small:threads=64,kilobytes=8,thread=2x2,stages=2,padding=0,direct=0,min_blocks=2,blocks=5,extents=0x0x0"


@dataclass(frozen=True)
class Batch:
    """A batch of calls; the call's addresses are those of the first product."""

    call: Call
    count: int
    strides: tuple[int, int, int]  # elements
    arrays: tuple[str, ...] = ()  # by three arrays of pointers, each ASCENDING or with a change of `array_of`

    @property
    def extents(self) -> list[tuple[int, int]]:
        """Rows and columns of A, B and C in memory."""
        shapes = zip(self.call.shapes, (*self.call.ops, "N"), strict=True)
        return [shape if op == "N" else shape[::-1] for shape, op in shapes]


def of_shape(
    dtype: str, ops: str, count: int, m: int, n: int, k: int, *, gap: int = 0, pad: int = 0, shared: str = "",
    **named: Any,
) -> Batch:  # fmt: skip
    """A batch whose matrices follow one another, `gap` elements between them and `pad` between columns."""
    plain = Call(dtype, ops, m, n, k, **named)
    lda, ldb, ldc = (ld + pad for ld in plain.leading)
    call = replace(plain, lda=lda, ldb=ldb, ldc=ldc)
    spans = [
        ld * columns + gap for ld, (_, columns) in zip(call.leading, Batch(call, 1, (0, 0, 0)).extents, strict=True)
    ]
    a, b, c = (0 if name in shared else span for name, span in zip("ABC", spans, strict=True))
    return Batch(call, count, (a, b, c))


def array_of(address: int, count: int, stride_bytes: int, change: str) -> Any:
    """Return an array of pointers to matrices. A change is none (NULL), or:

    unequal, descending, odd (not whole elements), on device and pinned (where the driver says that the array is).
    """
    addresses = [address + i * (stride_bytes + (change == "odd")) for i in range(count)]
    if change == "unequal":
        addresses[-1] += 64
    found = (ctypes.c_void_p * max(count, 1))(*addresses[:: -1 if change == "descending" else 1])
    if change in ("on device", "pinned"):
        kind = 2 if change == "on device" else 1
        ctypes.CDLL("libcuda.so.1").fake_memory_type(ctypes.c_ulonglong(ctypes.addressof(found)), kind)
    return None if change == "none" else found
