"""The CPU as a device that emulates kernels and catches their faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings, gflops_by_dtype
from tsm2_tune.generator.dtypes import DTYPES, Dtype
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.emulator.entry_point import IN_ORDER, EntryPoint
from tsm2_tune.tuner.device.emulator.faults import Stretch
from tsm2_tune.tuner.device.emulator.limits import WARP_THREADS, host_limits
from tsm2_tune.tuner.device.emulator.memory import HostBuffer, as_bytes, whole_pages
from tsm2_tune.tuner.device.emulator.toolchain import cpu_name
from tsm2_tune.tuner.device.interface import Buffer, KernelFault, LaunchConfig
from tsm2_tune.tuner.results.trial import Cache, DeviceIdentity, LoadedResources

__all__ = ["HostBuffer", "HostDevice", "HostKernel", "host_identity", "host_limits"]

# Most bytes read before each timed launch to evict its operands from the caches. A larger cache belongs to a server
# and is shared with other processes; reading all of it would take longer than most launches.
MOST_FLUSH_BYTES = 64 << 20
CEILING_BYTES = 64 << 20  # size of the array that is read and copied to measure the bandwidth
CEILING_SAMPLES = 5
RATE_TURNS = 256  # iterations of 64 products in each of 256 threads: 2 ms at 5 Gflop/s


def host_identity(toolchain: Toolchain) -> DeviceIdentity:
    """Return the CPU's name with the compiler's version and flags, which are stored with every result."""
    return DeviceIdentity(
        name=f"cpu {cpu_name()}",
        uuid="",
        compute_capability="",
        driver="host",
        toolkit=toolchain.version,
        flags=toolchain.stated_flags,
    )


class HostKernel:
    """A kernel that runs on the CPU when this object is called."""

    def __init__(self, device: HostDevice, code: bytes, kernel: str) -> None:
        self._device = device
        self._entry = EntryPoint(code, kernel, device.limits)

    def resources(self, *, threads: int, smem_bytes: int) -> LoadedResources:
        """Return the shared memory of the launch. The other resources are 0, since a CPU has none."""
        return LoadedResources(registers=0, local_bytes=0, smem_bytes=smem_bytes, blocks_per_sm=1)

    def __call__(self, arguments: Sequence[np.generic], config: LaunchConfig) -> None:
        """Run the kernel to its end. The device's `synchronise` raises KernelFault if the kernel faults."""
        self._device.run(self._entry, arguments, config)


class HostDevice:
    """The CPU as a device. It runs one kernel at a time, block after block, in the calling thread.

    The threads of a block run in an order shuffled by `seed`, differently in each block, so that a missing barrier
    changes the result. While `time_us` measures, they run in ascending order, which is faster.
    """

    support_threads = WARP_THREADS
    faults_past_buffers = True
    calls_ahead = 1

    def __init__(self, *, support_code: bytes = b"", seed: int = 1) -> None:
        """Create the device. `support_code` is the binary of the support kernels, which only `ceilings` needs."""
        self.limits: DeviceLimits = host_limits()
        self._support_code = support_code
        self._seed = seed
        self._buffers: list[HostBuffer] = []
        self._fault: str | None = None
        self._flushed: npt.NDArray[np.float32] | None = None

    def allocate(self, size_bytes: int) -> HostBuffer:
        self._buffers = [buffer for buffer in self._buffers if not buffer.freed]
        used = sum(whole_pages(buffer.size_bytes) for buffer in self._buffers)
        if used + size_bytes > self.limits.memory_bytes:
            raise MemoryError(f"{size_bytes} bytes of memory")
        buffer = HostBuffer(size_bytes)
        self._buffers.append(buffer)
        return buffer

    def keeping_memory(self) -> AbstractContextManager[None]:
        return nullcontext()

    def upload(self, values: npt.NDArray[Any], buffer: Buffer) -> None:
        self._view(buffer, size_bytes=values.nbytes)[:] = as_bytes(values)

    def download(self, buffer: Buffer, values: npt.NDArray[Any]) -> None:
        self.synchronise()
        as_bytes(values)[:] = self._view(buffer, size_bytes=values.nbytes)

    def load(self, code: bytes, kernel: str) -> HostKernel:
        return HostKernel(self, code, kernel)

    def synchronise(self) -> None:
        """Raise KernelFault if a kernel has faulted, or has written before the start of a buffer."""
        for buffer in self._buffers if self._fault is None else ():
            if distance := buffer.bytes_written_before():
                size = f"a buffer of {buffer.size_bytes} bytes"
                self._fault = f"a kernel wrote {distance} bytes before the start of {size}"
                break
        if self._fault is not None:
            raise KernelFault(self._fault)

    def start_concurrently(self, launches: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        """Run each launch to its end, one after another."""
        for launch in launches:
            launch()
        return [self.synchronise for _ in launches]

    def time_us(self, launch: Callable[[], object], cache: Cache = Cache.CLEAN) -> float:
        """Flush the CPU's caches, then return the wall-clock microseconds of `launch()`."""
        if self._flushed is None:
            self._flushed = np.ones(min(2 * self.limits.l2_bytes, MOST_FLUSH_BYTES) // 4, np.float32)
        self._flushed.max()
        return self._unflushed_us(launch)

    def _unflushed_us(self, launch: Callable[[], object]) -> float:
        seed, self._seed = self._seed, IN_ORDER
        try:
            start = time.perf_counter()
            launch()
            return (time.perf_counter() - start) * 1e6
        finally:
            self._seed = seed

    def ceilings(self) -> Ceilings:
        """Measure the memory bandwidth and the arithmetic rates of one core.

        The bandwidth is measured with NumPy's maximum and copy of a large array. An emulated kernel would mostly
        measure the cost of its emulated threads.
        """
        source = np.ones(CEILING_BYTES // 4, np.float32)
        target = np.zeros_like(source)
        read_us = self._least_us(lambda: source.max())
        copy_us = self._least_us(lambda: np.copyto(target, source))
        return Ceilings(
            read_gbytes_per_s=source.nbytes / read_us * 1e-3,
            copy_gbytes_per_s=2 * source.nbytes / copy_us * 1e-3,
            gflops=gflops_by_dtype(
                {name: self._gflops(dtype) for name, dtype in DTYPES.items() if name == dtype.rate_name}
            ),
        )

    def sm_clock_mhz(self) -> float | None:
        return None

    def close(self) -> None:
        """Free the memory of all buffers. Do not use buffers and kernels after this call."""
        for buffer in self._buffers:
            buffer.free()
        self._buffers = []

    def run(self, entry: EntryPoint, arguments: Sequence[np.generic], config: LaunchConfig) -> None:
        """Run a kernel. Do nothing if an earlier kernel has faulted."""
        if self._fault is None:
            self._fault = entry.fault(arguments, config, self._stretches, seed=self._seed)

    def _stretches(self) -> list[Stretch]:
        return [Stretch("a buffer", one.address, one.size_bytes) for one in self._buffers if not one.freed]

    def _least_us(self, launch: Callable[[], object]) -> float:
        return min(self.time_us(launch) for _ in range(CEILING_SAMPLES))

    def _gflops(self, dtype: Dtype) -> float:
        kernel = self.load(self._support_code, f"rate_{dtype.name}")
        sink = self.allocate(8)
        turns, chains, threads = RATE_TURNS, 64, 256  # chains: FMA_CHAINS of the kernel
        arguments = (np.int32(turns), dtype.factor(0.999), np.uint64(sink.address))
        config = LaunchConfig(blocks=1, threads=threads)
        us = min(self._unflushed_us(lambda: kernel(arguments, config)) for _ in range(CEILING_SAMPLES))
        self.synchronise()
        sink.free()
        return 2 * turns * chains * threads / us * 1e-3

    @staticmethod
    def _view(buffer: Buffer, *, size_bytes: int) -> npt.NDArray[np.uint8]:
        assert isinstance(buffer, HostBuffer)
        if size_bytes > buffer.size_bytes:
            raise ValueError(f"{size_bytes} bytes do not fit in a buffer of {buffer.size_bytes}")
        return buffer.view(size_bytes=size_bytes)
