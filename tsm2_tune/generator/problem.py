"""A problem: one product of given shape, element type and layout."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tsm2_tune.errors import InputError, nearest_name, shown
from tsm2_tune.generator.scalars import plain

if TYPE_CHECKING:  # a command line is parsed without NumPy
    import numpy as np

INT32_MAX = 2**31 - 1
PADDING_ROWS = 20  # the most rows that verification adds to a leading dimension
# The largest element offset for which kernels use a 32-bit index. It is 2**22 below the type's end, since a loop
# counter steps past the operand by up to a grid's threads.
LARGEST_32_BIT_OFFSET = 2**31 - 2**22
FULL_MATH = "full"  # sums of products, in the precision of the type


@dataclass(frozen=True, slots=True)
class Semiring:
    """The operations of C = alpha A B + beta C: sum, product, and their neutral elements.

    If beta is `zero`, C is not read.
    """

    name: str  # also the name of its reference in templates/reference.cu.jinja
    zero: float  # neutral element of sums; absorbing as a factor
    one: float  # neutral element of products
    instructions: int = 1  # to add a product to a sum
    unit: str = "FMA"  # the unit of those instructions
    is_exact: bool = False  # whether every order of summation gives the exact result, rounded


PLUS_TIMES = Semiring("PlusTimes", zero=0.0, one=1.0)
# C[i, j] = min(alpha + min over l of (A[i, l] + B[l, j]), beta + C[i, j]): lengths of paths, infinite without a path.
# NaN sums (of a NaN, or of infinities of both signs) are ignored. Rounding is monotonic, so the least rounded sum is
# the least sum, rounded.
MIN_PLUS = Semiring("MinPlus", zero=math.inf, one=0.0, instructions=2, unit="addition and minimum", is_exact=True)


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type, with the arithmetic of its products.

    A complex element has two adjacent real parts, of the type `component_name`.
    """

    name: str  # the short name used in texts and tables
    c_type: str  # the CUDA type
    numpy_name: str  # NumPy's type of an element, or of its bits if NumPy has no such type
    element_bytes: int
    registers: int  # 32-bit registers that one element occupies
    significand_bits: int  # p of a result: unit roundoff is 2**-p
    exponents: tuple[int, int]  # 2 to the first is the least number above 0, 2 to the second exceeds the largest
    parts: int = 1  # real numbers in an element: 2 if it is complex
    component_name: str = ""  # the Dtype of one of them, with the same bits; "" if that is this one
    sum_name: str = ""  # the Dtype of sums of products, and of alpha and beta; "": this one
    product_roundings: float = 1  # error of a product and its addition, in unit roundoffs of the sum
    operand_error: float = 0.0  # relative error of a product from rounding its operands
    tensor_products: int = 1  # products of the tensor cores for one product
    math: str = FULL_MATH  # one of MATHS: how elements, of `component_name` if it is not full, are multiplied
    semiring: Semiring = PLUS_TIMES

    @property
    def unit_roundoff(self) -> float:
        """u = 2**-p, the largest relative error of one rounding to nearest."""
        return 2.0**-self.significand_bits

    @property
    def is_complex(self) -> bool:
        return self.parts == 2

    @property
    def component(self) -> Dtype:
        """The type of an element's real numbers."""
        return DTYPES[self.component_name or self.name]

    @property
    def reference_name(self) -> str:
        """The Dtype whose reference verifies this one's products: the exact product is the same."""
        return self.name if self.is_complex or self.semiring is not PLUS_TIMES else self.component.name

    @property
    def element_name(self) -> str:
        """The Dtype of the elements in memory, whatever the arithmetic."""
        return self.name if self.math == FULL_MATH else self.component.name

    @property
    def rate_name(self) -> str:
        """The Dtype with the same rate of arithmetic outside of the tensor cores."""
        return self.sum.component.name if self.semiring is PLUS_TIMES else self.name

    @property
    def reference_tile(self) -> tuple[int, int]:
        """Rows and columns of C that one thread of the reference computes: their sums take 48 or 64 registers."""
        is_double = self.component.name == "f64"  # its sums are compensated
        return (2 if is_double or self.is_complex else 4, 2 if is_double and self.is_complex else 4)

    @property
    def sum(self) -> Dtype:
        """The type of sums of products, and of alpha and beta."""
        return DTYPES[self.sum_name or self.name]

    def factor(self, value: complex) -> np.generic:
        """Return alpha or beta as a kernel takes it; only the real part if elements are real."""
        import numpy as np

        scalar: Any = np.dtype(self.sum.numpy_name).type
        factor: np.generic = scalar(value if self.is_complex else value.real)
        return factor

    @property
    def flops_per_product(self) -> int:
        """The floating-point operations of sum += a b: an FMA, or an addition and a minimum, counts as two.

        A complex product takes four FMAs.
        """
        return 2 * self.parts**2


# What a product costs on tensor cores, in unit roundoffs of the sums, 2**-24. They add up a block of 4 or more
# products and the sum before it, all shifted to the largest exponent and cut off there, and cut off the result: 2
# for each term, and as much for each of two operations more on every 4 products (Fasi, Higham, Mikaitis and Pranesh,
# "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021).
TENSOR_CORE_ROUNDINGS = 3.0
TF32 = 2.0**-11  # unit roundoff of an operand: 11 significant bits
# 3xTF32 splits an operand into two, which leaves a rest of at most TF32**2 of it, and leaves the product of the two
# smaller ones out.
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
        # f32 in memory, multiplied by the tensor cores: what --math asks for. The least number is TF32's.
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

FMA_DTYPES = ("f32", "f64", "c64", "c128")  # computed by fused multiply-adds alone
TF32_DTYPES = ("tf32", "3xtf32")
MATHS = tuple(dict.fromkeys(dtype.math for dtype in DTYPES.values()))
ELEMENT_TYPES = tuple(name for name, dtype in DTYPES.items() if dtype.math == FULL_MATH)

# Other libraries' names of the types.
DTYPE_ALIASES = {
    **dict.fromkeys(("float32", "float", "single", "fp32", "s", "r_32f"), "f32"),
    **dict.fromkeys(("float64", "double", "fp64", "d", "r_64f"), "f64"),
    **dict.fromkeys(("complex64", "cfloat", "cf32", "c", "c_32f"), "c64"),
    **dict.fromkeys(("complex128", "cdouble", "cf64", "z", "c_64f"), "c128"),
    **dict.fromkeys(("float16", "half", "fp16", "h", "r_16f"), "f16"),
    **dict.fromkeys(("bfloat16", "r_16bf"), "bf16"),
}


def dtype_named(name: str) -> Dtype:
    """Return the element type called `name`; InputError, with what may be meant, for an unknown one."""
    if not isinstance(name, str) or name not in DTYPES:
        others = ", ".join(one for one in DTYPES if one not in ELEMENT_TYPES)
        raise unknown_dtype(name, f", or, of another math, {others}")
    return DTYPES[name]


def unknown_dtype(name: object, others: str = "") -> InputError:
    """Return the error for an unknown type: it lists the types, with `others`, and suggests a similar one."""
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
COLUMN_MAJOR, CONJUGATED = "nj", "cj"  # letters
SAME = "x"  # in place of B's letter: B is the matrix of A itself
ACROSS = {"t": "n", "c": "n", "n": "t", "j": "t"}  # A's letter -> B's, if both are one matrix


@dataclass(frozen=True, slots=True, order=True)
@plain
class Problem:
    """C (m x n) = alpha A (m x k) B (k x n) + beta C, where each matrix is column-major or row-major.

    Sums and products are those of the dtype's semiring.

    `op` has a letter for A, a letter for B, and a third letter if C is row-major. It names the product as BLAS does,
    whose matrices are column-major: "n" is not transposed, "t" is transposed, as a row-major matrix is to BLAS. So
    "nn" is A B with three column-major matrices, and "ttt" the same with three row-major ones. "tn" is X^T Y with
    column-major X and Y. "c" and "j" are "t" and "n" with complex conjugates: X^H Y is "cn", or "jtt" if X, Y and C
    are row-major.

    An "x" instead of B's letter says that B is A's own matrix, as in BLAS's syrk and herk. X^T X is "tx", or "nxt" if
    X and C are row-major; X^H X is "cx" or "jxt". Such a Gram matrix is symmetric or Hermitian, so half of its
    products suffice. All of C is written, and beta C need not be symmetric.
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
                shape = "x".join(map(shown, (self.m, self.n, self.k)))
                raise InputError(f"shape {shape}: {name} = {shown(size)} is outside 1 ... {INT32_MAX}")
        letters = "".join(OP_LETTERS)
        if not re.fullmatch(f"[{letters}][{letters}{SAME}]t?", self.op):
            raise InputError(
                f"unknown op {self.op!r}: expected two of the letters {', '.join(OP_LETTERS)}, such as nn or tn,"
                f" and a third t where C is row-major; {SAME} for the second where B is A's own matrix"
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
        return DTYPES[self.dtype_name]

    @property
    def is_gram(self) -> bool:
        """Whether B is A's own matrix, so that C is symmetric or Hermitian."""
        return self.op[1] == SAME

    @property
    def factors(self) -> str:
        """The letters of A and of B, even if B is A's own matrix."""
        return self.op[0] + (ACROSS[self.op[0]] if self.is_gram else self.op[1])

    @property
    def contiguous(self) -> tuple[Extent, Extent, Extent]:
        """The extents along which A, B and C are contiguous in memory."""
        return (
            "m" if self.factors[0] in COLUMN_MAJOR else "k",
            "k" if self.factors[1] in COLUMN_MAJOR else "n",
            "n" if self.row_major_c else "m",
        )

    @property
    def conjugated(self) -> tuple[bool, bool]:
        """Whether the product uses the complex conjugates of A's elements, and of B's."""
        return self.factors[0] in CONJUGATED, self.factors[1] in CONJUGATED

    @property
    def row_major_c(self) -> bool:
        return len(self.op) == 3

    @property
    def storage(self) -> str:
        """The layout of the three matrices, in words."""
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
        return "; ".join([*parts, *(["B is A's matrix"] if self.is_gram else [])])

    @property
    def stored(self) -> dict[str, tuple[int, int]]:
        """The shapes in memory of A, B and C, as column-major matrices: (contiguous elements, number of lines).

        B is missing if it is A's own matrix.
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
        """MxNxK."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        """The canonical text, such as 20480x16x20480:f32, or 16x16x10000000:f64:tn if op is not nn."""
        return f"{self.shape}:{self.dtype_name}" + (f":{self.op}" if self.op != "nn" else "")

    @property
    def flops(self) -> int:
        """Floating-point operations: 2 m n k, or 8 m n k for complex numbers. An FMA counts as two.

        A Gram matrix has m (m + 1) / 2 elements to compute.
        """
        elements = self.m * (self.m + 1) // 2 if self.is_gram else self.m * self.n
        return self.dtype.flops_per_product * elements * self.k

    @property
    def read_bytes(self) -> int:
        """Least bytes read if beta = 0: A and B once each, or once if they are one matrix."""
        columns = self.m if self.is_gram else self.m + self.n
        return columns * self.k * self.dtype.element_bytes

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
        """The width of an index that reaches every element, including padding: 32 or 64."""
        return self.index_bits_of({})

    def index_bits_of(self, padding: Mapping[str, int]) -> int:
        """Return the width of the index if lines of an operand, by name, are longer by so many elements."""
        # A loop that strides over rows counts up to a grid's rows past m, and one over k likewise.
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
        """Return the problem with this text. Raise InputError unless it is MxNxK:DTYPE[:OP]."""
        match = re.fullmatch(r"([0-9]+)x([0-9]+)x([0-9]+):(\w+?)(?::(\w+))?", text)
        if match is None:
            raise InputError(f"problem {text!r}: expected MxNxK:DTYPE, such as 20480x16x20480:f32, or MxNxK:DTYPE:OP")
        m, n, k, dtype_name, op = match.groups()
        return cls(int(m), int(n), int(k), dtype_name, op or "nn")
