"""A device that runs kernels: the small interface that the GPU and the host both provide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.limits import DeviceLimits
from tsm2_tune.tuner.trial import LoadedResources


class LaunchFailed(Exception):
    """The driver refused to load or to start a kernel; the device goes on working."""


class KernelFault(Exception):
    """A kernel faulted while it ran; the device must not be used again by this process."""


class Buffer(Protocol):
    """Memory of the device."""

    @property
    def address(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def free(self) -> None: ...


class Kernel(Protocol):
    """A loaded entry point."""

    def resources(self, *, threads: int, smem_bytes: int) -> LoadedResources: ...

    def __call__(
        self, arguments: Sequence[np.generic | Buffer], *, blocks: int, threads: int, smem_bytes: int = 0
    ) -> None:
        """Start the kernel, not waiting for its end. Arguments are NumPy scalars of the kernel's exact types,
        and buffers (passed as pointers) or a NumPy uint64 that holds an address.

        LaunchFailed where the driver refuses it.
        """


class Device(Protocol):
    """What the worker needs. One process opens one device."""

    limits: DeviceLimits
    back_guard_bytes: int  # guard zone that verification must put behind an operand; 0 where memory faults there

    def allocate(self, size_bytes: int) -> Buffer:
        """Memory, 256-byte aligned on a GPU; on the host it ends (to within one element) at a page that faults.

        MemoryError where there is not enough.
        """

    def upload(self, values: npt.NDArray[Any], buffer: Buffer) -> None: ...

    def download(self, buffer: Buffer, values: npt.NDArray[Any]) -> None:
        """Copy the buffer's first bytes into the array; waits for the kernels before."""

    def load(self, path: str, kernel: str) -> Kernel:
        """The entry point `kernel` of a binary. LaunchFailed where the driver refuses it."""

    def synchronise(self) -> None:
        """Wait for everything started. KernelFault where a kernel faulted."""

    def time_us(self, flush: Any, launch: Any) -> float:
        """Microseconds that `launch()` takes on the device, after `flush()` has run there."""

    def sm_clock_mhz(self) -> float | None: ...

    def close(self) -> None: ...
