"""Buffers between inaccessible pages, so that an index out of bounds faults, and stacks for emulated threads."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = mmap.PAGESIZE
GUARD_BYTES = 64 << 20  # inaccessible memory on either side of a buffer, to catch stray indices
POISON = 0xFF  # every float and double made of this byte is a NaN
_NO_ACCESS = 0  # PROT_NONE, which the mmap module lacks
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


def whole_pages(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class Mapping:
    """Zeroed memory of whole pages from mmap. Parts can be made inaccessible."""

    def __init__(self, size_bytes: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        address = _libc.mmap(None, size_bytes, access, kind, -1, 0)
        if address is None or address == _MAP_FAILED:
            raise MemoryError(f"{size_bytes} bytes of memory: {os.strerror(ctypes.get_errno())}")
        self.address: int = address
        self.size_bytes = size_bytes

    def deny(self, *, at_byte: int, size_bytes: int) -> None:
        """Make `size_bytes` bytes inaccessible, starting at byte `at_byte`. Both are multiples of the page size."""
        if _libc.mprotect(self.address + at_byte, size_bytes, _NO_ACCESS) != 0:
            raise MemoryError(f"the protection of {size_bytes} bytes: {os.strerror(ctypes.get_errno())}")

    def bytes_at(self, *, at_byte: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a view of `size_bytes` bytes, starting at byte `at_byte`. The view is invalid after `free`."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(self.address + at_byte))

    def free(self) -> None:
        if self.size_bytes:
            _libc.munmap(self.address, self.size_bytes)
            self.size_bytes = 0


class HostBuffer:
    """A buffer between inaccessible pages. It ends exactly at an inaccessible page.

    If the buffer does not start at the start of a page, the bytes of this page before the buffer are filled with NaN,
    and `bytes_written_before` detects writes to these bytes. The buffer's address is a multiple of the largest power
    of two that divides the buffer's size, up to the page size.
    """

    def __init__(self, size_bytes: int) -> None:
        pages = whole_pages(size_bytes)
        self._mapping = Mapping(pages + 2 * GUARD_BYTES)
        self._mapping.deny(at_byte=0, size_bytes=GUARD_BYTES)
        self._mapping.deny(at_byte=GUARD_BYTES + pages, size_bytes=GUARD_BYTES)
        self._slack = self._mapping.bytes_at(at_byte=GUARD_BYTES, size_bytes=pages - size_bytes)
        self._slack.fill(POISON)
        self._poisoned = self._slack.tobytes()
        self.address = self._mapping.address + GUARD_BYTES + pages - size_bytes
        self.size_bytes = size_bytes
        self.freed = False

    def view(self, *, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a view of the buffer's first `size_bytes` bytes."""
        assert not self.freed, "the buffer is freed"
        return self._mapping.bytes_at(at_byte=self.address - self._mapping.address, size_bytes=size_bytes)

    def bytes_written_before(self) -> int:
        """Return the distance in bytes from the farthest write before the buffer to the buffer's start; 0 if none."""
        if self._slack.tobytes() == self._poisoned:
            return 0
        return len(self._slack) - int(np.flatnonzero(self._slack != POISON)[0])

    def free(self) -> None:
        if not self.freed:
            self.freed = True
            self._slack, self._poisoned = np.empty(0, np.uint8), b""
            self._mapping.free()


def as_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a view of a contiguous array's bytes in memory order. Raise ValueError if it is not contiguous."""
    if values.flags.c_contiguous:
        return values.reshape(-1).view(np.uint8)
    if values.flags.f_contiguous:
        return values.T.reshape(-1).view(np.uint8)
    raise ValueError("the array's elements are not contiguous")
