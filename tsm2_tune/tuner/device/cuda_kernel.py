"""Load a kernel from a cubin, launch it on a GPU, and translate the driver's errors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np

from tsm2_tune.tuner.device.interface import DeviceLost, KernelFault, LaunchConfig, LaunchFailed
from tsm2_tune.tuner.results.trial import LoadedResources

DYNAMIC_SMEM_WITHOUT_OPTIN = 47 * 1024  # with a kernel's static shared memory, 48 KiB
OUT_OF_MEMORY = 2  # a CUresult
# CUresult of faults that a kernel can cause: bad address or instruction, stack error, assert, driver's time limit.
FAULTS = frozenset({700, 701, 702, 710, *range(714, 720)})
STRUCTURE_ALIGNMENT = 8  # bytes, of structures that are parameters of the support kernels
CODES = {("i", 4): "i", ("i", 8): "q", ("u", 8): "Q", ("f", 4): "f", ("f", 8): "d"}  # kind, bytes -> `struct` code


@dataclass
class Queue:
    """Holder of the CUDA stream in which a device launches its kernels."""

    stream: Any = None  # PyCUDA's; None is the default stream


class ParameterLayout:
    """Memory layout of a kernel's parameters: each number is aligned to its size, each structure to 8 bytes.

    PyCUDA's own layout would align complex numbers to half their size.
    """

    def __init__(self, arguments: Sequence[np.generic]) -> None:
        self.parameters, layout, end = len(arguments), ["="], 0
        codes = [CODES.get((one.dtype.kind, one.itemsize)) for one in arguments]
        for argument, code in zip(arguments, codes, strict=True):
            size = argument.itemsize
            skipped = -end % (STRUCTURE_ALIGNMENT if isinstance(argument, np.void) else size)
            layout.append(f"{skipped}x{code or f'{size}s'}")
            end += skipped + size
        self._struct = Struct("".join(layout))
        self._as_bytes = [code is None for code in codes]
        self._are_numbers = not any(self._as_bytes)

    @property
    def size_bytes(self) -> int:
        return self._struct.size

    def packed(self, arguments: Sequence[np.generic]) -> bytes:
        """Return the arguments as the bytes of the kernel's parameter buffer."""
        if self._are_numbers:
            return self._struct.pack(*arguments)
        values = (one.tobytes() if raw else one for one, raw in zip(arguments, self._as_bytes, strict=True))
        return self._struct.pack(*values)


class CudaKernel:
    """A kernel of a loaded cubin, which can be called with arguments and a grid to launch it."""

    def __init__(self, drv: Any, queue: Queue, cubin: bytes, name: str) -> None:
        self._drv, self._queue = drv, queue
        self._cubin, self._name = cubin, name
        self._layout: ParameterLayout | None = None  # layout of the last launch's arguments
        self._smem_bytes = DYNAMIC_SMEM_WITHOUT_OPTIN  # dynamic shared memory that a launch may use
        try:
            self._module = drv.module_from_buffer(cubin)
            self._function = self._module.get_function(name)
        except drv.MemoryError:
            raise MemoryError(f"kernel {name!r}") from None
        except drv.Error as error:
            raise refusal_of(error, f"the driver refuses to load {name}") from None

    def resources(self, *, threads: int, smem_bytes: int) -> LoadedResources:
        """Return the kernel's registers, local memory, shared memory and blocks per SM as the driver reports them."""
        return LoadedResources(
            registers=self._function.num_regs,
            local_bytes=self._function.local_size_bytes,
            smem_bytes=self._function.shared_size_bytes + smem_bytes,
            blocks_per_sm=driver_occupancy(self._cubin, self._name, threads=threads, smem_bytes=smem_bytes),
        )

    def __call__(self, arguments: Sequence[np.generic], config: LaunchConfig) -> None:
        try:
            if config.smem_bytes > self._smem_bytes:
                attribute = self._drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._function.set_attribute(attribute, config.smem_bytes)
                self._smem_bytes = config.smem_bytes
            if self._layout is None or self._layout.parameters != len(arguments):
                self._layout = ParameterLayout(arguments)
                self._function.prepare([f"{self._layout.size_bytes}s"])
            packed, block = self._layout.packed(arguments), (config.threads, 1, 1)
            grid, smem_bytes = (config.blocks, config.splits, config.products), config.smem_bytes
            self._function.prepared_async_call(grid, block, self._queue.stream, packed, shared_size=smem_bytes)
        except self._drv.MemoryError:
            raise MemoryError(f"the stacks of kernel {self._name!r}") from None
        except self._drv.Error as error:
            raise refusal_of(error, f"the driver refuses to start {self._name}") from None


def driver_occupancy(cubin: bytes, kernel: str, *, threads: int, smem_bytes: int) -> int:
    """Load the cubin and return the driver's number of blocks per SM for this block size and dynamic shared memory.

    PyCUDA has no binding for cuOccupancyMaxActiveBlocksPerMultiprocessor.
    """
    library = ctypes.CDLL("libcuda.so.1")
    module, function, blocks = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    max_dynamic_smem = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(library.cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
    try:
        _check(library.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()), "cuModuleGetFunction")
        if smem_bytes > DYNAMIC_SMEM_WITHOUT_OPTIN:
            _check(library.cuFuncSetAttribute(function, max_dynamic_smem, smem_bytes), "cuFuncSetAttribute")
        _check(
            library.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(blocks), function, threads, ctypes.c_size_t(smem_bytes)
            ),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        )
    finally:
        library.cuModuleUnload(module)
    return blocks.value


def refusal_of(error: Exception, what: str) -> LaunchFailed | DeviceLost | KernelFault:
    """Return LaunchFailed with `what` in its message; if the CUDA context is unusable, an earlier kernel's fault."""
    if ctypes.CDLL("libcuda.so.1").cuCtxSynchronize() == 0:
        return LaunchFailed(f"{what}: {error}")
    return fault_of(error)


def fault_of(error: Exception) -> KernelFault | DeviceLost:
    """Return the exception for an error after which the CUDA context is unusable."""
    status = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
    return KernelFault(str(error)) if status in FAULTS else DeviceLost(f"{error} (CUDA error {status})")


def _check(status: int, call: str) -> None:
    if status == OUT_OF_MEMORY:
        raise MemoryError(f"what {call} needs")
    if status != 0:
        raise LaunchFailed(f"{call} answers {status}")
