"""Plans: all of a launch but the addresses, the factors and the stream.

A launch is written into memory that the driver reads, a slot. While the driver reads, other Python threads run, so
that a plan has as many slots as threads have started it at once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tsm2_tune.runtime.driver import cuda, current_context, error_name
from tsm2_tune.runtime.loading import lock
from tsm2_tune.runtime.matrices import Product
from tsm2_tune.runtime.winners import Match
from tsm2_tune.runtime.workspace import workspace_for

# A slot: CUlaunchConfig, the kernel's arguments, each in 16 bytes, and the pointers to them.
STREAM_AT = (
    32  # bytes into CUlaunchConfig; before it the grid, the block and the shared memory, behind it no attributes
)
ARGUMENTS_AT, ARGUMENT_BYTES, MOST_ARGUMENTS = 64, 16, 13
POINTERS_AT = ARGUMENTS_AT + MOST_ARGUMENTS * ARGUMENT_BYTES
SLOT_BYTES = POINTERS_AT + MOST_ARGUMENTS * 8
HEAD, ARGUMENTS, POINTERS = (
    struct.Struct("7I"),
    struct.Struct("q8x" * MOST_ARGUMENTS),
    struct.Struct(f"{MOST_ARGUMENTS}Q"),
)
ALPHA, BETA = 3, 8  # places among the arguments
STREAM, A, B, C, PARTIALS, COUNTERS = (
    STREAM_AT // 8,
    *((ARGUMENTS_AT + at * ARGUMENT_BYTES) // 8 for at in (4, 6, 9, 11, 12)),
)


class Slot:
    """One launch's memory: `words` are its 8-byte words."""

    __slots__ = ("buffer", "config", "is_plain", "parameters", "view", "words")

    def __init__(self, plan: Plan) -> None:
        self.buffer = ctypes.create_string_buffer(SLOT_BYTES)
        self.view = memoryview(self.buffer).cast("B")
        self.words = self.view.cast("Q")
        at, (m, n, k) = ctypes.addressof(self.buffer), plan.shape
        lda, ldb, ldc = plan.leading
        HEAD.pack_into(self.view, 0, *plan.grid, plan.match.launch.threads, 1, 1, plan.smem_bytes)
        ARGUMENTS.pack_into(self.view, ARGUMENTS_AT, m, n, k, 0, 0, lda, 0, ldb, 0, 0, ldc, 0, 0)
        first = at + ARGUMENTS_AT
        POINTERS.pack_into(self.view, POINTERS_AT, *range(first, first + POINTERS_AT - ARGUMENTS_AT, ARGUMENT_BYTES))
        self.config, self.parameters = ctypes.c_void_p(at), ctypes.c_void_p(at + POINTERS_AT)
        self.set_factors(plan, None, None)

    def set_factors(self, plan: Plan, alpha: complex | None, beta: complex | None) -> None:
        """Write the factors: None for those of the product alone."""
        self.is_plain = alpha is None and beta is None
        for place, factor, unit in ((ALPHA, alpha, plan.units[0]), (BETA, beta, plan.units[1])):
            raw = plan.scalar(unit if factor is None else factor).tobytes()
            start = ARGUMENTS_AT + place * ARGUMENT_BYTES
            self.view[start : start + len(raw)] = raw


class Plan:
    """A product's kernel, loaded, and its launch."""

    __slots__ = (
        "at_a", "at_b", "context", "context_number", "function", "grid", "is_complex", "kernel_launch", "largest",
        "leading", "match", "needed_bytes", "ordinal", "out_order", "out_shape", "out_strides", "scalar", "shape",
        "slots", "smem_bytes", "spans", "units",
    )  # fmt: skip

    def __init__(
        self,
        product: Product,  # as it was asked for, `out` made
        match: Match,
        *,
        context: int,
        context_number: int,  # which no later context gets
        ordinal: int,
        function: ctypes.c_void_p,
        units: tuple[complex, complex],
    ) -> None:
        launch, sum_dtype = match.launch, product.sum_dtype
        oriented = product.transposed() if match.swapped else product
        self.match, self.context, self.ordinal, self.function = match, context, ordinal, function
        self.context_number = context_number
        self.shape, self.units = oriented.shape, units
        self.at_a, self.at_b = (B, A) if match.swapped else (A, B)
        # In another context than the kernel's it refuses, and is called again within that.
        self.kernel_launch = cuda().cuLaunchKernelEx
        m, n, _ = self.shape
        self.grid = (*launch.grid(m, n), 1)
        self.smem_bytes = launch.smem_bytes
        orders = match.winner.orders
        self.leading = tuple(x.ld[order] for x, order in zip(oriented.given, orders, strict=True))
        self.needed_bytes: tuple[int, int] | None = None
        if launch.has_workspace:
            self.needed_bytes = (launch.partial_elements(m, n) * sum_dtype.itemsize, launch.counters(m, n) * 4)
        self.scalar: Any = sum_dtype.type
        self.largest, self.is_complex = float(np.finfo(sum_dtype).max), product.is_complex
        self.spans = tuple(x.span_bytes for x in product.given)
        self.out_shape, self.out_order = product.out_shape, made_order(match)
        self.out_strides = element_strides(self.out_shape, self.out_order)
        self.slots: list[Slot] = []

    def start(
        self, a: int, b: int, out: int, alpha: complex | None, beta: complex | None, stream: int, array: Any
    ) -> None:
        """Launch with the matrices at these addresses, the factors, None for those of the product alone, on the
        stream. `array` is one of the arrays, whose library allocates the workspace."""
        try:
            slot = self.slots.pop()
        except IndexError:
            slot = Slot(self)
        words = slot.words
        words[self.at_a], words[self.at_b], words[C], words[STREAM] = a, b, out, stream
        if alpha is not None or beta is not None or not slot.is_plain:
            slot.set_factors(self, alpha, beta)
        if self.needed_bytes is not None or self.kernel_launch(slot.config, self.function, slot.parameters, None):
            self.launch(slot, stream, array)
        self.slots.append(slot)

    def launch(self, slot: Slot, stream: int, array: Any) -> None:
        """Start what the slot holds on the stream, in the plan's context. RuntimeError says what was refused."""
        slot.words[STREAM] = stream
        current = ctypes.c_void_p()
        cuda().cuCtxGetCurrent(ctypes.byref(current))
        if current.value == self.context:
            status = self._status(slot, stream, array)
        else:
            with current_context(self.context):
                status = self._status(slot, stream, array)
        if status:
            raise RuntimeError(f"cuLaunchKernelEx failed: {error_name(status)}")

    def _status(self, slot: Slot, stream: int, array: Any) -> int:
        """Of the launch in the current context."""
        if self.needed_bytes is None:
            return int(self.kernel_launch(slot.config, self.function, slot.parameters, None))
        with lock:
            workspace = workspace_for(self.context_number, self.needed_bytes, stream, array)
            slot.words[PARTIALS], slot.words[COUNTERS] = workspace
            return int(self.kernel_launch(slot.config, self.function, slot.parameters, None))

    def takes(self, factor: Any) -> bool:
        """Whether it is a factor that needs no closer look: of Python's own numbers, finite in the type of sums."""
        if type(factor) in (int, float):
            return bool(-self.largest <= factor <= self.largest)
        if type(factor) is complex and self.is_complex:
            return abs(factor.real) <= self.largest and abs(factor.imag) <= self.largest
        return factor is None


class Bound:
    """A plan and its arrays: calling it starts the product."""

    __slots__ = ("addresses", "alpha", "arrays", "beta", "match", "plan", "slots", "stream")

    def __init__(
        self, plan: Plan, arrays: tuple[Any, Any, Any], addresses: tuple[int, int, int], alpha: Any, beta: Any,
        stream: Callable[[], int],
    ) -> None:  # fmt: skip
        self.plan, self.arrays, self.alpha, self.beta, self.stream = plan, arrays, alpha, beta, stream
        self.match, self.addresses, self.slots = plan.match, addresses, list[Slot]()

    def __call__(self) -> Any:
        """Start it on the stream that is current, or that it was planned for; returns `out`."""
        try:
            slot = self.slots.pop()
        except IndexError:
            slot = self._new_slot()
        out = self.arrays[2]
        plan, stream = self.plan, self.stream()
        slot.words[STREAM] = stream
        if plan.needed_bytes is not None or plan.kernel_launch(slot.config, plan.function, slot.parameters, None):
            plan.launch(slot, stream, out)
        self.slots.append(slot)
        return out

    def _new_slot(self) -> Slot:
        slot, (a, b, out) = Slot(self.plan), self.addresses
        slot.words[self.plan.at_a], slot.words[self.plan.at_b], slot.words[C] = a, b, out
        slot.set_factors(self.plan, self.alpha, self.beta)
        return slot


def made_order(match: Match) -> str:
    """NumPy's order of an `out` that is made for the kernel."""
    return "F" if (match.winner.orders[2] == "n") != match.swapped else "C"


def element_strides(shape: tuple[int, ...], order: str) -> tuple[int, ...]:
    """Strides, in elements, of a new array in NumPy's order."""
    if len(shape) == 1:
        return (1,)
    return (1, shape[0]) if order == "F" else (shape[1], 1)
