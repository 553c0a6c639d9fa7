"""Element types, their names, and storage orders. An op such as "nt" has a letter for a, b and perhaps out."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

# At level DEBUG the runtime logs each chosen kernel and each fallback, once.
log = logging.getLogger("tsm2_tune.runtime")
DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    "bf16": np.dtype([("bfloat16", np.uint16)]),  # NumPy has no bfloat16
    "f16": np.dtype(np.float16),
}
MATHS = {  # (gemm's `math`, element type) -> `Winner.dtype` of the kernels for it
    ("tf32", "f32"): "tf32",
    ("3xtf32", "f32"): "3xtf32",
    ("minplus", "f32"): "minplus_f32",
    ("minplus", "f64"): "minplus_f64",
}
UNITS = {"minplus": (0.0, float("inf"))}  # math -> neutral alpha and beta, if they are not 1 and 0
SUMS = {
    "bf16": np.dtype(np.float32),
    "f16": np.dtype(np.float32),
}  # element type -> accumulator type, if the two differ
OF_ELEMENT = {  # element type -> NumPy's letter of its accumulator type; is it complex; bits 0 in aligned addresses
    name: (SUMS.get(name, dtype).char, dtype.kind == "c", dtype.itemsize - 1) for name, dtype in DTYPES.items()
}
ORDERS = {"n": "column-major", "t": "row-major"}  # letter of an op -> storage order
CONJUGATED = {"j": "n", "c": "t"}  # letter of a conjugated matrix -> letter of its storage order
SAME, GRAM = "x", "gram"  # b's letter if b is the transpose of a; the name of any op with that letter
ACROSS = {"n": "t", "t": "n"}  # storage order -> order of the transposed matrix in the same memory
NAMES = ("a", "b", "out")  # the matrices, in the order of an op's letters
LARGEST_EXTENT = 2**63 - 1
LARGEST_32_BIT_OFFSET = 2**31 - 2**22  # in elements; larger matrices need kernels with 64-bit indices
INDEX_WIDTHS = (32, 64)  # bits


def dtype_name(dtype: Any, what: str = "dtype") -> str:
    """Return the key in DTYPES of a dtype of any library, and a name in MATHS unchanged. Else raise TypeError."""
    if dtype is None:  # np.dtype(None) would be float64
        raise TypeError(f"{what}: expected a type, got None")
    if isinstance(dtype, str) and (dtype in DTYPES or dtype in MATHS.values()):
        return dtype
    if str(dtype) == "bfloat16":
        return "bf16"
    known_names = ("bfloat16" if name == "bf16" else str(known) for name, known in DTYPES.items())
    try:
        asked = np.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(f"{what}: expected one of {', '.join(known_names)}, got {dtype!r}") from None
    for name, known in DTYPES.items():
        if name != "bf16" and asked == known:
            return name
    raise TypeError(f"{what}: expected one of {', '.join(known_names)}, got {asked}")


def too_large(factor: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a finite alpha or beta becomes infinite in this dtype."""
    try:
        with np.errstate(over="ignore"):
            is_wide = isinstance(factor, np.inexact)  # a NumPy number may be wider than Python's float
            is_finite = np.isfinite(factor if is_wide else complex(factor))
            return bool(is_finite and not np.isfinite(dtype.type(factor)))
    except OverflowError:  # an int too large for a float
        return True
