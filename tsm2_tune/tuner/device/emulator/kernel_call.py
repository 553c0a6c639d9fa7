"""Compile one CUDA kernel for the CPU, and run it on NumPy arrays in place."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tsm2_tune.errors import DeviceError
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.device.emulator.entry_point import EntryPoint
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.device.interface import KernelFault
from tsm2_tune.tuner.results.trial import CompileFailure

COMPILE_LIMIT_SECONDS = 300.0


def run_on_host(
    text: str,
    kernel: str,
    defines: tuple[str, ...],
    arguments: Sequence[np.generic | npt.NDArray[Any]],
    *,
    blocks: int,
    splits: int = 1,
    products: int = 1,
    threads: int,
    smem_bytes: int = 0,
) -> None:
    """Compile the CUDA text for the CPU, and run its kernel on a grid.

    The grid has `blocks` in x, `splits` in y and `products` in z. An array is passed to the kernel as its address.
    Every other argument is a NumPy scalar of the parameter's type. A second call with the same text does not compile
    again. Any thread may call this function.

    Raise DeviceError if the text does not compile, LaunchFailed if the arguments or the launch do not fit the kernel,
    KernelFault if the kernel faults, ToolMissing if there is no compiler.
    """
    values = [np.uint64(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments]
    entry = _entry_point(text, kernel, defines)
    entry.check(values, blocks=blocks, splits=splits, products=products, threads=threads, smem_bytes=smem_bytes)
    fault = entry.fault(
        values, blocks=blocks, splits=splits, products=products, threads=threads, smem_bytes=smem_bytes
    )
    if fault is not None:
        raise KernelFault(fault)


_entry_points: dict[tuple[str, str, tuple[str, ...]], EntryPoint] = {}  # by text, kernel and definitions
_compiling = threading.Lock()


def _unlock_in_child() -> None:
    global _compiling  # a thread that holds the lock in the parent does not exist in the child
    _compiling = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


def _entry_point(text: str, kernel: str, defines: tuple[str, ...]) -> EntryPoint:
    """Return the loaded kernel. Compile and load it first if necessary."""
    key = (text, kernel, defines)
    if key not in _entry_points:
        with _compiling:
            if key not in _entry_points:  # another thread may have compiled it
                _entry_points[key] = _compiled(text, kernel, defines)
    return _entry_points[key]


def _compiled(text: str, kernel: str, defines: tuple[str, ...]) -> EntryPoint:
    toolchain = host_toolchain()
    binary = compile_text(
        text, kernel=kernel, defines=defines, toolchain=toolchain, limit_seconds=COMPILE_LIMIT_SECONDS
    )
    if isinstance(binary, CompileFailure):
        raise DeviceError(f"kernel {kernel!r} does not compile with {toolchain.version}: {binary.detail}")
    return EntryPoint(binary.path, kernel, host_limits())
