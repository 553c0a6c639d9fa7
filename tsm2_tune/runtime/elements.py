"""Element types, storage orders and the letters of an op, as winners and arrays have them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

# At DEBUG it says which kernel is chosen, and what falls back to something else, once for each.
log = logging.getLogger("tsm2_tune.runtime")
DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    "bf16": np.dtype([("bfloat16", np.uint16)]),  # NumPy has none of its own
    "f16": np.dtype(np.float16),
}
MATHS = {  # how elements may be multiplied besides, and of which type they are then: what winners call that
    ("tf32", "f32"): "tf32",
    ("3xtf32", "f32"): "3xtf32",
    ("minplus", "f32"): "minplus_f32",
    ("minplus", "f64"): "minplus_f64",
}
UNITS = {"minplus": (0.0, float("inf"))}  # the alpha and the beta of the product alone, where they are not 1 and 0
SUMS = {"bf16": np.dtype(np.float32), "f16": np.dtype(np.float32)}  # of products, where these have another type
ORDERS = {"n": "column-major", "t": "row-major"}  # the letters of an op
CONJUGATED = {"j": "n", "c": "t"}  # the letters that conjugate besides
SAME, GRAM = "x", "gram"  # for b's letter where it is a transposed; any op that has it
ACROSS = {"n": "t", "t": "n"}  # the order of a transposed matrix in the same memory
NAMES = ("a", "b", "out")  # of the matrices, in the order of an op's letters
LARGEST_EXTENT = 2**63 - 1
LARGEST_32_BIT_OFFSET = 2**31 - 2**22  # elements; past it a kernel is one that was compiled with 64-bit indices
INDEX_WIDTHS = (32, 64)  # bits
