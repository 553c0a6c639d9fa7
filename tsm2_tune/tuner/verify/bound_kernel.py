"""A kernel loaded on a device, together with its split-k workspace for given operands."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tsm2_tune.generator.config import ONE_EACH, Launch
from tsm2_tune.tuner.device.interface import Buffer, Device, Kernel, LaunchConfig, LaunchFailed
from tsm2_tune.tuner.device.support_kernels import Counters, Placed
from tsm2_tune.tuner.verify.operands import Filling, Operand, Operands, Values, needed_bytes

WORKSPACE_ALIGNMENT = 4  # elements: 16 bytes of the smallest type


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel in a binary, with its launch dimensions."""

    code: bytes = field(repr=False)
    kernel: str
    launch: Launch


class WorkspaceTooLarge(LaunchFailed):
    """Error: the operands and the workspace together need more memory than the device has."""


class BoundKernel:
    """A kernel with an allocated split-k workspace, ready to launch on the operands.

    The constructor raises MemoryError if the workspace does not fit in the free device memory, and WorkspaceTooLarge
    if operands and workspace exceed the device's total memory.
    """

    def __init__(self, device: Device, operands: Operands, entry: Entry, kernel: Kernel | None = None) -> None:
        """Allocate the workspace. Load the kernel from `entry` unless the loaded kernel is passed as `kernel`."""
        self.entry, self.operands = entry, operands
        self.kernel = kernel or device.load(entry.code, entry.kernel)
        self._device = device
        m, n = operands.problem.m, operands.problem.n
        blocks, splits = entry.launch.grid(m, n)
        products = operands.problem.batch if entry.launch.batched == ONE_EACH else 1
        self._config = LaunchConfig(blocks, entry.launch.threads, splits, products, entry.launch.smem_bytes)
        counters, partials = entry.launch.counters(m, n), entry.launch.partial_elements(m, n)
        aligned = -(-partials // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        self._workspace_strides = (np.int64(aligned), np.int64(counters)) if partials else ()
        self._counters = products * counters
        self._counter_buffer: Buffer | None = None
        self._partials: Operand | None = None
        elements = products * aligned
        try:
            if elements:
                zeros = np.zeros(self._counters, np.uint32)
                self._counter_buffer = device.allocate(zeros.nbytes)
                device.upload(zeros, self._counter_buffer)
                sums = operands.problem.dtype.sum
                self._partials = Operand(device, operands.support, "the workspace", elements, 1, sums)
        except MemoryError as error:
            self.free()
            workspace = self._counters * np.uint32().nbytes + elements * operands.problem.dtype.sum.element_bytes
            needed, has = needed_bytes(operands.problem) + workspace, device.limits.memory_bytes
            if needed > has:
                raise WorkspaceTooLarge(
                    f"with its workspace of {workspace} bytes it needs {needed} bytes, and the device has {has}"
                ) from None
            raise MemoryError(f"its workspace: {error}") from None

    def on(self, operands: Operands) -> BoundKernel:
        """Return a BoundKernel of the same kernel for other operands, with a new workspace."""
        return BoundKernel(self._device, operands, self.entry, self.kernel)

    def prepare(self) -> None:
        """Fill the workspace's partial sums with NaN: reading an unwritten partial sum then gives NaN."""
        if placed := self.placed():
            self.operands.support.fill(placed)

    def placed(self) -> list[Placed]:
        """Return a list with the descriptor for filling the partial sums with NaN; [] if k is not split."""
        return [one.place(Filling(one.rows, Values.POISON, 0)) for one in self.workspace]

    def start(self, arguments: tuple[np.generic, ...]) -> None:
        """Launch the kernel asynchronously. The addresses of the workspace, then the batch, end the arguments."""
        if self._partials is not None and self._counter_buffer is not None:
            arguments += (np.uint64(self._partials.address), np.uint64(self._counter_buffer.address))
        if self.entry.launch.batched:
            arguments += (*self.operands.batch_arguments(), *self._workspace_strides)
        self.kernel(arguments, self._config)

    @property
    def workspace(self) -> tuple[Operand, ...]:
        """A tuple with the buffer of partial sums; () if k is not split."""
        return () if self._partials is None else (self._partials,)

    @property
    def counters(self) -> Counters | None:
        """The workspace's counters, which every launch must reset to 0; None if k is not split."""
        return None if self._counter_buffer is None else Counters(self._counter_buffer, self._counters)

    def free(self) -> None:
        """Free the workspace."""
        if self._counter_buffer is not None:
            self._counter_buffer.free()
        if self._partials is not None:
            self._partials.buffer.free()
