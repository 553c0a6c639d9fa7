"""A GPU as a device, through PyCUDA. PyCUDA is imported only when a GPU is used."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from tsm2_tune.errors import EMULATION, DeviceError, ToolMissing, pip_install
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings, gflops_by_dtype
from tsm2_tune.generator.dtypes import DTYPES, Dtype
from tsm2_tune.generator.source import SUPPORT_THREADS
from tsm2_tune.pretuned import without_gpu
from tsm2_tune.tuner.compile.compiler import Toolchain
from tsm2_tune.tuner.device.cuda_kernel import CudaKernel, Queue, fault_of
from tsm2_tune.tuner.device.cuda_memory import CudaBuffer, CudaMemory
from tsm2_tune.tuner.device.interface import Buffer, LaunchConfig
from tsm2_tune.tuner.measure.l2_state import L2Flush, stream
from tsm2_tune.tuner.measure.timing import median_interval
from tsm2_tune.tuner.results.trial import Cache, DeviceIdentity, in_a_line

log = logging.getLogger(__name__)
CEILING_STREAM_BYTES = 4 * 2**30  # far larger than any L2 cache; reading it takes a millisecond or more
CEILING_SAMPLES = 11
UNKNOWN_CLOCK_KHZ, UNKNOWN_BUS_BITS = 1_500_000, 4096  # used if the driver reports 0, which happens on virtual GPUs
# Kernels mma_rate_*: type -> the oldest compute capability with the instruction m16n8kK, and K.
MMA_TYPES = {"f64": ((9, 0), 8), "bf16": ((8, 0), 16), "f16": ((8, 0), 16), "tf32": ((8, 0), 8)}
MMA_CHAINS = 8  # independent chains in a warp
CONCURRENT_STREAMS = 6  # plus the default stream: fewer than a GPU's 8 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS)
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the default stream does not wait for it
MOST_FLUSHES = 32  # before a sample; they take milliseconds, longer than Python needs to start a library call


def driver() -> Any:
    """Return the initialised module `pycuda.driver`.

    Raise ToolMissing if PyCUDA is not installed, DeviceError if there is no CUDA driver.
    """
    try:
        import pycuda.driver as drv
    except ModuleNotFoundError:
        raise ToolMissing(
            f"PyCUDA is not installed: {pip_install('pycuda', 'nvidia-ml-py')}, or use --device cpu"
        ) from None
    except ImportError as error:
        raise DeviceError(f"no CUDA driver ({error}): use --device cpu, or --help to see what needs no GPU") from None
    try:
        drv.init()
    except drv.Error as error:
        raise DeviceError(f"the CUDA driver does not start ({error}): use --device cpu") from None
    return drv


def cuda_device_count() -> int:
    """Return the number of CUDA devices; 0 if there is no driver. PyCUDA is not needed."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def check_ordinal(ordinal: int) -> None:
    """Raise DeviceError if there is no CUDA device with this number."""
    count = cuda_device_count()
    if count == 0:
        raise DeviceError(f"no CUDA device {ordinal} (no CUDA driver answers): {EMULATION}; {without_gpu()}")
    if not 0 <= ordinal < count:
        raise DeviceError(f"no CUDA device {ordinal}: the driver has {count}, numbered from 0")


def query_limits(drv: Any, device: Any) -> DeviceLimits:
    """Return the limits of a PyCUDA device as the driver reports them: registers, shared memory, clocks, sizes."""
    attribute = drv.device_attribute
    asked = device.get_attribute
    memory_clock_khz = asked(attribute.MEMORY_CLOCK_RATE) or UNKNOWN_CLOCK_KHZ
    bus_bits = asked(attribute.GLOBAL_MEMORY_BUS_WIDTH) or UNKNOWN_BUS_BITS
    return DeviceLimits(
        name=in_a_line(device.name()),
        compute_capability=tuple(device.compute_capability()),
        warp_threads=asked(attribute.WARP_SIZE),
        threads_per_block=asked(attribute.MAX_THREADS_PER_BLOCK),
        threads_per_sm=asked(attribute.MAX_THREADS_PER_MULTIPROCESSOR),
        blocks_per_sm=asked(attribute.MAX_BLOCKS_PER_MULTIPROCESSOR),
        registers_per_block=asked(attribute.MAX_REGISTERS_PER_BLOCK),
        registers_per_sm=asked(attribute.MAX_REGISTERS_PER_MULTIPROCESSOR),
        smem_bytes_per_block=asked(attribute.MAX_SHARED_MEMORY_PER_BLOCK),
        smem_bytes_per_block_optin=asked(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        smem_bytes_per_sm=asked(attribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        smem_bytes_reserved_per_block=asked(attribute.RESERVED_SHARED_MEMORY_PER_BLOCK),
        sms=asked(attribute.MULTIPROCESSOR_COUNT),
        l2_bytes=asked(attribute.L2_CACHE_SIZE),
        sm_clock_mhz=(asked(attribute.CLOCK_RATE) or UNKNOWN_CLOCK_KHZ) / 1e3,
        # The reported memory clock is half of the data rate, for HBM and for GDDR.
        dram_gbytes_per_s=2 * memory_clock_khz * 1e3 * bus_bits / 8 / 1e9,
        memory_bytes=device.total_memory(),
    )


def identity_of(drv: Any, device: Any, toolchain: Toolchain) -> DeviceIdentity:
    major, minor = device.compute_capability()
    return DeviceIdentity(
        name=in_a_line(device.name()),
        uuid=_uuid(device),
        compute_capability=f"{major}.{minor}",
        driver=_driver_version(drv),
        toolkit=toolchain.version,
        flags=toolchain.stated_flags,
    )


def _driver_version(drv: Any) -> str:
    """Return the driver's version from NVML. Without NVML, return the CUDA version that the driver supports."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # NVML is a convenience: whatever is wrong with it, the CUDA driver still answers
        log.debug("no NVML (%s): records contain CUDA's version instead of the driver's", error)
        version = drv.get_driver_version()
        return f"CUDA {version // 1000}.{version % 1000 // 10}"


def clock_reader(bus_id: str) -> Callable[[], float | None]:
    """Return a function that reads a GPU's SM clock in MHz through NVML. It returns None if NVML does not work."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
    except Exception as error:  # NVML is a convenience: without it a measurement has no clock
        log.debug("no NVML (%s): measurements record no clock", error)
        return lambda: None

    def mhz() -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        except Exception:  # whatever is wrong with NVML, the measurement has no clock
            return None

    return mhz


def _uuid(device: Any) -> str:
    """Return the device's UUID in the format of nvidia-smi; "" if the driver does not report it."""
    raw = (ctypes.c_ubyte * 16)()
    library = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_int()
    bus_id = device.pci_bus_id().encode()
    if library.cuDeviceGetByPCIBusId(ctypes.byref(handle), bus_id) != 0:
        return ""
    if library.cuDeviceGetUuid_v2(raw, handle) != 0:
        return ""
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class CudaDevice:
    """A GPU, with its primary CUDA context in this process."""

    support_threads = SUPPORT_THREADS
    faults_past_buffers = False
    calls_ahead = 32

    def __init__(self, ordinal: int, support_code: bytes) -> None:
        self.drv = driver()
        self._queue = Queue()
        self._streams: list[Any] = []  # for concurrent launches
        try:
            device = self.drv.Device(ordinal)
            self._context = device.retain_primary_context()
            self._context.push()
        except self.drv.Error as error:
            raise DeviceError(
                f"CUDA device {ordinal} does not open ({error}): is another process using it?"
            ) from None
        self.limits = query_limits(self.drv, device)
        self._memory = CudaMemory(self.drv, self.limits.memory_bytes)
        self._support_code = support_code
        self._flush = L2Flush(self, support_code)
        self.drv.memset_d8(self._flush.address, 0, self._flush.size_bytes)
        self._start, self._end, self._started = self.drv.Event(), self.drv.Event(), self.drv.Event()
        self._clock_mhz = clock_reader(device.pci_bus_id())

    def allocate(self, size_bytes: int) -> CudaBuffer:
        return self._memory.allocate(size_bytes)

    def keeping_memory(self) -> AbstractContextManager[None]:
        return self._memory.keeping()

    def upload(self, values: npt.NDArray[Any], buffer: Buffer) -> None:
        self.drv.memcpy_htod(buffer.address, values)

    def download(self, buffer: Buffer, values: npt.NDArray[Any]) -> None:
        self.drv.memcpy_dtoh(values, buffer.address)

    def load(self, code: bytes, kernel: str) -> CudaKernel:
        return CudaKernel(self.drv, self._queue, code, kernel)

    def synchronise(self) -> None:
        try:
            self._started.record()
            self._started.synchronize()
        except self.drv.Error as error:
            raise fault_of(error) from None

    def start_concurrently(self, launches: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        while len(self._streams) < CONCURRENT_STREAMS:  # before any launch, since creation waits for running kernels
            self._streams.append(self.drv.Stream(NON_BLOCKING))
        self.synchronise()
        return [self._started_on(stream, launch) for stream, launch in zip(cycle(self._streams), launches)]

    def _started_on(self, stream: Any, launch: Callable[[], None]) -> Callable[[], None]:
        self._queue.stream = stream
        try:
            launch()
        finally:
            self._queue.stream = None

        def wait() -> None:
            try:
                stream.synchronize()
            except self.drv.Error as error:
                raise fault_of(error) from None

        return wait

    def time_us(self, launch: Callable[[], None], cache: Cache = Cache.CLEAN) -> float:
        """Return the microseconds of the launch between two CUDA events, with the L2 cache in the state `cache`.

        The kernels that bring the L2 into this state run first, and keep the GPU busy until the launch is queued. If
        these kernels end before the launch is queued, the measured time includes host time. Then the measurement is
        repeated with more of these kernels.
        """
        flushes = 1
        while True:
            for _ in range(flushes):
                self._flush.bring(cache, launch)
            self._start.record()
            launch()
            try:
                is_late = self._start.query()
                self._end.record()
                self._end.synchronize()
            except self.drv.Error as error:
                raise fault_of(error) from None
            if not is_late or flushes >= MOST_FLUSHES:
                return float(self._end.time_since(self._start)) * 1e3
            flushes *= 2

    def ceilings(self) -> Ceilings:
        """Measure the memory bandwidth of a read and of a copy, and the peak arithmetic rate of each element type.

        The arithmetic rate of a type is the rate of FMAs in registers, or of the operations of the type's semiring.
        If tensor cores compute products of the type faster, it is the rate of the tensor cores.
        """
        size = min(CEILING_STREAM_BYTES, self.limits.memory_bytes // 8) // 4096 * 4096
        source, target = self.allocate(size), self.allocate(size)
        self.drv.memset_d32(source.address, 0x3F9D70A4, size // 4)
        read, copy = (self.load(self._support_code, name) for name in ("stream_read", "stream_copy"))
        read_us = self._median_us(lambda: stream(read, source.address, size, self._flush.sink))
        copy_us = self._median_us(lambda: stream(copy, source.address, size, target.address))
        source.free()
        target.free()
        return Ceilings(
            read_gbytes_per_s=size / read_us * 1e-3,
            copy_gbytes_per_s=2 * size / copy_us * 1e-3,
            gflops=gflops_by_dtype(
                {name: self._gflops(dtype) for name, dtype in DTYPES.items() if name == dtype.rate_name},
                {name: self._mma_gflops(name) for name in MMA_TYPES},
            ),
        )

    def sm_clock_mhz(self) -> float | None:
        return self._clock_mhz()

    def close(self) -> None:
        self._context.pop()

    def _median_us(self, launch: Callable[[], None]) -> float:
        launch()
        return median_interval([self.time_us(launch) for _ in range(CEILING_SAMPLES)])[0]

    def _gflops(self, dtype: Dtype) -> float:
        kernel = self.load(self._support_code, f"rate_{dtype.name}")
        turns, chains, threads = 4096, 8, 1024  # chains: FMA_CHAINS of the kernel
        blocks = self.limits.sms * (self.limits.threads_per_sm // threads) * 4
        sink = np.uint64(self._flush.sink)
        arguments = (np.int32(turns), dtype.factor(0.999), sink)
        us = self._median_us(lambda: kernel(arguments, LaunchConfig(blocks, threads)))
        return 2 * turns * chains * threads * blocks / us * 1e-3

    def _mma_gflops(self, dtype_name: str) -> float:
        """Measure the rate of the tensor cores in GFLOP/s. Return 0 if the device lacks the type's instruction."""
        oldest, k = MMA_TYPES[dtype_name]
        if self.limits.compute_capability < oldest:
            return 0.0
        kernel = self.load(self._support_code, f"mma_rate_{dtype_name}")
        turns, warps_per_sm = 4096, 16
        threads, blocks = 128, self.limits.sms * warps_per_sm // 4 * 4
        sink = np.uint64(self._flush.sink)
        us = self._median_us(lambda: kernel((np.int32(turns), sink), LaunchConfig(blocks, threads)))
        return MMA_CHAINS * 2 * 16 * 8 * k * turns * (threads // 32) * blocks / us * 1e-3
