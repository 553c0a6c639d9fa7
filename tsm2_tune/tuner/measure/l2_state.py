"""Prepare a GPU's L2 before a timed kernel: clean lines, dirty lines, or the kernel's own operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tsm2_tune.tuner.device.interface import Buffer, Device, Kernel
from tsm2_tune.tuner.results.trial import Cache

L2_SIZES = 3  # bytes read or written, in sizes of the L2: two evict all lines under LRU, the third allows for hashing
LEAST_BYTES = 2**20
SINK_BYTES = 256  # behind them: the target of stores that keep a kernel's work from being optimized away
BYTES_PER_THREAD, THREADS = 64, 256  # of the stream kernels: four float4 a thread
BUSY_TURNS, BUSY_THREADS = 2**14, 32  # of the kernel that keeps the GPU busy: 8 FMAs a turn, 66 us at 2 GHz


class L2Flush:
    """Brings the L2 into a state. The kernels that do so keep the GPU busy while the timed kernel is queued."""

    def __init__(self, device: Device, support_path: str) -> None:
        self.size_bytes = max(L2_SIZES * device.limits.l2_bytes, LEAST_BYTES) // 16 * 16
        self._buffer: Buffer = device.allocate(self.size_bytes + SINK_BYTES)
        self._read, self._write, self._busy = (
            device.load(support_path, name) for name in ("flush_read", "flush_write", "rate_f32")
        )

    @property
    def address(self) -> int:
        """Address of the `size_bytes` that are read or written, with the sink behind them."""
        return self._buffer.address

    @property
    def sink(self) -> int:
        """Address of SINK_BYTES that nothing reads."""
        return self._buffer.address + self.size_bytes

    def bring(self, cache: Cache, launch: Callable[[], None]) -> None:
        """Queue the kernels that leave the L2 in this state; `launch` queues the kernel that is timed next."""
        if cache is Cache.WARM:
            launch()
            turns, factor = np.int32(BUSY_TURNS), np.float32(0.999)
            self._busy((turns, factor, np.uint64(self.sink)), blocks=1, threads=BUSY_THREADS)
        elif cache is Cache.DIRTY:
            stream(self._write, self.address, self.size_bytes)
        else:
            stream(self._read, self.address, self.size_bytes, self.sink)


def stream(kernel: Kernel, source: int, size_bytes: int, *target: int) -> None:
    """Start a stream kernel on `size_bytes` bytes, a multiple of 16."""
    blocks = -(-size_bytes // (BYTES_PER_THREAD * THREADS))
    addresses = (np.uint64(address) for address in target)
    kernel((np.uint64(source), np.int64(size_bytes // 16), *addresses), blocks=blocks, threads=THREADS)
