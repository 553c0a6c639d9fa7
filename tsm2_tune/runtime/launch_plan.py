"""`Plan`: a kernel launch without addresses, alpha, beta and stream. `Bound`: a plan with its arrays.

The launch configuration and the kernel's arguments are written into a buffer, a `Slot`, that the driver reads.
Several threads may launch one plan at the same time, so each launch uses its own slot.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tsm2_tune.runtime.arrays.batches import packed_strides
from tsm2_tune.runtime.arrays.libraries import at_stream
from tsm2_tune.runtime.arrays.matrices import Product
from tsm2_tune.runtime.choice.winners import MERGED_COLUMNS, MERGED_ROWS, Match, Vendor
from tsm2_tune.runtime.cuda.cubins import lock
from tsm2_tune.runtime.cuda.driver import (
    LEGACY_STREAM,
    ask_driver,
    cuda,
    current_context,
    error_name,
    primary_context,
)
from tsm2_tune.runtime.cuda.workspace import legacy_key, workspace_for, workspaces
from tsm2_tune.runtime.elements import OF_ELEMENT, UNITS

# Layout of a slot: a CUlaunchConfig, which ends with the stream and no attributes; the addresses of a, b and out; the
# other arguments, 16 bytes each; pointers to all arguments in the kernel's order; arguments of a batch, 8 bytes each.
STREAM, STREAM_AND_ADDRESSES = struct.Struct("Q"), struct.Struct("Q16x3Q")
STREAM_AT = 32  # bytes into the slot
ADDRESSES_AT = (56, 64, 72)  # of a, b and out
ARGUMENTS_AT, ARGUMENT_BYTES = 80, 16
NAMES_OF_ARGUMENTS = ("m", "n", "k", "alpha", "beta", "lda", "ldb", "ldc", "partials", "counters")
AT = {name: ARGUMENTS_AT + at * ARGUMENT_BYTES for at, name in enumerate(NAMES_OF_ARGUMENTS)}
IN_ORDER = ("m", "n", "k", "alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc", "partials", "counters")
FIRST = {False: "abc", True: "bac"}  # for the transposed product b is the kernel's first operand
PLACES = {  # whether transposed -> byte offset of each kernel argument in the slot
    is_transposed: tuple((AT | dict(zip(names, ADDRESSES_AT, strict=True)))[name] for name in IN_ORDER)
    for is_transposed, names in FIRST.items()
}
ALPHA_AT, BETA_AT, WORKSPACE_AT = AT["alpha"], AT["beta"], AT["partials"]
POINTERS_AT = ARGUMENTS_AT + len(AT) * ARGUMENT_BYTES
# Arguments of a batch: number of products; strides of the kernel's A, B and C, and of the two parts of a workspace.
BATCH_AT, BATCH = POINTERS_AT + (len(IN_ORDER) + 6) * 8, struct.Struct("i4x5q")
BUFFER = ctypes.c_char * (BATCH_AT + BATCH.size)
WORKSPACE = struct.Struct("Q8xQ")
SCALARS = {"f": "f12xf12x", "d": "d8xd8x", "F": "2f8x2f8x", "D": "4d"}  # accumulator type -> alpha and beta
FACTORS = {kind: struct.Struct(both) for kind, both in SCALARS.items()}
WHOLE = {  # grid, block and shared memory; m, n and k; alpha and beta; leading dimensions; pointers
    kind: struct.Struct(f"7I52x{'q8x' * 3}{both}{'q8x' * 3}32x{len(IN_ORDER)}Q") for kind, both in SCALARS.items()
}
LARGEST = {kind: float(np.finfo(kind).max) for kind in SCALARS}


class Slot:
    """The buffer of one launch. `config` and `parameters` are the pointers into it that cuLaunchKernelEx reads."""

    __slots__ = ("alpha", "beta", "buffer", "config", "legacy_workspace", "operands", "parameters")

    def __init__(self, plan: Plan) -> None:
        # The addresses of the legacy stream's workspace, if they are written in this slot.
        self.legacy_workspace: tuple[int, int] | None = None
        self.operands: tuple[int, ...] = ()  # the stream and the addresses that are written in this slot
        self.buffer = BUFFER()
        first = ctypes.addressof(self.buffer)
        pointers = [first + place for place in plan.places]
        scalars = plan.scalars(None, None)
        head = (*plan.head, *plan.shape, *scalars, *plan.leading)
        WHOLE[plan.scalar_type].pack_into(self.buffer, 0, *head, *pointers[: len(IN_ORDER)])
        if plan.batch is not None:
            struct.pack_into(f"{len(pointers)}Q", self.buffer, POINTERS_AT, *pointers)
            BATCH.pack_into(self.buffer, BATCH_AT, *plan.batch)
        self.config, self.parameters = ctypes.byref(self.buffer), ctypes.byref(self.buffer, POINTERS_AT)
        self.alpha: complex | None = None
        self.beta: complex | None = None

    def set_factors(self, plan: Plan, alpha: complex | None, beta: complex | None) -> None:
        """Write alpha and beta into the buffer. None means the plan's neutral value."""
        self.alpha, self.beta = alpha, beta
        FACTORS[plan.scalar_type].pack_into(self.buffer, ALPHA_AT, *plan.scalars(alpha, beta))


class Plan:
    """A product's loaded kernel and its launch configuration, to be launched with any addresses, alpha and beta."""

    __slots__ = (
        "alignment_mask", "batch", "checked_operands", "context", "context_number", "function", "head", "is_complex",
        "kernel", "kernel_launch", "largest", "leading", "legacy", "match", "needed_bytes", "ordinal", "out_order",
        "out_shape", "out_strides", "places", "scalar_type", "shape", "slots", "spans", "units",
    )  # fmt: skip

    def __init__(
        self,
        product: Product,  # the call's product, with an `out`
        match: Match,
        function: ctypes.c_void_p,
        owner: tuple[int, int, int],  # the context's handle; its id, never reused; the device's ordinal
    ) -> None:
        launch, kernel = match.launch, function.value or 0
        self.match = match
        self.context, self.context_number, self.ordinal = owner
        self.kernel, self.function = kernel, ctypes.c_void_p.from_param(kernel)
        self.legacy = legacy_key(self.context_number)
        self.shape, self.leading = match.extents, match.leading
        self.units = UNITS.get(product.math or "", (1, 0))
        self.places = PLACES[match.is_transposed]
        # Arguments of a kernel of batches; None for any other kernel.
        self.batch = (match.batch, *match.strides, *match.workspace_strides) if match.launch.batched else None
        if self.batch is not None:
            count = len(IN_ORDER) if launch.has_workspace else len(IN_ORDER) - 2
            of_batch = tuple(range(BATCH_AT, BATCH_AT + BATCH.size, 8))
            self.places = self.places[:count] + of_batch[: 6 if launch.has_workspace else 4]
            self.places += (BATCH_AT,) * (len(IN_ORDER) - len(self.places))  # not read
        # This fails if the current context is not the kernel's; `launch` then makes the kernel's current and retries.
        self.kernel_launch = cuda().cuLaunchKernelEx
        if not match.grid[0]:
            m, n, _ = self.shape
            raise ValueError(
                f"a product of {m}x{n} needs more blocks than a grid has, or a workspace beyond any memory:"
                " compute it in parts"
            )
        self.head = (*match.grid, match.products_of_grid, launch.threads, 1, 1, launch.smem_bytes)
        self.needed_bytes = match.workspace_bytes
        self.scalar_type, self.is_complex, self.alignment_mask = OF_ELEMENT[product.a.element]
        self.largest = LARGEST[self.scalar_type]
        self.spans = tuple([x.span_bytes for x in product.given])
        # The stream and the addresses of the last call that passed the checks of alignment and overlap.
        self.checked_operands: tuple[int, ...] | None = None
        self.out_shape, self.out_strides, self.out_order = product.out_shape, made_strides(product, match), ""
        if product.products:
            self.out_order = "C" if self.out_strides == packed_strides(self.out_shape, 1) else ""
        else:
            self.out_order = made_order(match)
        self.slots = [Slot(self)]

    def start(
        self, operands: tuple[int, int, int, int], alpha: complex | None, beta: complex | None, array: Any
    ) -> None:
        """Launch the kernel. `operands` are the stream and the addresses of a, b and out.

        The library of `array`, one of the operands, allocates the workspace.
        """
        try:
            slot = self.slots.pop()
        except IndexError:
            slot = Slot(self)
        if slot.operands != operands:
            STREAM_AND_ADDRESSES.pack_into(slot.buffer, STREAM_AT, *operands)
            slot.operands = operands
        if slot.alpha is not alpha or slot.beta is not beta:
            slot.set_factors(self, alpha, beta)
        if self.needed_bytes is not None or self.kernel_launch(slot.config, self.function, slot.parameters, None):
            self.launch(slot, operands[0], array)
        self.slots.append(slot)

    def free_slot(self) -> Slot:
        """Return a slot that no launch uses now."""
        try:
            return self.slots.pop()
        except IndexError:
            return Slot(self)

    def start_within(self, a: int, b: int, out: int, stream: int, partials: int, counters: int) -> None:
        """Launch the kernel with neutral factors in the caller's workspace, whose counters are set to 0 here.

        The plan's context must be current. No other launch may use the workspace at the same time.
        """
        slot = self.free_slot()
        STREAM_AND_ADDRESSES.pack_into(slot.buffer, STREAM_AT, stream, a, b, out)
        slot.operands = ()
        if self.needed_bytes is not None:
            words = ctypes.c_size_t(self.needed_bytes[1] // 4)
            ask_driver("cuMemsetD32Async", ctypes.c_uint64(counters), 0, words, ctypes.c_void_p(stream))
            WORKSPACE.pack_into(slot.buffer, WORKSPACE_AT, partials, counters)
            slot.legacy_workspace = None
        status = self.kernel_launch(slot.config, self.function, slot.parameters, None)
        self.slots.append(slot)
        if status:
            raise RuntimeError(f"cuLaunchKernelEx failed: {error_name(status)}")

    def _launched_at_once(self, slot: Slot, needed_bytes: tuple[int, int]) -> bool:
        """Launch on the legacy stream with its workspace. Return False if that is too small, or if it fails."""
        with lock:
            found = workspaces.get(self.legacy)
            if found is None:
                return False
            if found.addresses is not slot.legacy_workspace:
                if not found.holds(needed_bytes):
                    return False
                WORKSPACE.pack_into(slot.buffer, WORKSPACE_AT, *found.addresses)
                slot.legacy_workspace = found.addresses
            return not self.kernel_launch(slot.config, self.function, slot.parameters, None)

    def launch(self, slot: Slot, stream: int, array: Any) -> None:
        """Launch the slot on the stream, in the plan's context. Raise RuntimeError if the launch fails."""
        if (
            self.needed_bytes is not None
            and stream <= LEGACY_STREAM
            and self._launched_at_once(slot, self.needed_bytes)
        ):
            return
        current = ctypes.c_void_p()
        cuda().cuCtxGetCurrent(ctypes.byref(current))
        if current.value is None and self.ordinal == 0 and self.context == primary_context(0):
            # Make the context current for later launches of this thread, too, as the CUDA runtime does: in a thread
            # without a context, its current device is GPU 0.
            ask_driver("cuCtxSetCurrent", ctypes.c_void_p(self.context))
            current.value = self.context
        if current.value == self.context:
            status = self._status(slot, stream, array)
        else:
            with current_context(self.context):
                status = self._status(slot, stream, array)
        if status:
            raise RuntimeError(f"cuLaunchKernelEx failed: {error_name(status)}")

    def _status(self, slot: Slot, stream: int, array: Any) -> int:
        """Launch the slot in the current context and return the driver's status, 0 if it succeeds."""
        if self.needed_bytes is None:
            return int(self.kernel_launch(slot.config, self.function, slot.parameters, None))
        with lock:
            workspace = workspace_for(self.context, self.context_number, self.needed_bytes, stream, array)
            slot.legacy_workspace = None
            WORKSPACE.pack_into(slot.buffer, WORKSPACE_AT, *workspace)
            return int(self.kernel_launch(slot.config, self.function, slot.parameters, None))

    def scalars(self, alpha: complex | None, beta: complex | None) -> tuple[complex, ...]:
        """Return alpha and beta, or real and imaginary part of both. None means the plan's neutral value."""
        one, zero = self.units
        alpha, beta = one if alpha is None else alpha, zero if beta is None else beta
        return (alpha.real, alpha.imag, beta.real, beta.imag) if self.is_complex else (alpha, beta)

    def takes(self, factor: Any) -> bool:
        """Return whether alpha or beta is None or a Python number in the range of the accumulator type."""
        if type(factor) in (int, float):
            return bool(-self.largest <= factor <= self.largest)
        if type(factor) is complex and self.is_complex:
            return abs(factor.real) <= self.largest and abs(factor.imag) <= self.largest
        return factor is None


class OfArrays:
    """Base class of plans that hold arrays. A copied or pickled plan would have other arrays, so neither works."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a plan belongs to its arrays and to this process, and cannot be copied or pickled: plan again"
        )


class Bound(OfArrays):
    """A plan with its arrays, alpha and beta. Calling it launches the kernel."""

    __slots__ = ("addresses", "alpha", "arrays", "beta", "match", "plan", "slots", "stream")

    def __init__(
        self, plan: Plan, match: Match, arrays: tuple[Any, Any, Any], addresses: tuple[int, int, int], alpha: Any,
        beta: Any, stream: Callable[[], int],
    ) -> None:  # fmt: skip
        self.plan, self.arrays, self.alpha, self.beta, self.stream = plan, arrays, alpha, beta, stream
        self.match, self.addresses, self.slots = match, addresses, list[Slot]()

    def __call__(self) -> Any:
        """Start the product on the plan's stream or, if it has none, on the current stream. Return `out`."""
        try:
            slot = self.slots.pop()
        except IndexError:
            slot = Slot(self.plan)
            slot.set_factors(self.plan, self.alpha, self.beta)
            STREAM_AND_ADDRESSES.pack_into(slot.buffer, STREAM_AT, 0, *self.addresses)
        out = self.arrays[2]
        plan, stream = self.plan, self.stream()
        STREAM.pack_into(slot.buffer, STREAM_AT, stream)
        if plan.needed_bytes is not None or plan.kernel_launch(slot.config, plan.function, slot.parameters, None):
            plan.launch(slot, stream, out)
        self.slots.append(slot)
        return out


class BoundVendor(OfArrays):
    """A plan whose product the arrays' own library computes. Calling it starts this product."""

    __slots__ = ("arrays", "match", "multiply", "stream")

    def __init__(
        self,
        match: Vendor,
        arrays: tuple[Any, Any, Any],
        stream: Callable[[], int],
        multiply: Callable[[], Any],
    ) -> None:
        self.match, self.arrays, self.stream, self.multiply = match, arrays, stream, multiply

    def __call__(self) -> Any:
        """Start the product on the plan's stream or, if it has none, on the current stream. Return `out`."""
        out = self.arrays[2]
        with at_stream(out, self.stream()):
            self.multiply()
        return out


def made_order(match: Match) -> str:
    """Return the storage order of a new `out` for the matched kernel: NumPy's "F" or "C"."""
    return "F" if (match.winner.orders[2] == "n") != match.is_transposed else "C"


def made_strides(product: Product, match: Match) -> tuple[int, ...]:
    """Return the strides, in elements, of a new `out`.

    Each matrix is contiguous. If the kernel computes the batch as one product, that product's C is.
    """
    (m, n, _), is_column_major = product.shape, made_order(match) == "F"
    count, is_of_rows = product.batch, match.merged == MERGED_ROWS
    if is_column_major:
        down, across, step = 1, m * count if is_of_rows else m, m if is_of_rows else m * n
    else:
        is_of_columns = match.merged == MERGED_COLUMNS
        down, across, step = n * count if is_of_columns else n, 1, n if is_of_columns else m * n
    if product.a.is_vector or product.b.is_vector:
        return (*packed_strides(product.products, m * n), 1)
    return (*packed_strides(product.products, step), down, across)
