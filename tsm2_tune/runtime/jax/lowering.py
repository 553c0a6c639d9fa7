"""Products in XLA programs: the kernel is chosen when the program is compiled, and launched when the program runs.

The choice is JSON text stored in the XLA program; it contains everything that the launch needs except addresses. The
text is valid only in processes that load the same exported file.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tsm2_tune.runtime.arrays.batches import span_bytes
from tsm2_tune.runtime.arrays.matrices import Matrix, Product, leading_dimensions
from tsm2_tune.runtime.choice.choose import choose
from tsm2_tune.runtime.choice.winners import Match
from tsm2_tune.runtime.cuda.cubins import function_of
from tsm2_tune.runtime.cuda.driver import ask_driver, context_id, cuda, device_of, relaxed_capture
from tsm2_tune.runtime.elements import DTYPES
from tsm2_tune.runtime.host import multiply_on_host
from tsm2_tune.runtime.launch_plan import Plan
from tsm2_tune.runtime.module_data import WINNERS

FIELDS_IN_TEXT = (  # of a Match
    "extents", "leading", "index_bits", "grid", "workspace_bytes", "measured_at", "distance", "is_transposed",
    "batch", "strides", "workspace_strides", "merged",
)  # fmt: skip
COUNTERS_ALIGNMENT = 256  # bytes; in the workspace the counters follow the partial sums


class Traced(NamedTuple):
    """The shape and type of a traced product of JAX, or of a batch.

    An operand's array has the operand or its transpose. All arrays are contiguous and row-major.
    """

    shape: tuple[int, int, int]  # m, n, k
    element: str  # element type, a key of DTYPES
    transposed: tuple[bool, bool]  # whether a's array has shape (k, m), and b's array (n, k)
    is_same: bool = False  # whether both operands are the same array
    on_host: bool = False  # whether it runs on the CPU
    batch: int | None = None  # number of products; None: it is no batch
    are_shared: tuple[bool, bool] = (False, False)  # whether a, and b, is one matrix for all products

    def product(self) -> Product:
        """Return a Product with placeholder addresses. a and b have the same address if they are the same array."""
        m, n, k = self.shape
        size = DTYPES[self.element].itemsize
        matrices = []
        for name, (rows, columns), across, at, is_shared in (
            ("a", (m, k), self.transposed[0], 1, self.are_shared[0]),
            ("b", (k, n), self.transposed[1], 1 if self.is_same else 2, self.are_shared[1]),
            ("out", (m, n), False, 3, False),
        ):
            strides = (size, rows * size) if across else (columns * size, size)
            ld, of_one = leading_dimensions(name, (rows, columns), strides, size)
            products = () if self.batch is None or is_shared else (self.batch,)
            steps = (rows * columns * size,) * len(products)
            of_type = (self.element, DTYPES[self.element])
            matrices.append(
                Matrix(
                    name, None, self.on_host, at, rows, columns, ld, *of_type, False, None, False,
                    span_bytes(products, steps, of_one), products=products, steps=steps,
                )
            )  # fmt: skip
        return Product(matrices[0], matrices[1], matrices[2])

    def choice(self, device: str | None) -> Match | None:
        """Return the kernel for the GPU with this name, or for the CPU if `device` is None.

        Return None if no kernel can compute the product, or cuBLAS is expected to be as fast.
        """
        if 0 in self.shape or self.batch == 0:
            return None
        try:
            found = choose(self.product(), device)
        except (LookupError, ValueError):
            return None
        return None if device is not None and found.is_vendor_chosen else found

    def text(self, match: Match) -> str:
        """Return the JSON text with product, kernel and launch, from which `start_traced` launches the kernel."""
        place = next(at for at, winner in enumerate(WINNERS) if winner is match.winner)
        launch = match.launch.rows_per_block, match.launch.splits
        return json.dumps([*self, place, *launch, *(getattr(match, name) for name in FIELDS_IN_TEXT)])


def workspace_layout(match: Match) -> tuple[int, int]:
    """Return the bytes of workspace that each launch on a GPU needs, and the byte offset of the counters in it."""
    if match.workspace_bytes is None:
        return 0, 0
    partials, counters = match.workspace_bytes
    counters_at = -(-partials // COUNTERS_ALIGNMENT) * COUNTERS_ALIGNMENT
    return counters_at + counters, counters_at


class _Start(NamedTuple):
    """The parsed content of `Traced.text`, and the product's launch plan for each CUDA context."""

    traced: Traced
    match: Match
    counters_at: int  # byte offset of the counters in the workspace
    plans: dict[int, Plan]  # id of the context -> plan


_texts: dict[bytes, _Start] = {}  # text -> its parsed content


def start_traced(text: bytes, arguments: list[int], results: list[int], stream: Callable[[], int]) -> None:
    """Launch the product that `text`, a Traced's, describes.

    `arguments` has the addresses of a and b; `results` that of `out`, then that of the workspace if there is one.
    `stream` returns the stream's handle; the stream's context must be current.
    """
    found = _texts.get(text)
    if found is None:
        found = _texts[text] = _read(text)
    a, b = arguments
    if found.traced.on_host:
        _start_on_host(found, (a, b, results[0]))
        return
    current = ctypes.c_void_p()
    cuda().cuCtxGetCurrent(ctypes.byref(current))
    number = context_id(current.value or 0)
    plan = found.plans.get(number)
    if plan is None:
        with relaxed_capture():  # the stream may be in a capture; loading the kernel is not part of the graph
            plan = found.plans[number] = _planned(found, current.value or 0, number)
    workspace = results[1] if len(results) > 1 else 0
    plan.start_within(a, b, results[0], stream(), workspace, workspace + found.counters_at)


def _read(text: bytes) -> _Start:
    found: list[Any] = [tuple(one) if isinstance(one, list) else one for one in json.loads(text)]
    traced, found = Traced(*found[: len(Traced._fields)]), found[len(Traced._fields) :]
    place, rows, splits, *values = found
    winner, fields = WINNERS[place], dict(zip(FIELDS_IN_TEXT, values, strict=True))
    match = Match(winner=winner, launch=winner.launch.resized(rows, splits), **fields)
    return _Start(traced, match, workspace_layout(match)[1], {})


def _planned(found: _Start, context: int, number: int) -> Plan:
    """Load the kernel into the current context, whose id is `number`, and return the product's plan."""
    ordinal = ctypes.c_int()
    ask_driver("cuCtxGetDevice", ctypes.byref(ordinal))
    match = found.match
    function = function_of(context, number, match.winner, match.index_bits, device_of(ordinal.value)[1])
    return Plan(found.traced.product(), match, function, (context, number, ordinal.value))


def _start_on_host(found: _Start, addresses: tuple[int, int, int]) -> None:
    """Run the kernel on the CPU, on arrays at the addresses of a, b and out."""
    product = found.traced.product()
    matrices = []
    for matrix, address in zip(product.given, addresses, strict=True):
        at = replace(matrix, address=address)
        matrices.append(replace(at, array=_in_memory(at)))
    multiply_on_host(Product(matrices[0], matrices[1], matrices[2]), found.match, 1, 0)


def _in_memory(matrix: Matrix) -> np.ndarray[Any, Any]:
    """Return a NumPy array that is a view of the memory of the matrix, or of those of a batch."""
    shape, strides = (*matrix.products, matrix.rows, matrix.columns), (*matrix.steps, *matrix.strides)
    memory: Any = (ctypes.c_char * matrix.span_bytes).from_address(matrix.address)
    return np.ndarray(shape, matrix.dtype, memory, strides=strides)
