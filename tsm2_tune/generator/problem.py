"""`Problem`: one matrix product, or a batch of them. `Dtype`: an element type with arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from tsm2_tune.errors import InputError, nearest_name, shown
from tsm2_tune.generator.scalars import plain

if TYPE_CHECKING:  # a command line is parsed without NumPy
    import numpy as np

INT32_MAX = 2**31 - 1
PADDING_ROWS = 20  # the most elements that verification adds to a leading dimension
# The largest element offset for which kernels use a 32-bit index. It is 2**22 below the largest int, since a loop
# counter may exceed the offset by the number of threads in the grid.
LARGEST_32_BIT_OFFSET = 2**31 - 2**22
FULL_MATH = "full"  # arithmetic in the precision of the element type


@dataclass(frozen=True, slots=True)
class Semiring:
    """The two operations of C = alpha A B + beta C, a sum and a product, with their neutral elements.

    A kernel does not read C if beta is `zero`.
    """

    name: str  # also the name of its reference in templates/reference.cu.jinja
    zero: float  # neutral element of sums; a product with it is `zero` again
    one: float  # neutral element of products
    instructions: int = 1  # GPU instructions that add one product to a sum
    unit: str = "FMA"  # the name of these instructions in reports
    is_exact: bool = False  # whether the result is the rounded exact one, whatever the order of summation


PLUS_TIMES = Semiring("PlusTimes", zero=0.0, one=1.0)
# C[i, j] = min(alpha + min over l of (A[i, l] + B[l, j]), beta + C[i, j]): lengths of shortest paths, where infinity
# means that there is no path. Sums that are NaN are ignored. Rounding is monotonic, so the least rounded sum is the
# least exact sum, rounded.
MIN_PLUS = Semiring("MinPlus", zero=math.inf, one=0.0, instructions=2, unit="addition and minimum", is_exact=True)


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type with the arithmetic in which its matrices are multiplied.

    A complex element is two adjacent real numbers of the type `component_name`.
    """

    name: str  # the name in commands, texts and tables
    c_type: str  # the CUDA type
    numpy_name: str  # the NumPy type; if NumPy lacks the type, an unsigned integer of the same size
    element_bytes: int
    registers: int  # 32-bit registers that one element occupies
    significand_bits: int  # p; the unit roundoff of a result is 2**-p
    exponents: tuple[int, int]  # (e, f): 2**e is the least positive number, and all numbers are less than 2**f
    parts: int = 1  # real numbers in an element: 2 if it is complex
    component_name: str = ""  # name of the Dtype of one real number; "": this Dtype
    sum_name: str = ""  # name of the Dtype of sums, alpha and beta; "": this Dtype
    product_roundings: float = 1  # error of a multiply-add, in unit roundoffs of the sum
    operand_error: float = 0.0  # relative error of a product because operands are rounded
    tensor_products: int = 1  # tensor-core products that make up one product
    math: str = FULL_MATH  # one of MATHS; if it is not "full", elements in memory have the type `component_name`
    semiring: Semiring = PLUS_TIMES

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of one rounding to nearest: 2**-p for p significand bits."""
        return 2.0**-self.significand_bits

    @property
    def is_complex(self) -> bool:
        return self.parts == 2

    @property
    def component(self) -> Dtype:
        """The Dtype of the real numbers of an element."""
        return DTYPES[self.component_name or self.name]

    @property
    def reference_name(self) -> str:
        """The name of the Dtype whose reference kernel verifies results of this type.

        The exact product of two matrices is the same for both types.
        """
        return self.name if self.is_complex or self.semiring is not PLUS_TIMES else self.component.name

    @property
    def element_name(self) -> str:
        """The name of the Dtype of the elements in memory."""
        return self.name if self.math == FULL_MATH else self.component.name

    @property
    def rate_name(self) -> str:
        """The name of the Dtype that has the same arithmetic rate without tensor cores."""
        return self.sum.component.name if self.semiring is PLUS_TIMES else self.name

    @property
    def reference_tile(self) -> tuple[int, int]:
        """The rows and columns of C that one thread of the reference kernel computes.

        The thread needs 48 or 64 registers for them.
        """
        is_double = self.component.name == "f64"  # compensated summation doubles its registers
        return (2 if is_double or self.is_complex else 4, 2 if is_double and self.is_complex else 4)

    @property
    def sum(self) -> Dtype:
        """The Dtype of sums of products, alpha and beta."""
        return DTYPES[self.sum_name or self.name]

    def factor(self, value: complex) -> np.generic:
        """Return alpha or beta as a NumPy scalar, a kernel's argument. Drop the imaginary part for real types."""
        factor: np.generic = _scalar_type(self.sum_name or self.name)(value if self.is_complex else value.real)
        return factor

    @property
    def flops_per_product(self) -> int:
        """The floating-point operations of one multiply-add, sum += a b: 2, or 8 for complex numbers.

        In the min-plus semiring, an addition and a minimum count as 2.
        """
        return 2 * self.parts**2


@cache
def _scalar_type(sum_name: str) -> Any:
    """Return NumPy's scalar type of alpha and beta for sums of this type."""
    import numpy as np

    return np.dtype(DTYPES[sum_name].numpy_name).type


# Error of one multiply-add on tensor cores, in unit roundoffs of f32, 2**-24. A tensor core adds a block of 4 or more
# products to a sum. It aligns all terms to the largest exponent and truncates them, then truncates the result. So
# each term has an error of 2, and two more operations per 4 products have an error of 2 each (Fasi, Higham, Mikaitis
# and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021).
TENSOR_CORE_ROUNDINGS = 3.0
TF32 = 2.0**-11  # unit roundoff of an operand: 11 significant bits
# 3xTF32 splits each operand into two TF32 numbers, with a relative error of at most TF32**2, and omits the product of
# the two smaller numbers.
SPLIT_ERROR = 3.01 * TF32**2

DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype(
            "f32", "float", "float32", element_bytes=4, registers=1, significand_bits=24, exponents=(-149, 128),
        ),
        Dtype(
            "f64", "double", "float64", element_bytes=8, registers=2, significand_bits=53, exponents=(-1074, 1024),
        ),
        Dtype(
            "c64", "complex64", "complex64", element_bytes=8, registers=2, significand_bits=24, exponents=(-149, 128),
            parts=2, component_name="f32",
        ),
        Dtype(
            "c128", "complex128", "complex128", element_bytes=16, registers=4, significand_bits=53,
            exponents=(-1074, 1024), parts=2, component_name="f64",
        ),
        Dtype(
            "bf16", "bfloat16", "uint16", element_bytes=2, registers=1, significand_bits=8, exponents=(-133, 128),
            sum_name="f32", product_roundings=TENSOR_CORE_ROUNDINGS,
        ),
        Dtype(
            "f16", "float16", "float16", element_bytes=2, registers=1, significand_bits=11, exponents=(-24, 16),
            sum_name="f32", product_roundings=TENSOR_CORE_ROUNDINGS,
        ),
        # f32 in memory, multiplied by tensor cores if --math requests it. The least number is that of TF32.
        Dtype(
            "tf32", "float", "float32", element_bytes=4, registers=1, significand_bits=24, exponents=(-136, 128),
            component_name="f32", product_roundings=TENSOR_CORE_ROUNDINGS, operand_error=2 * TF32 + TF32**2,
            math="tf32",
        ),
        Dtype(
            "3xtf32", "float", "float32", element_bytes=4, registers=1, significand_bits=24, exponents=(-136, 128),
            component_name="f32", product_roundings=3.01 * TENSOR_CORE_ROUNDINGS, operand_error=SPLIT_ERROR,
            tensor_products=3, math="3xtf32",
        ),
        Dtype(
            "minplus_f32", "float", "float32", element_bytes=4, registers=1, significand_bits=24,
            exponents=(-149, 128), component_name="f32", math="minplus", semiring=MIN_PLUS,
        ),
        Dtype(
            "minplus_f64", "double", "float64", element_bytes=8, registers=2, significand_bits=53,
            exponents=(-1074, 1024), component_name="f64", math="minplus", semiring=MIN_PLUS,
        ),
    )
}  # fmt: skip

FMA_DTYPES = ("f32", "f64", "c64", "c128")  # types that fused multiply-adds compute
TF32_DTYPES = ("tf32", "3xtf32")
MATHS = tuple(dict.fromkeys(dtype.math for dtype in DTYPES.values()))
ELEMENT_TYPES = tuple(name for name, dtype in DTYPES.items() if dtype.math == FULL_MATH)

# Names of the types in other libraries, in lower case -> our name.
DTYPE_ALIASES = {
    **dict.fromkeys(("float32", "float", "single", "fp32", "s", "r_32f"), "f32"),
    **dict.fromkeys(("float64", "double", "fp64", "d", "r_64f"), "f64"),
    **dict.fromkeys(("complex64", "cfloat", "cf32", "c", "c_32f"), "c64"),
    **dict.fromkeys(("complex128", "cdouble", "cf64", "z", "c_64f"), "c128"),
    **dict.fromkeys(("float16", "half", "fp16", "h", "r_16f"), "f16"),
    **dict.fromkeys(("bfloat16", "r_16bf"), "bf16"),
}


def dtype_named(name: str) -> Dtype:
    """Return the Dtype called `name`. Raise InputError, with a suggestion, for an unknown name."""
    if not isinstance(name, str) or name not in DTYPES:
        others = ", ".join(one for one in DTYPES if one not in ELEMENT_TYPES)
        raise unknown_dtype(name, f", or, with another arithmetic, {others}")
    return DTYPES[name]


def unknown_dtype(name: object, others: str = "") -> InputError:
    """Return the error for an unknown Dtype. It lists known names, then `others`, and suggests a similar name."""
    known = {one: one for one in DTYPES} | {one: of for one, of in DTYPE_ALIASES.items() if len(one) > 1}
    meant = DTYPE_ALIASES.get(str(name).lower()) or known.get(nearest_name(name, known), "")
    expected = f"expected one of {', '.join(ELEMENT_TYPES)}{others}"
    return InputError(f"unknown dtype {name!r}: {expected}" + (f"; did you mean {meant}?" if meant else ""))


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
