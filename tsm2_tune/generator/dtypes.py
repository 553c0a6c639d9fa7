"""`Dtype`: an element type with its arithmetic. `DTYPES` has all of them by their names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tsm2_tune.errors import InputError, nearest_name

if TYPE_CHECKING:  # a command line is parsed without NumPy
    import numpy as np

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
