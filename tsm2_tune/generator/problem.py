"""`Problem`: one matrix product, or a batch of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tsm2_tune.errors import InputError, shown
from tsm2_tune.generator.dtypes import DTYPES, Dtype, dtype_named
from tsm2_tune.generator.scalars import plain

INT32_MAX = 2**31 - 1
PADDING_ROWS = 20  # the most elements that verification adds to a leading dimension
# The largest element offset for which kernels use a 32-bit index. It is 2**22 below the largest int, since a loop
# counter may exceed the offset by the number of threads in the grid.
LARGEST_32_BIT_OFFSET = 2**31 - 2**22
Extent = Literal["m", "n", "k"]

OP_LETTERS = {
    "n": "column-major",
    "t": "transposed: row-major",
    "c": "conjugate transposed: row-major, conjugated",
    "j": "conjugated: column-major, conjugated",
}
COLUMN_MAJOR, CONJUGATED = "nj", "cj"  # the op letters with this property
SAME = "x"  # instead of B's letter in an op: B is the same matrix as A
ACROSS = {"t": "n", "c": "n", "n": "t", "j": "t"}  # A's letter -> B's letter, if both are the same matrix


@dataclass(frozen=True, slots=True, order=True)
@plain
class Problem:
    """C (m x n) = alpha A (m x k) B (k x n) + beta C, where each matrix is column-major or row-major.

    Sums and products are those of the dtype's semiring.

    `op` has a letter for A, a letter for B, and a third letter "t" if C is row-major. As in BLAS, "n" means that the
    matrix in memory is column-major and not transposed, and "t" that it is transposed, which is the same as
    row-major. So "nn" is A B with three column-major matrices, and "ttt" is A B with three row-major matrices. "tn"
    is X^T Y with column-major X and Y. "c" and "j" are "t" and "n" with complex conjugates: X^H Y is "cn", or "jtt"
    if X, Y and C are row-major.

    An "x" instead of B's letter means that B is the same matrix as A, as in the BLAS functions syrk and herk. X^T X
    is "tx", or "nxt" if X and C are row-major; X^H X is "cx" or "jxt". Such a Gram matrix is symmetric or Hermitian,
    so a kernel can compute half of it and copy the rest. All of C is written, and beta C need not be symmetric.

    A batch is `batch` products of one shape, type and op, each with its own A, B and C. The matrices of an operand
    follow one another in memory at a constant distance, the operand's stride.
    """

    m: int  # rows of A and C
    n: int  # columns of B and C
    k: int  # columns of A and rows of B: each element of C is a sum of k products
    dtype_name: str  # name of a Dtype: an element type, or tf32, 3xtf32, minplus_f32, minplus_f64
    op: str = "nn"  # storage orders of A, B and C
    batch: int = 1  # number of products; 1: a single product, and no batch

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            size = getattr(self, name)
            if not 1 <= size <= INT32_MAX:
                shape = "x".join(map(shown, (self.m, self.n, self.k)))
                raise InputError(f"shape {shape}: {name} = {shown(size)} is outside 1 ... {INT32_MAX}")
        letters = "".join(OP_LETTERS)
        if not re.fullmatch(f"[{letters}][{letters}{SAME}]t?", self.op):
            raise InputError(
                f"unknown op {self.op!r}: expected two of the letters {', '.join(OP_LETTERS)}, for A and B, such as"
                f" nn or tn, and a third letter t if C is row-major; {SAME} instead of B's letter if B is the same"
                " matrix as A"
            )
        if self.is_gram and self.m != self.n:
            raise InputError(f"shape {self.shape} with op {self.op}: a matrix times itself has m = n")
        if not dtype_named(self.dtype_name).is_complex and self.conjugated != (False, False):
            raise InputError(
                f"op {self.op!r} of {self.dtype_name}: c and j conjugate, which changes complex numbers only;"
                " use t and n instead"
            )

    @property
    def dtype(self) -> Dtype:
        """The element type with its arithmetic."""
        return DTYPES[self.dtype_name]

    @property
    def is_batched(self) -> bool:
        """Whether the problem is a batch of several products."""
        return self.batch > 1

    @property
    def is_gram(self) -> bool:
        """Whether B is the same matrix as A, so that the product is symmetric or Hermitian."""
        return self.op[1] == SAME

    @property
    def factors(self) -> str:
        """The op letters of A and B. If B is the same matrix as A, B's letter is derived from A's."""
        return self.op[0] + (ACROSS[self.op[0]] if self.is_gram else self.op[1])

    @property
    def contiguous(self) -> tuple[Extent, Extent, Extent]:
        """The extent ("m", "n" or "k") along which each of A, B and C is contiguous in memory."""
        return (
            "m" if self.factors[0] in COLUMN_MAJOR else "k",
            "k" if self.factors[1] in COLUMN_MAJOR else "n",
            "n" if self.row_major_c else "m",
        )

    @property
    def conjugated(self) -> tuple[bool, bool]:
        """Two flags: whether A, and whether B, is replaced by its complex conjugate."""
        return self.factors[0] in CONJUGATED, self.factors[1] in CONJUGATED

    @property
    def row_major_c(self) -> bool:
        """Whether C is row-major."""
        return len(self.op) == 3

    @property
    def storage(self) -> str:
        """The storage orders of A, B and C as text, such as "A, B, C column-major"."""
        rows = [
            name for name, along in zip("ABC", self.contiguous, strict=True) if along == ("k" if name == "A" else "n")
        ]
        columns = [name for name in "ABC" if name not in rows]
        conjugated = [name for name, is_so in zip("AB", self.conjugated, strict=True) if is_so]
        parts = [
            f"{', '.join(names)} {major}"
            for names, major in ((columns, "column-major"), (rows, "row-major"), (conjugated, "conjugated"))
            if names
        ]
        return "; ".join([*parts, *(["B is the same as A"] if self.is_gram else [])])

    @property
    def stored(self) -> dict[str, tuple[int, int]]:
        """Name -> (contiguous elements, number of rows or columns) of A, B and C in memory, for one product.

        B is missing if it is the same matrix as A.
        """
        m, n, k = self.m, self.n, self.k
        along_a, along_b, along_c = self.contiguous
        shapes = {
            "A": (m, k) if along_a == "m" else (k, m),
            "B": (k, n) if along_b == "k" else (n, k),
            "C": (m, n) if along_c == "m" else (n, m),
        }
        if self.is_gram:
            del shapes["B"]
        return shapes

    @property
    def shape(self) -> str:
        """The text MxNxK, such as 20480x16x20480; BATCH*MxNxK for a batch."""
        return f"{self.batch}*" * self.is_batched + f"{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        """The canonical text, such as 20480x16x20480:f32, or 16x16x10000000:f64:tn if the op is not nn."""
        return f"{self.shape}:{self.dtype_name}" + (f":{self.op}" if self.op != "nn" else "")

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 m n k, or 8 m n k for complex numbers. An FMA counts as two.

        Of a Gram matrix, only m (m + 1) / 2 of the m n elements count. All products of a batch count.
        """
        elements = self.m * (self.m + 1) // 2 if self.is_gram else self.m * self.n
        return self.batch * self.dtype.flops_per_product * elements * self.k

    @property
    def read_bytes(self) -> int:
        """The least bytes read if beta = 0: A and B once each, or only A if B is the same matrix."""
        columns = self.m if self.is_gram else self.m + self.n
        return self.batch * columns * self.k * self.dtype.element_bytes

    @property
    def written_bytes(self) -> int:
        """The least bytes written: C once."""
        return self.batch * self.m * self.n * self.dtype.element_bytes

    @property
    def least_bytes(self) -> int:
        """The least bytes moved if beta = 0: each of A, B and C once."""
        return self.read_bytes + self.written_bytes

    @property
    def transposed(self) -> Problem:
        """The problem C^T = B^T A^T on the same matrices in memory. This problem must not be a Gram matrix."""
        letters = {"n": "t", "t": "n", "j": "c", "c": "j"}  # conjugation is unchanged
        a, b, c = (letters[letter] for letter in f"{self.op}n"[:3])
        return replace(self, m=self.n, n=self.m, op=(b + a + c).removesuffix("n"))

    @property
    def index_bits(self) -> int:
        """The bits of an index type that reaches every element of a product, including padding: 32 or 64."""
        return self.index_bits_of({})

    def index_bits_of(self, padding: Mapping[str, int]) -> int:
        """Return the bits of the index type if `padding` (matrix name -> elements) increases leading dimensions."""
        # A loop that strides over m or k may count beyond it by the number of rows in the grid.
        largest = max(
            *(
                (contiguous + padding.get(name, 0) + PADDING_ROWS) * lines
                for name, (contiguous, lines) in self.stored.items()
            ),
            2 * self.m,
            2 * self.k,
        )
        return 32 if largest <= LARGEST_32_BIT_OFFSET else 64

    @classmethod
    def parse(cls, text: str) -> Problem:
        """Return the problem that a text [BATCH*]MxNxK:DTYPE[:OP] describes. Raise InputError for any other text."""
        match = re.fullmatch(r"(?:([0-9]+)\*)?([0-9]+)x([0-9]+)x([0-9]+):(\w+?)(?::(\w+))?", text)
        if match is None:
            raise InputError(f"problem {text!r}: expected MxNxK:DTYPE, such as 20480x16x20480:f32, or MxNxK:DTYPE:OP")
        batch, m, n, k, dtype_name, op = match.groups()
        return cls(int(m), int(n), int(k), dtype_name, op or "nn", int(batch or 1))
