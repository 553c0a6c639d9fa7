"""Run one kernel on the host, on arrays where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.compiler import compile_text
from tsm2_tune.tuner.device import KernelFault
from tsm2_tune.tuner.host.device import IN_ORDER, HostDevice, HostKernel
from tsm2_tune.tuner.host.toolchain import host_toolchain
from tsm2_tune.tuner.trial import CompileFailure

COMPILE_LIMIT_SECONDS = 300.0


def run_on_host(
    text: str,
    kernel: str,
    defines: tuple[str, ...],
    arguments: Sequence[np.generic | npt.NDArray[Any]],
    *,
    blocks: int,
    threads: int,
    smem_bytes: int = 0,
) -> None:
    """Compile the CUDA text, unless that was done before, and run its kernel to the end.

    An array among the arguments is passed as its address, as is a uint64; every other argument is a NumPy
    scalar of the parameter's type. DeviceError where the text does not compile, LaunchFailed where the
    arguments or the launch do not fit the kernel, KernelFault where it faults; ToolMissing without a compiler.
    """
    values = [np.uint64(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        _kernel(text, kernel, defines)(values, blocks=blocks, threads=threads, smem_bytes=smem_bytes)
        _device().synchronise()
    except KernelFault:
        _kernel.cache_clear()
        _device().close()
        _device.cache_clear()
        raise


@cache
def _device() -> HostDevice:
    return HostDevice(seed=IN_ORDER)


@cache
def _kernel(text: str, kernel: str, defines: tuple[str, ...]) -> HostKernel:
    toolchain = host_toolchain()
    binary = compile_text(
        text, kernel=kernel, defines=defines, toolchain=toolchain, limit_seconds=COMPILE_LIMIT_SECONDS
    )
    if isinstance(binary, CompileFailure):
        raise DeviceError(f"kernel {kernel!r} does not compile with {toolchain.version}: {binary.detail}")
    return _device().load(binary.path, kernel)
