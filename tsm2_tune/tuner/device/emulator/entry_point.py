"""Load and launch kernels that were compiled for the CPU, or compile a text and run it on NumPy arrays in place."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.runtime.choice.core import memory_file
from tsm2_tune.tuner.compile.compiler import compile_text
from tsm2_tune.tuner.device.emulator.faults import STACKS, Entry, Launch, Stretch, fault_message
from tsm2_tune.tuner.device.emulator.limits import host_limits
from tsm2_tune.tuner.device.emulator.memory import PAGE_BYTES, Mapping
from tsm2_tune.tuner.device.emulator.toolchain import host_toolchain
from tsm2_tune.tuner.device.interface import DeviceLost, KernelFault, LaunchConfig, LaunchFailed
from tsm2_tune.tuner.results.trial import CompileFailure

MOST_BLOCKS, MOST_SPLITS = 2**31 - 1, 2**16 - 1  # limits of the grid in x and in y, as on a GPU
COMPILE_LIMIT_SECONDS = 300.0
STACK_BYTES = max(64 << 10, 4 * PAGE_BYTES)  # local arrays, which a GPU keeps in registers, need a few KiB
IN_ORDER = 0  # seed with which the threads of a block run in ascending order

# One launch at a time, since the signal handlers, the stacks and the thread order are global to the process.
_launching = threading.Lock()
_libraries: dict[bytes, ctypes.CDLL] = {}  # by the SHA-256 of their content


def _unlock_in_child() -> None:
    global _launching  # a thread that holds the lock in the parent does not exist in the child
    _launching = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


@cache
def _stacks() -> int:
    """Return the address of the emulated threads' stacks. The caller must hold `_launching`."""
    mapping = Mapping(STACKS * STACK_BYTES)
    for stack in range(STACKS):  # an overflow of a stack faults at the page at its low end
        mapping.deny(at_byte=stack * STACK_BYTES, size_bytes=PAGE_BYTES)
    return mapping.address


def _library(code: bytes) -> ctypes.CDLL:
    """Load a shared library from memory, each once in a process. Raise OSError if it does not load."""
    digest = hashlib.sha256(code).digest()
    if digest not in _libraries:
        try:
            path = memory_file("tsm2_kernel", code)
        except OSError as error:
            raise DeviceLost(f"no file in memory for a kernel: {error.strerror or error}") from error
        try:
            _libraries[digest] = ctypes.CDLL(path)
        except OSError as error:
            raise OSError(str(error).removeprefix(f"{path}: ")) from None
        finally:
            # A loaded library needs no open file. The number may be used again: the loader knows libraries by paths,
            # which contain the digest.
            os.close(int(os.path.basename(path)))
    return _libraries[digest]


class EntryPoint:
    """A loaded kernel, which any thread may run. Launches are serialised. A fault affects only its own launch."""

    def __init__(self, code: bytes, kernel: str, limits: DeviceLimits) -> None:
        """Load the kernel from the shared library `code`. Raise LaunchFailed if it is missing."""
        self._name = kernel
        try:
            self._library = _library(code)
            self._entry = Entry.in_dll(self._library, f"tsm2_host_kernel_{kernel}")
        except (OSError, ValueError) as error:
            raise LaunchFailed(f"kernel {kernel!r} not loaded: {error}") from error
        self._bounds = (
            ("blocks", 1, MOST_BLOCKS),
            ("splits", 1, MOST_SPLITS),
            ("products", 1, MOST_SPLITS),
            ("threads", 1, min(limits.threads_per_block, self._entry.most_threads)),
            ("smem_bytes", 0, limits.smem_bytes_per_block_optin),
        )

    def _check(self, arguments: Sequence[np.generic], config: LaunchConfig) -> None:
        for name, least, most in self._bounds:
            if not least <= (value := getattr(config, name)) <= most:
                raise LaunchFailed(f"kernel {self._name!r}: {name} = {value} is outside {least} ... {most}")
        # A launch copies as many bytes as the parameter has, so each argument must have its parameter's size.
        expected = self._entry.parameter_bytes[: self._entry.parameters]
        given = [argument.nbytes for argument in arguments]
        if given != expected:
            raise LaunchFailed(f"kernel {self._name!r}: its parameters have {expected} bytes, not {given}")

    def fault(
        self,
        arguments: Sequence[np.generic],
        config: LaunchConfig,
        known: Callable[[], Sequence[Stretch]] = tuple,
        *,
        seed: int = IN_ORDER,
    ) -> str | None:
        """Run the kernel to its end. Return a sentence that describes its fault; None if there is no fault.

        `known` returns the ranges of the buffers. The sentence describes a faulting address by its position relative
        to the nearest range. Raise LaunchFailed if the arguments have wrong sizes, or grid, block or shared memory
        exceeds a limit.
        """
        self._check(arguments, config)
        cells = [np.array(argument) for argument in arguments]  # gives each argument an address
        pointers = (ctypes.c_void_p * max(len(cells), 1))(*(cell.ctypes.data for cell in cells))
        with _launching:
            launch = Launch(
                arguments=ctypes.cast(pointers, ctypes.c_void_p),
                **config._asdict(),
                seed=seed % 2**32,
                stacks=_stacks(),
                stack_bytes=STACK_BYTES,
                stack_guard_bytes=PAGE_BYTES,
            )
            self._entry.run(ctypes.byref(launch))
        return fault_message(launch, known()) if launch.fault.kind else None


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
    again. Any thread may call this function. Exported modules call it, so its parameters must stay.

    Raise DeviceError if the text does not compile, LaunchFailed if the arguments or the launch do not fit the kernel,
    KernelFault if the kernel faults, ToolMissing if there is no compiler.
    """
    values = [np.uint64(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments]
    config = LaunchConfig(blocks, threads, splits, products, smem_bytes)
    fault = _entry_point(text, kernel, defines).fault(values, config)
    if fault is not None:
        raise KernelFault(fault)


@cache
def _entry_point(text: str, kernel: str, defines: tuple[str, ...]) -> EntryPoint:
    """Compile and load the kernel."""
    toolchain = host_toolchain()
    binary = compile_text(
        text, kernel=kernel, defines=defines, toolchain=toolchain, limit_seconds=COMPILE_LIMIT_SECONDS
    )
    if isinstance(binary, CompileFailure):
        raise DeviceError(f"kernel {kernel!r} does not compile with {toolchain.version}: {binary.detail}")
    return EntryPoint(binary.code, kernel, host_limits())
