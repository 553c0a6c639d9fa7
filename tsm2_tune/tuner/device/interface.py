"""The interface of a device that runs kernels. A GPU and the emulator on the CPU implement it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.tuner.results.trial import Cache, LoadedResources


class LaunchFailed(Exception):
    """The driver refused to load or to launch a kernel. The device still works."""


class KernelFault(Exception):
    """A kernel faulted while it ran. This process must not use the device again."""


class DeviceLost(Exception):
    """The device failed in a way that no kernel can cause. This process must not use the device again."""


class Buffer(Protocol):
    """A buffer in the device's memory."""

    @property
    def address(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def free(self) -> None: ...


class LaunchConfig(NamedTuple):
    """The grid, the block and the dynamic shared memory of a launch."""

    blocks: int  # of the grid, in x
    threads: int  # of a block
    splits: int = 1  # blocks of the grid in y
    products: int = 1  # blocks of the grid in z
    smem_bytes: int = 0  # dynamic shared memory of a block


class Kernel(Protocol):
    """A loaded kernel, which can be called to launch it."""

    def resources(self, *, threads: int, smem_bytes: int) -> LoadedResources:
        """Return the kernel's registers, memory and blocks per SM for this block size and dynamic shared memory."""

    def __call__(self, arguments: Sequence[np.generic], config: LaunchConfig) -> None:
        """Launch the kernel. Do not wait.

        The arguments are NumPy scalars of the kernel's exact types; a pointer is a uint64. Raise LaunchFailed if the
        driver refuses the launch.
        """


class Device(Protocol):
    """A device that loads, launches and times kernels. One process opens one device."""

    limits: DeviceLimits
    support_threads: int  # threads in a block of the support kernels; few if a thread costs more than an element
    faults_past_buffers: bool  # whether an access just past a buffer's end faults
    calls_ahead: int  # most launches before the first result is checked; 1 if a launch waits for its end

    def allocate(self, size_bytes: int) -> Buffer:
        """Return a new buffer of `size_bytes`. Raise MemoryError if it does not fit.

        On a GPU its address is a multiple of 256. On the CPU an inaccessible page follows it.
        """

    def keeping_memory(self) -> AbstractContextManager[None]:
        """Return a context manager. Within it the device may reuse the memory of freed buffers."""

    def upload(self, values: npt.NDArray[Any], buffer: Buffer) -> None:
        """Copy the array into the first bytes of the buffer."""

    def download(self, buffer: Buffer, values: npt.NDArray[Any]) -> None:
        """Wait for the launched kernels, then copy the buffer's first bytes into the array `values`."""

    def load(self, code: bytes, kernel: str) -> Kernel:
        """Load the kernel with the name `kernel` from the binary `code`.

        Raise LaunchFailed if the binary does not contain the kernel, or if the driver refuses to load the binary.
        """

    def synchronise(self) -> None:
        """Wait for all launched kernels except those that `start_concurrently` launched.

        Raise KernelFault if a kernel faulted, DeviceLost if the device failed.
        """

    def start_concurrently(self, launches: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        """Wait for earlier kernels, then call all `launches` so that their kernels may run at the same time.

        Later kernels may run at the same time too. Return one function for each launch. The function waits for the
        launch, and raises KernelFault or DeviceLost if it fails.
        """

    def time_us(self, launch: Callable[[], None], cache: Cache = Cache.CLEAN) -> float:
        """Return the microseconds that the kernel of `launch()` runs, with the L2 cache in the state `cache`.

        The CPU ignores `cache`.
        """

    def ceilings(self) -> Ceilings:
        """Measure and return the device's memory bandwidth and its peak arithmetic rates."""

    def sm_clock_mhz(self) -> float | None:
        """Return the current SM clock in MHz; None if the device does not report it."""

    def close(self) -> None:
        """Release the device."""
