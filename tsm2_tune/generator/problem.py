"""What is asked for: one product of given shape and element type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tsm2_tune.errors import InputError

INT32_MAX = 2**31 - 1
PADDING_ROWS = 8  # the most rows that verification adds to a leading dimension
# The largest element offset for which kernels use a 32-bit index: 2**22 under its end, since a loop counter
# steps past the operand by up to a grid's threads.
LARGEST_32_BIT_OFFSET = 2**31 - 2**22


@dataclass(frozen=True, slots=True)
class Dtype:
    """Facts of one element type."""

    name: str  # the short name used in texts and tables
    c_type: str  # the CUDA type
    numpy_name: str
    element_bytes: int
    registers: int  # 32-bit registers that one element occupies
    significand_bits: int  # p: unit roundoff is 2**-p

    @property
    def unit_roundoff(self) -> float:
        """u = 2**-p, the largest relative error of one rounding to nearest."""
        return 2.0**-self.significand_bits


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("f32", "float", "float32", element_bytes=4, registers=1, significand_bits=24),
        Dtype("f64", "double", "float64", element_bytes=8, registers=2, significand_bits=53),
    )
}


def dtype_named(name: str) -> Dtype:
    """The element type called `name`; InputError for an unknown one."""
    if name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}: expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


Extent = Literal["m", "n", "k"]

OP_LETTERS = {
    "n": "column-major",
    "t": "transposed: row-major",
}


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """C (m x n) = alpha A (m x k) B (k x n) + beta C, where each matrix lies column-major or row-major.

    `op` has a letter for A, one for B, and one for C where that lies row-major. It names the product as BLAS
    does, whose matrices are column-major: "n" as it is, "t" transposed, which is what a row-major matrix is to
    BLAS. So "nn" is A B with all three column-major, "ttt" the same with all three row-major, and "tn" the
    product of a tall and skinny matrix's transpose with another, X^T Y, where both are column-major.
    """

    m: int
    n: int
    k: int
    dtype_name: str
    op: str = "nn"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            size = getattr(self, name)
            if not 1 <= size <= INT32_MAX:
                raise InputError(f"shape {self.shape}: {name} = {size} is outside 1 ... {INT32_MAX}")
        if not re.fullmatch(f"[{''.join(OP_LETTERS)}]{{2}}t?", self.op):
            raise InputError(
                f"unknown op {self.op!r}: expected two of the letters {', '.join(OP_LETTERS)}, such as nn or tn,"
                " and a third t where C is row-major"
            )
        dtype_named(self.dtype_name)

    @property
    def dtype(self) -> Dtype:
        return DTYPES[self.dtype_name]

    @property
    def contiguous(self) -> tuple[Extent, Extent, Extent]:
        """The extent along which the elements of A, of B and of C are neighbours in memory."""
        return (
            "m" if self.op[0] == "n" else "k",
            "k" if self.op[1] == "n" else "n",
            "n" if self.row_major_c else "m",
        )

    @property
    def row_major_c(self) -> bool:
        return len(self.op) == 3

    @property
    def storage(self) -> str:
        """How the three matrices lie, in words."""
        rows = [
            name for name, along in zip("ABC", self.contiguous, strict=True) if along == ("k" if name == "A" else "n")
        ]
        columns = [name for name in "ABC" if name not in rows]
        parts = [
            f"{', '.join(names)} {major}"
            for names, major in ((columns, "column-major"), (rows, "row-major"))
            if names
        ]
        return "; ".join(parts)

    @property
    def stored(self) -> dict[str, tuple[int, int]]:
        """Of A, B and C: (contiguous elements, lines of them), the shape of the column-major matrix in memory."""
        m, n, k = self.m, self.n, self.k
        along_a, along_b, along_c = self.contiguous
        return {
            "A": (m, k) if along_a == "m" else (k, m),
            "B": (k, n) if along_b == "k" else (n, k),
            "C": (m, n) if along_c == "m" else (n, m),
        }

    @property
    def shape(self) -> str:
        """MxNxK."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        """The one short spelling, such as 20480x16x20480:f32, or 16x16x10000000:f64:tn where op is not nn."""
        return f"{self.shape}:{self.dtype_name}" + (f":{self.op}" if self.op != "nn" else "")

    @property
    def flops(self) -> int:
        """Floating-point operations, 2 m n k: an FMA counts as two."""
        return 2 * self.m * self.n * self.k

    @property
    def read_bytes(self) -> int:
        """Least bytes read at beta = 0: A and B once each."""
        return (self.m * self.k + self.k * self.n) * self.dtype.element_bytes

    @property
    def written_bytes(self) -> int:
        """Least bytes written: C once."""
        return self.m * self.n * self.dtype.element_bytes

    @property
    def least_bytes(self) -> int:
        """Least bytes moved: each of A, B and C once."""
        return self.read_bytes + self.written_bytes

    @property
    def index_bits(self) -> int:
        """Width of the index that reaches every element, padded leading dimensions included: 32 or 64."""
        # A loop that strides over rows counts up to a grid's rows past m, and one over k likewise.
        largest = max(
            *((contiguous + PADDING_ROWS) * lines for contiguous, lines in self.stored.values()),
            2 * self.m,
            2 * self.k,
        )
        return 32 if largest <= LARGEST_32_BIT_OFFSET else 64

    @classmethod
    def parse(cls, text: str) -> Problem:
        """The problem spelled as `text`; InputError where it is no MxNxK:DTYPE[:OP]."""
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+):(\w+?)(?::(\w+))?", text)
        if match is None:
            raise InputError(f"problem {text!r}: expected MxNxK:DTYPE, such as 20480x16x20480:f32, or MxNxK:DTYPE:OP")
        m, n, k, dtype_name, op = match.groups()
        return cls(int(m), int(n), int(k), dtype_name, op or "nn")
