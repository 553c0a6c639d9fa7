"""GPU memory, with optional reuse of freed buffers. The driver needs 20 ms to allocate a GB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tsm2_tune.tuner.device.interface import DeviceLost, KernelFault

MAPPED_BYTES = 2 * 2**20  # granularity of the driver's allocations
MOST_TIMES = 1.25  # a reused buffer is at most this many times as large as the requested size
LARGE_BYTES = 2**30  # from this size on, a reused buffer may be larger by MOST_WASTE
MOST_WASTE = 1 / 4  # of the GPU's memory


class CudaBuffer:
    """A buffer in the GPU's memory."""

    def __init__(self, memory: CudaMemory, allocation: Any, size_bytes: int, allocated_bytes: int) -> None:
        self._memory, self.allocation = memory, allocation
        self.address = int(allocation)
        self.size_bytes, self.allocated_bytes = size_bytes, allocated_bytes

    def free(self) -> None:
        self._memory.take_back(self)


class CudaMemory:
    """Allocator of GPU memory. Within the context `keeping` it reuses freed buffers."""

    def __init__(self, drv: Any, memory_bytes: int) -> None:
        """`memory_bytes` is the size of the GPU's memory."""
        self._drv, self._memory_bytes = drv, memory_bytes
        self._is_keeping = False
        self._kept: list[CudaBuffer] = []

    def allocate(self, size_bytes: int) -> CudaBuffer:
        """Return a buffer of `size_bytes`. Raise MemoryError if it does not fit even after kept buffers are freed."""
        if not self._is_keeping:
            return self._allocated(size_bytes, max(size_bytes, 1))
        whole_bytes = -(-max(size_bytes, 1) // MAPPED_BYTES) * MAPPED_BYTES
        if whole_bytes > self._memory_bytes:
            raise MemoryError(f"{size_bytes} bytes of device memory")
        waste_bytes = MOST_WASTE * self._memory_bytes if whole_bytes >= LARGE_BYTES else 0
        most_bytes = max(MOST_TIMES * whole_bytes, whole_bytes + waste_bytes)
        fitting = [one for one in self._kept if whole_bytes <= one.allocated_bytes <= most_bytes]
        if fitting:
            one = min(fitting, key=lambda kept: kept.allocated_bytes)
            self._kept.remove(one)
            return CudaBuffer(self, one.allocation, size_bytes, one.allocated_bytes)
        try:
            return self._allocated(size_bytes, whole_bytes)
        except MemoryError:
            self._free_kept()
            return self._allocated(size_bytes, max(size_bytes, 1))

    def take_back(self, buffer: CudaBuffer) -> None:
        """Free the buffer, or keep its memory for reuse within `keeping`."""
        if self._is_keeping:
            self._kept.append(buffer)
        else:
            buffer.allocation.free()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep freed buffers for reuse in the body of the with statement, and free them at its end.

        If the body raises KernelFault or DeviceLost, the buffers cannot be freed.
        """
        self._is_keeping, answers = True, True
        try:
            yield
        except (KernelFault, DeviceLost):
            answers = False
            raise
        finally:
            self._is_keeping = False
            if answers:
                self._free_kept()

    def _allocated(self, size_bytes: int, allocated_bytes: int) -> CudaBuffer:
        try:
            allocation = self._drv.mem_alloc(allocated_bytes)
        except self._drv.MemoryError:
            raise MemoryError(f"{size_bytes} bytes of device memory") from None
        return CudaBuffer(self, allocation, size_bytes, allocated_bytes)

    def _free_kept(self) -> None:
        while self._kept:
            self._kept.pop().allocation.free()
