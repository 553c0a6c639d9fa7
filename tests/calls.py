"""One description of a product's call: how to draw one, what a kernel must be given for it, and its exact result."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tsm2_tune.generator.dtypes import ELEMENT_TYPES

TYPES = tuple(ELEMENT_TYPES)  # in the order of tsm2_type
SIZES = {"f32": 4, "f64": 8, "c64": 8, "c128": 16, "bf16": 2, "f16": 2}  # bytes of an element
FACTORS: dict[str, Any] = {  # types of sums, which alpha and beta have
    "f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128, "bf16": np.float32,
    "f16": np.float32,
}  # fmt: skip
A, B, C = 1 << 40, 1 << 50, 1 << 60  # addresses that nobody reads
ACROSS = str.maketrans("NTCJ", "TNJC")  # operation -> the one of the same memory read as the transpose
Array = np.ndarray[Any, np.dtype[Any]]
Ops = Mapping[str, Sequence[str]]  # type -> operations of calls with a column-major C

OPS: Ops = {dtype: tuple(map("".join, product("NTC"[: 3 if dtype[0] == "c" else 2], repeat=2))) for dtype in TYPES}

# Few and equal examples in each run.
few = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Call:
    """C = alpha op(A) op(B) + beta C. Leading dimensions of 0 are the least; an alpha or beta of None is left out.

    An operation is N, T (transpose), C (conjugate transpose) or J (conjugate) of column-major memory: a matrix with
    T or C is row-major. C is column-major ("F") or row-major ("C").
    """

    dtype: str
    ops: str  # for A and B
    m: int
    n: int
    k: int
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    alpha: Any = 1
    beta: Any = 0
    a: int = A
    b: int = B
    c: int = C
    order: str = "F"
    has_out: bool = True
    stream: int | None = None
    bits: tuple[bool, bool] = (False, False)  # PyTorch's conjugate bits: other conjugates are asked for
    is_vector: bool = False  # a has one dimension if m is 1, else b if n is 1

    @property
    def leading(self) -> tuple[int, int, int]:
        least = (
            self.m if self.ops[0] in "NJ" else self.k,
            self.k if self.ops[1] in "NJ" else self.n,
            self.m if self.order == "F" else self.n,
        )
        given = zip((self.lda, self.ldb, self.ldc), least, strict=True)
        return tuple(ld or max(1, one) for ld, one in given)  # type: ignore[return-value]

    @property
    def orders(self) -> str:
        """NumPy's storage orders of a, b and out."""
        return "".join("F" if op in "NJ" else "C" for op in self.ops) + self.order

    @property
    def vector(self) -> str:
        """Return which of a and b has one dimension."""
        return "" if not self.is_vector else "a" if self.m == 1 else "b" if self.n == 1 else ""

    @property
    def conjugates(self) -> tuple[bool, bool]:
        is_complex = self.dtype.startswith("c")
        return is_complex and self.ops[0] in "CJ", is_complex and self.ops[1] in "CJ"

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return (self.m, self.k), (self.k, self.n), (self.m, self.n)

    @property
    def strides(self) -> list[tuple[int, int]]:
        """Bytes between rows and between columns of a, b and out."""
        size = SIZES[self.dtype]
        return [
            (size, size * ld) if order == "F" else (size * ld, size)
            for order, ld in zip(self.orders, self.leading, strict=True)
        ]

    @property
    def factors(self) -> tuple[Any, Any]:
        """Alpha and beta as a kernel gets them."""
        alpha, beta = 1 if self.alpha is None else self.alpha, 0 if self.beta is None else self.beta
        return FACTORS[self.dtype](alpha), FACTORS[self.dtype](beta)

    def transposed(self) -> Call:
        """Return the call for the transposed product, in the same memory."""
        return replace(
            self, ops=self.ops[::-1].translate(ACROSS), m=self.n, n=self.m, a=self.b, b=self.a, lda=self.ldb,
            ldb=self.lda, order="FC"[self.order == "F"], bits=self.bits[::-1],
        )  # fmt: skip

    def in_columns(self) -> Call:
        """Return the call for the same memory whose C is column-major, as BLAS has it."""
        return self if self.order == "F" else self.transposed()


# Drawing

EXTENTS = (1, 2, 3, 6, 8, 33)
REAL, COMPLEX = (1, -1, 2, 0.5, -3, 1.0), (1j, 2 - 3j, -1 + 0.5j)


def random_call(rng: random.Random, ops: Ops, extents: Sequence[int] = EXTENTS) -> Call:
    """Draw a call whose `in_columns` has one of these operations of its type."""
    dtype = rng.choice(sorted(ops))
    m, n, k = (rng.choice(extents) for _ in "mnk")
    call = Call(dtype, rng.choice(ops[dtype]), m, n, k, stream=rng.choice((None, None, 7, 78)))
    for change in (_padded, _padded, _scaled, _moved, _turned):
        call = change(rng, call, ops)
    if rng.random() < 0.1:
        call = replace(call, n=1, is_vector=True, lda=0, ldb=0, ldc=0)
    if rng.random() < 0.3:
        call = replace(call, has_out=False, beta=None)
    return call if rng.random() < 0.5 else call.transposed()


def similar_call(rng: random.Random, call: Call, ops: Ops) -> Call:
    """Draw a call that differs from this one in one respect, or in none."""
    change = rng.choice((_same, _padded, _padded, _scaled, _moved, _resized, _elsewhere, _turned, _by_itself))
    return change(rng, call, ops)


def _same(rng: random.Random, call: Call, ops: Ops) -> Call:
    return call


def _padded(rng: random.Random, call: Call, ops: Ops) -> Call:
    """Draw another leading dimension of one matrix."""
    least = replace(call, lda=0, ldb=0, ldc=0).leading
    at = rng.randrange(3)
    padded: dict[str, Any] = {("lda", "ldb", "ldc")[at]: least[at] + rng.choice((0, 1, 5))}
    return replace(call, **padded)


def _scaled(rng: random.Random, call: Call, ops: Ops) -> Call:
    known = REAL + COMPLEX if call.dtype.startswith("c") else REAL
    beta = rng.choice((None, 0, *known)) if call.has_out else None
    return replace(call, alpha=rng.choice((None, *known)), beta=beta)


def _moved(rng: random.Random, call: Call, ops: Ops) -> Call:
    a, b, c = (at + SIZES[call.dtype] * rng.choice((0, 1, 3)) for at in (A, B, C))
    return replace(call, a=a, b=b, c=c)


def _resized(rng: random.Random, call: Call, ops: Ops) -> Call:
    m, n, k = (rng.choice((extent, rng.choice(EXTENTS))) for extent in (call.m, call.n, call.k))
    return replace(call, m=m, n=n, k=k, lda=0, ldb=0, ldc=0)


def _elsewhere(rng: random.Random, call: Call, ops: Ops) -> Call:
    return replace(call, stream=rng.choice((None, 0, 7, 78)))


def _turned(rng: random.Random, call: Call, ops: Ops) -> Call:
    """Draw other conjugates of the same memory, and who asks for them."""
    if not call.dtype.startswith("c"):
        return call
    drawn = replace(call, ops="".join(rng.choice("NJ" if op in "NJ" else "TC") for op in call.ops))
    found = drawn if drawn.in_columns().ops in ops[call.dtype] else call
    return replace(found, bits=(rng.random() < 0.3, rng.random() < 0.3))


def _by_itself(rng: random.Random, call: Call, ops: Ops) -> Call:
    """Draw the product of A and A transposed in the same memory, or of matrices that only begin where one begins."""
    turned = replace(call, ops=call.ops[0] + {"N": "T", "T": "N", "C": "N", "J": "T"}[call.ops[0]])
    if turned.in_columns().ops not in ops[call.dtype]:
        return call
    found = replace(turned, n=call.m, b=call.a, lda=0, ldb=0, ldc=0)
    return replace(found, ldb=found.leading[0] + rng.choice((0, 1)))


def sequences(ops: Ops, extents: Sequence[int] = EXTENTS, most: int = 12) -> st.SearchStrategy[list[Call]]:
    """Draw a few calls, each like an earlier one or new: caches must tell them apart."""

    def drawn(rng: random.Random, count: int) -> list[Call]:
        found = [random_call(rng, ops, extents)]
        for _ in range(count):
            new = rng.random() < 0.2
            found.append(random_call(rng, ops, extents) if new else similar_call(rng, rng.choice(found), ops))
        return found

    return st.builds(drawn, st.randoms(use_true_random=True), st.integers(0, most))


# What a kernel must be given


def corners(rows: int, columns: int, at: int, strides: tuple[int, int]) -> list[list[int]]:
    """Return the addresses of a few elements, which tell where all are."""
    return [[at + i * strides[0] + j * strides[1] for j in _some(columns)] for i in _some(rows)]


def _some(extent: int) -> list[int]:
    return sorted({0, min(1, extent - 1), extent - 1})


def memory(call: Call) -> tuple[Any, ...]:
    """Return where elements of op(A), op(B) and C are, and whether op conjugates."""
    a, b, c = map(corners, *zip(*call.shapes, strict=True), (call.a, call.b, call.c), call.strides)
    return a, b, c, *call.conjugates


def is_launch_of(launched: Call, call: Call) -> bool:
    """Return whether a launch computes the call, as it is or as its transpose."""
    same = launched.factors == call.factors and (launched.stream or 0) == (call.stream or 0)
    return same and memory(launched) in (memory(call), memory(call.transposed()))


# Results of whole numbers, which are exact in each type


def operands(call: Call, seed: int = 1) -> list[Array]:
    """Return a, b and out of small whole numbers. Each is a part of a larger matrix, its `base`."""
    rng, wholes = np.random.default_rng(seed), list[Array]()
    for (rows, columns), ld, order in zip(call.shapes, call.leading, call.orders, strict=True):
        whole = np.empty(((columns if order == "F" else rows) + 2) * ld, FACTORS[call.dtype])
        whole[...] = rng.integers(-3, 4, whole.shape)
        if whole.dtype.kind == "c":
            whole += 1j * rng.integers(-3, 4, whole.shape)
        wholes.append(whole.astype(np.float16) if call.dtype == "f16" else whole)
    return parts(call, wholes)


def whole_of(part: Array) -> Array:
    """Return the larger matrix of an operand."""
    assert part.base is not None
    return part.base


def parts(call: Call, wholes: Sequence[Any]) -> list[Any]:
    """Return the matrices of a call within 1-d arrays of any library. Before and behind each is one line more."""
    found = []
    for whole, (rows, columns), ld, order in zip(wholes, call.shapes, call.leading, call.orders, strict=True):
        elements, lines = (rows, columns) if order == "F" else (columns, rows)
        part = whole.reshape(lines + 2, ld)[1:-1, :elements]
        found.append(part.T if order == "F" else part)
    return found


def result(call: Call, a: Array, b: Array, out: Array) -> Array:
    """Return the exact result. At beta = 0 it does not depend on `out`."""
    wide = np.complex128 if call.dtype.startswith("c") else np.float64
    x, y = (one.conj() if is_conj else one for one, is_conj in zip((a, b), call.conjugates, strict=True))
    alpha, beta = (wide(factor) for factor in call.factors)
    added = beta * out.astype(wide) if beta != 0 else 0
    found: Array = alpha * (x.astype(wide) @ y.astype(wide)) + added
    return found


def check_on_host(module: Any, call: Call, arrays: list[Array]) -> None:
    """Multiply NumPy's arrays: the result is exact, and no other memory is written."""
    a, b, out = arrays
    conj_a, conj_b = call.conjugates
    named = {"alpha": call.alpha, "beta": call.beta, "conj_a": conj_a, "conj_b": conj_b}
    expected, before = result(call, *arrays), [np.copy(whole_of(one)) for one in arrays]
    old = out.copy()
    if call.factors[1] == 0:
        out[...] = np.nan  # which is not read
    found = module.gemm(a, b, out if call.has_out else None, **named)
    assert (found is out) == call.has_out
    np.testing.assert_array_equal(found, expected, err_msg=str(call))
    out[...] = old
    for one, whole in zip(arrays, before, strict=True):
        assert whole_of(one).tobytes() == whole.tobytes(), call


def ops_of(kernels: Mapping[str, Sequence[str]]) -> Ops:
    """Return the operations, with a column-major C, of kernels for these ops of each type."""
    return {
        dtype: tuple(
            Call(dtype, op[:2].upper(), 1, 1, 1, order="C" if op[2:] else "F").in_columns().ops for op in ops
        )
        for dtype, ops in kernels.items()
    }
