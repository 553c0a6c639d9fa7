"""Call an exported module on operands in GPU or host memory without copying, and record its choice."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.contest import Launch
from tsm2_tune.tuner.verify.operands import Operand, Operands

BF16 = "bf16"  # the array interface has no typestr for it
TYPES = {  # element type -> typestr of the array interface
    "f32": "<f4", "f64": "<f8", "c64": "<c8", "c128": "<c16", "f16": "<f2", BF16: "<u2",
}  # fmt: skip
FALLBACKS = ("torch", "cupy")  # libraries to which a module can fall back: the first installed one is used
Arrays = tuple[Any, Any, Any]
Wrap = Callable[[Any, str], Any]  # of an array's memory and element type


def interface(operand: Operand, dtype_name: str) -> dict[str, Any]:
    """Return the operand's array interface, which describes its memory to NumPy or a GPU library."""
    size = np.dtype(TYPES[dtype_name]).itemsize
    shape, strides = (operand.rows, operand.columns), (size, size * operand.filling.leading_dimension)
    return {
        "version": 3,
        "typestr": TYPES[dtype_name],
        "shape": shape[::-1] if operand.row_major else shape,
        "strides": strides[::-1] if operand.row_major else strides,
        "data": (operand.address, False),
    }


def arrays_of(operands: Operands, *, on_host: bool) -> Arrays:
    """Return a, b and out of the problem as arrays that use the operands' memory."""
    told = [interface(one, operands.problem.dtype_name) for one in (operands.a, operands.b, operands.c)]
    if operands.problem.is_gram:  # B is A, transposed
        told[1] = told[0] | {axes: told[0][axes][::-1] for axes in ("shape", "strides")}
    made: list[Any] = [SimpleNamespace(__cuda_array_interface__=one) for one in told]
    if on_host:
        made = [np.asarray(SimpleNamespace(__array_interface__=one)) for one in told]
    a, b, out = made
    return a, b, out


def fallback_arrays(ordinal: str) -> tuple[str, Wrap] | None:
    """Return the library that the module uses for products without a kernel, and a function to make its arrays.

    The function wraps other memory, with elements of a type, as an array on the GPU. Return None if no such library
    is installed.
    """
    for name in FALLBACKS:
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return name, partial(_tensor, library, ordinal) if name == "torch" else partial(_cupy_array, library)
    return None


def _tensor(torch: Any, ordinal: str, array: Any, dtype_name: str) -> Any:
    found = torch.as_tensor(array, device=f"cuda:{ordinal}")
    return found.view(torch.bfloat16) if dtype_name == BF16 else found


def _cupy_array(cupy: Any, array: Any, dtype_name: str) -> Any:
    return cupy.asarray(array)


@dataclass(frozen=True, slots=True)
class Called:
    """A module's choice for a product, a function that launches it, and one that launches the fallback library."""

    choice: Any  # a Match of the module
    launch: Launch
    falls_back: bool | None  # None if no such library is installed
    because: str
    fallback: Launch | None

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields of a row that describe the choice."""
        choice, winner = self.choice, self.choice.winner
        return {
            "choice": str(choice),
            "basis": str(choice).partition(": ")[2],
            "expected_us": choice.expected_us,
            "expected_vendor_us": choice.vendor_us,
            "kernel": winner.kernel,
            "tuned_shape": [winner.m, winner.n, winner.k],
            "swapped": choice.is_transposed,
            "launch": asdict(choice.launch),
            "falls_back": self.falls_back,
            "falls_back_because": self.because,
        }


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan that the module made by timing: `module.plan(..., measure=True)`."""

    plan: Any
    seconds: float  # time to make the plan

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields of a row that describe the plan."""
        return {"plan": str(self.plan.match), "plan_seconds": round(self.seconds, 4)}

    def launch(self) -> None:
        self.plan()


def timed(module: ModuleType, operands: Operands, *, library: Wrap | None) -> Timed:
    """Return the module's plan for the product, made by timing kernels and, on the library's arrays, the library.

    Raise LookupError or ValueError if the module has no kernel for the product.
    """
    arrays: Arrays = arrays_of(operands, on_host=False)
    if library is not None:
        arrays = _wrapped(arrays, operands, library)
    conjugates = dict(zip(("conj_a", "conj_b"), operands.problem.conjugated, strict=True))
    start = time.perf_counter()
    plan = module.plan(*arrays, **conjugates, measure=True)
    return Timed(plan, time.perf_counter() - start)


def _wrapped(arrays: Arrays, operands: Operands, library: Wrap) -> Arrays:
    a, b, out = (library(one, operands.problem.dtype_name) for one in arrays)
    return a, b, out


def called(module: ModuleType, operands: Operands, *, on_host: bool, library: Wrap | None) -> Called:
    """Return the module's choice for the product of the operands, which are not copied.

    bf16 needs the library's arrays. Raise LookupError or ValueError if the module has no kernel for the product.
    """
    a, b, out = arrays = arrays_of(operands, on_host=on_host)
    theirs = arrays if library is None else _wrapped(arrays, operands, library)
    if operands.problem.dtype_name == BF16:
        a, b, out = arrays = theirs
    conjugates = dict(zip(("conj_a", "conj_b"), operands.problem.conjugated, strict=True))
    choice = module.choice(*arrays, **conjugates, fallback="error")
    if on_host:

        def multiply() -> None:
            module.gemm(a, b, out=out, **conjugates, fallback="error")

        return Called(choice, multiply, None, "", None)
    planned = module.plan(*arrays, **conjugates)

    def start() -> None:
        planned()

    if library is None:
        return Called(choice, start, None, "", None)
    found = module.choice(*theirs, **conjugates)
    if not isinstance(found, module.Vendor):
        return Called(choice, start, False, "", None)

    def fall_back() -> None:
        module.gemm(*theirs, **conjugates)

    return Called(choice, start, True, str(found), fall_back)
