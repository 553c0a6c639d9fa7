"""Batches of products, as an exported C library is asked for them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.calls import SIZES, TYPES, Call
from tests.library_calls import OPERATIONS, SUCCESS, Handle, Record, driver

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


class BatchHandle(Handle):
    """A handle that is asked for batches."""

    def _of_batch(self, batch: Batch) -> list[Any]:
        """Return operations, extents, and for A, B and C the address, leading dimension and stride."""
        call = batch.call
        operations = [OPERATIONS.index(letter) for letter in call.ops]
        extents = [ctypes.c_int64(extent) for extent in (call.m, call.n, call.k)]
        matrices = [
            [ctypes.c_void_p(at), ctypes.c_int64(ld), ctypes.c_int64(stride)]
            for at, ld, stride in zip((call.a, call.b, call.c), call.leading, batch.strides, strict=True)
        ]
        return [[*operations, *extents], *matrices]

    def gemm_batched(self, batch: Batch) -> int:
        call, count = batch.call, ctypes.c_int64(batch.count)
        shape, a, b, c = self._of_batch(batch)
        factors = [np.array([factor]) for factor in call.factors]
        alpha, beta = (ctypes.c_void_p(factor.ctypes.data) for factor in factors)
        name = f"tsm2_gemm_{call.dtype}"
        if not batch.arrays:
            routine = getattr(self.library, f"{name}_strided_batched")
            return int(routine(self.handle, *shape, alpha, *a, *b, beta, *c, count))
        given = [
            array_of(at, batch.count, stride * SIZES[call.dtype], change)
            for at, stride, change in zip((call.a, call.b, call.c), batch.strides, batch.arrays, strict=True)
        ]
        routine = getattr(self.library, f"{name}_batched")
        return int(routine(self.handle, *shape, alpha, given[0], a[1], given[1], b[1], beta, given[2], c[1], count))

    def _asked_of(self, batch: Batch) -> list[Any]:
        shape, a, b, c = self._of_batch(batch)
        return [self.handle, TYPES.index(batch.call.dtype), *shape, *a, *b, *c[1:], ctypes.c_int64(batch.count)]

    def choice_of(self, batch: Batch) -> tuple[int, str]:
        return self.text_by(self.library.tsm2_choice_strided_batched, self._asked_of(batch))

    def workspace_of(self, batch: Batch) -> int:
        return self.size_by(self.library.tsm2_workspace_size_strided_batched, self._asked_of(batch))

    def compare_of(self, batch: Batch) -> tuple[int, float, float, bool]:
        return self.times_by(self.library.tsm2_compare_strided_batched, self._asked_of(batch))


def play_batches(path: str, steps: Sequence[Any]) -> Record:
    """Do the steps with a new handle: a Batch or a Call is computed, others as in library_calls.play."""
    fake = driver()
    fake.fake_memory_type(ctypes.c_ulonglong(0), 0)
    handle = BatchHandle(path)
    assert handle.created == SUCCESS
    record = Record([])
    for step in steps:
        if isinstance(step, Batch | Call):
            record.statuses.append(handle.gemm_batched(step) if isinstance(step, Batch) else handle.gemm(step))
            record.errors.append(handle.error)
        elif step[0].startswith("fake_"):
            getattr(fake, step[0])(*step[1:])
        else:
            found = getattr(handle, step[0])(*step[1:])
            record.values.setdefault(step[0], []).append((found, handle.error))
    record.log = fake.fake_log().decode(errors="replace").splitlines()
    handle.destroy()
    return record
