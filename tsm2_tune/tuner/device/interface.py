"""The interface of a device that runs kernels, which the GPU and the emulator implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.tuner.results.trial import Cache, LoadedResources


class LaunchFailed(Exception):
    """The driver refused to load or to start a kernel; the device still works."""


class BinaryLost(Exception):
    """A compiled binary was removed before it was loaded. The kernel is not at fault."""


class KernelFault(Exception):
    """A kernel faulted while it ran; the device must not be used again by this process."""


class DeviceLost(Exception):
    """The device failed in a way that no kernel causes; it must not be used again by this process."""


class Buffer(Protocol):
    """Memory of the device."""

    @property
    def address(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def free(self) -> None: ...


class Kernel(Protocol):
    """A loaded entry point."""

    def resources(self, *, threads: int, smem_bytes: int) -> LoadedResources:
        """Return what the kernel uses with this block size, as the driver reports it."""

    def __call__(
        self,
        arguments: Sequence[np.generic],
        *,
        blocks: int,
        splits: int = 1,
        threads: int,
        smem_bytes: int = 0,
    ) -> None:
        """Launch the kernel on a grid of `blocks` in x and `splits` in y, and return at once.

        The arguments are NumPy scalars of the kernel's exact types; a pointer is a uint64 with an address. Raise
        LaunchFailed if the driver refuses the launch.
        """


class Device(Protocol):
    """The device as the worker sees it. One process opens one device."""

    limits: DeviceLimits
    support_threads: int  # threads of a block of the support kernels; few if a thread costs more than an element
    faults_past_buffers: bool  # whether an access right behind a buffer faults
    calls_ahead: int  # calls in flight before the first is judged; 1 if a launch waits for its end

    def allocate(self, size_bytes: int) -> Buffer:
        """Return memory, 256-byte aligned on a GPU; on the host it ends, to within 8 bytes, at a page that faults.

        Raise MemoryError if there is not enough.
        """

    def keeping_memory(self) -> AbstractContextManager[None]:
        """Return a context in which freed buffers may be kept for reuse."""

    def upload(self, values: npt.NDArray[Any], buffer: Buffer) -> None:
        """Copy the array to the buffer's first bytes."""

    def download(self, buffer: Buffer, values: npt.NDArray[Any]) -> None:
        """Copy the buffer's first bytes into the array, after the kernels in flight."""

    def load(self, path: str, kernel: str) -> Kernel:
        """Return the entry point `kernel` of a binary.

        Raise LaunchFailed if it is missing, or the driver refuses it.
        """

    def synchronise(self) -> None:
        """Wait for all kernels except those of `start_concurrently`.

        Raise KernelFault if a kernel faulted, DeviceLost if the device failed.
        """

    def start_concurrently(self, launches: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        """Start each launch so that it can run beside the others and beside later kernels.

        Wait for earlier kernels first. Return for each launch a function that waits for it, and raises as
        `synchronise` does.
        """

    def time_us(self, launch: Callable[[], None], cache: Cache = Cache.CLEAN) -> float:
        """Return the microseconds that `launch()` takes on the device with the L2 in this state.

        The host has only `clean`.
        """

    def ceilings(self) -> Ceilings:
        """Measure the streaming and arithmetic rates."""

    def sm_clock_mhz(self) -> float | None:
        """Return the current SM clock; None if the device does not report it."""

    def close(self) -> None:
        """Release the device."""
