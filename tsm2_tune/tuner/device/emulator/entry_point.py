"""Load a kernel that was compiled for the CPU, and launch it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.tuner.device.emulator.faults import STACKS, Entry, Launch, Stretch, fault_message
from tsm2_tune.tuner.device.emulator.memory import PAGE_BYTES, Stacks
from tsm2_tune.tuner.device.interface import LaunchFailed

MOST_BLOCKS, MOST_SPLITS = 2**31 - 1, 2**16 - 1  # limits of the grid in x and in y, as on a GPU
IN_ORDER = 0  # seed with which the threads of a block run in ascending order

# One launch at a time, since the signal handlers, the stacks and the thread order are global to the process.
_launching = threading.Lock()


def _unlock_in_child() -> None:
    global _launching  # a thread that holds the lock in the parent does not exist in the child
    _launching = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


@cache
def _stacks() -> Stacks:
    """Return the stacks of the emulated threads, allocated once. The caller must hold `_launching`."""
    return Stacks(STACKS)


class EntryPoint:
    """A loaded kernel, which any thread may run. Launches are serialised. A fault affects only its own launch."""

    def __init__(self, path: str, kernel: str, limits: DeviceLimits) -> None:
        """Load the kernel from the shared library at `path`. Raise LaunchFailed if it is missing."""
        self._name = kernel
        try:
            self._library = ctypes.CDLL(path)
            self._entry = Entry.in_dll(self._library, f"tsm2_host_kernel_{kernel}")
        except (OSError, ValueError) as error:
            raise LaunchFailed(f"kernel {kernel!r} not loaded from {path}: {error}") from error
        self._bounds = (
            ("blocks", 1, MOST_BLOCKS),
            ("splits", 1, MOST_SPLITS),
            ("products", 1, MOST_SPLITS),
            ("threads", 1, min(limits.threads_per_block, self._entry.most_threads)),
            ("smem_bytes", 0, limits.smem_bytes_per_block_optin),
        )

    def check(self, arguments: Sequence[np.generic], **launch: int) -> None:
        """Raise LaunchFailed if the arguments have wrong sizes, or grid, block or shared memory exceeds a limit."""
        for name, least, most in self._bounds:
            if not least <= launch[name] <= most:
                raise LaunchFailed(f"kernel {self._name!r}: {name} = {launch[name]} is outside {least} ... {most}")
        # A launch copies as many bytes as the parameter has, so each argument must have its parameter's size.
        expected = self._entry.parameter_bytes[: self._entry.parameters]
        given = [argument.nbytes for argument in arguments]
        if given != expected:
            raise LaunchFailed(f"kernel {self._name!r}: its parameters have {expected} bytes, not {given}")

    def fault(
        self,
        arguments: Sequence[np.generic],
        *,
        blocks: int,
        splits: int,
        products: int = 1,
        threads: int,
        smem_bytes: int,
        seed: int = IN_ORDER,
        known: Callable[[], Sequence[Stretch]] = tuple,
    ) -> str | None:
        """Run the kernel to its end. Return a sentence that describes its fault; None if there is no fault.

        Call `check` first. `known` returns the ranges of the buffers. The sentence describes a faulting address by
        its position relative to the nearest range.
        """
        cells = [np.array(argument) for argument in arguments]  # gives each argument an address
        pointers = (ctypes.c_void_p * max(len(cells), 1))(*(cell.ctypes.data for cell in cells))
        with _launching:
            stacks = _stacks()
            launch = Launch(
                arguments=ctypes.cast(pointers, ctypes.c_void_p),
                blocks=blocks,
                splits=splits,
                products=products,
                threads=threads,
                smem_bytes=smem_bytes,
                seed=seed % 2**32,
                stacks=stacks.address,
                stack_bytes=stacks.stack_bytes,
                stack_guard_bytes=PAGE_BYTES,
            )
            self._entry.run(ctypes.byref(launch))
        return fault_message(launch, known()) if launch.fault.kind else None
