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
MATHS = {  # (math, element type) -> the dtype name of its winners
    ("tf32", "f32"): "tf32",
    ("3xtf32", "f32"): "3xtf32",
    ("minplus", "f32"): "minplus_f32",
    ("minplus", "f64"): "minplus_f64",
}
UNITS = {"minplus": (0.0, float("inf"))}  # alpha and beta that change nothing, if they are not 1 and 0
SUMS = {
    "bf16": np.dtype(np.float32),
    "f16": np.dtype(np.float32),
}  # element type -> type of the sums, if it is another one
ORDERS = {"n": "column-major", "t": "row-major"}  # the letters of an op
CONJUGATED = {"j": "n", "c": "t"}  # letters of a conjugated matrix -> its storage order
SAME, GRAM = "x", "gram"  # b's letter if b is a transposed; a name for every op with that letter
ACROSS = {"n": "t", "t": "n"}  # storage order -> order of the transposed matrix in the same memory
NAMES = ("a", "b", "out")  # matrices, in the order of an op's letters
LARGEST_EXTENT = 2**63 - 1
LARGEST_32_BIT_OFFSET = 2**31 - 2**22  # elements; beyond it a kernel needs 64-bit indices
INDEX_WIDTHS = (32, 64)  # bits
