"""Preparation of a GPU's L2 cache before a timed kernel: clean lines, dirty lines, or the kernel's operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tsm2_tune.tuner.device.interface import Buffer, Device, Kernel, LaunchConfig
from tsm2_tune.tuner.results.trial import Cache

L2_SIZES = 3  # bytes to read or write, in L2 sizes: 2 evict all lines under LRU, 3 also with address hashing
LEAST_BYTES = 2**20
SINK_BYTES = 256  # target of stores, so that the compiler cannot optimize the reads away
BYTES_PER_THREAD, THREADS = 64, 256  # of the kernels that read or write the buffer: four float4 per thread
BUSY_TURNS, BUSY_THREADS = 2**14, 32  # of the kernel that keeps the GPU busy: 8 FMAs per iteration, 66 us at 2 GHz


class L2Flush:
    """Preparation of the L2 cache before a timed kernel. It keeps the GPU busy until the timed kernel is queued."""

    def __init__(self, device: Device, support_code: bytes) -> None:
        self.size_bytes = max(L2_SIZES * device.limits.l2_bytes, LEAST_BYTES) // 16 * 16
        self._buffer: Buffer = device.allocate(self.size_bytes + SINK_BYTES)
        self._read, self._write, self._busy = (
            device.load(support_code, name) for name in ("flush_read", "flush_write", "rate_f32")
        )

    @property
    def address(self) -> int:
        """Address of the `size_bytes` bytes that are read or written to flush the L2."""
        return self._buffer.address

    @property
    def sink(self) -> int:
        """Address of SINK_BYTES bytes that kernels write and nothing reads."""
        return self._buffer.address + self.size_bytes

    def bring(self, cache: Cache, launch: Callable[[], None]) -> None:
        """Queue the kernels that bring the L2 into state `cache`. `launch` queues the kernel that will be timed."""
        if cache is Cache.WARM:
            launch()
            turns, factor = np.int32(BUSY_TURNS), np.float32(0.999)
            self._busy((turns, factor, np.uint64(self.sink)), LaunchConfig(1, BUSY_THREADS))
        elif cache is Cache.DIRTY:
            stream(self._write, self.address, self.size_bytes)
        else:
            stream(self._read, self.address, self.size_bytes, self.sink)


def stream(kernel: Kernel, source: int, size_bytes: int, *target: int) -> None:
    """Launch a kernel that reads or writes `size_bytes` bytes, a multiple of 16, from the address `source` on."""
    blocks = -(-size_bytes // (BYTES_PER_THREAD * THREADS))
    addresses = (np.uint64(address) for address in target)
    kernel((np.uint64(source), np.int64(size_bytes // 16), *addresses), LaunchConfig(blocks, THREADS))
