"""A device that runs kernels: the small interface that the GPU and the host both provide."""

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
    """The driver refused to load or to start a kernel; the device goes on working."""


class BinaryLost(Exception):
    """A compiled binary was removed before it was loaded. That is no fault of the kernel."""


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
        """Start the kernel on a grid of `blocks` in x and `splits` in y, not waiting for its end. The arguments are
        NumPy scalars of the kernel's exact types; a pointer is a uint64 that holds an address.

        Raise LaunchFailed if the driver refuses it.
        """


class Device(Protocol):
    """The device as the worker sees it. One process opens one device."""

    limits: DeviceLimits
    support_threads: int  # of a block of the tuner's own kernels: fewer where a thread costs more than an element
    faults_past_buffers: bool  # whether an access right behind a buffer faults by itself
    calls_ahead: int  # calls that are started before the first is judged; 1 where starting one waits for its end

    def allocate(self, size_bytes: int) -> Buffer:
        """Return memory, 256-byte aligned on a GPU; on the host it ends, to within 8 bytes, at a page that faults.

        Raise MemoryError if there is not enough.
        """

    def keeping_memory(self) -> AbstractContextManager[None]:
        """Within it, buffers that are freed may be kept for what is allocated next."""

    def upload(self, values: npt.NDArray[Any], buffer: Buffer) -> None:
        """Copy the array to the buffer's first bytes."""

    def download(self, buffer: Buffer, values: npt.NDArray[Any]) -> None:
        """Copy the buffer's first bytes into the array, after the kernels started before."""

    def load(self, path: str, kernel: str) -> Kernel:
        """Return the entry point `kernel` of a binary.

        Raise LaunchFailed if it is missing, or the driver refuses it.
        """

    def synchronise(self) -> None:
        """Wait for all that was not started aside. Raise KernelFault if a kernel faulted, DeviceLost where the device
        did.
        """

    def start_concurrently(self, launches: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        """Start what each of the launches starts beside the others and what is started later, as far as the device
        can. Everything started before has ended.

        Returns for each what waits for it, and raises as `synchronise` does.
        """

    def time_us(self, launch: Callable[[], None], cache: Cache = Cache.CLEAN) -> float:
        """Microseconds that `launch()` takes on the device, its last-level cache in this state before.

        The host knows `clean` alone.
        """

    def ceilings(self) -> Ceilings:
        """Measure the streaming and arithmetic rates."""

    def sm_clock_mhz(self) -> float | None:
        """Return the clock right now; None if the device does not tell."""

    def close(self) -> None:
        """Give everything back."""
