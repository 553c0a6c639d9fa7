"""`Matrix`, the address, shape and layout of an array, and `Product`, the matrices of one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tsm2_tune.runtime.arrays.batches import (
    broadcast_strides,
    common_extents,
    has_nested_strides,
    one_stride,
    span_bytes,
    split_array,
)
from tsm2_tune.runtime.arrays.dlpack import TYPE_OF_BFLOAT16, speaks_dlpack
from tsm2_tune.runtime.arrays.libraries import check_tensor, device_interface, library_of, tensor_memory
from tsm2_tune.runtime.elements import DTYPES, MATHS, OF_ELEMENT, SUMS, dtype_name

LARGEST_ADDRESS = 2**64 - 1  # also the largest stream handle
INTEGERS = (int, np.integer)
MOST_WORK = 1_000_000  # most steps of np.shares_memory: some milliseconds


@dataclass(slots=True)  # not frozen, which would double the time of the constructor
class Matrix:
    """A matrix in memory, or those of a batch. The columns or the rows of a matrix are contiguous, or both."""

    name: str
    array: Any  # an Array; None if the product has shapes but no arrays yet
    on_host: bool
    address: int
    rows: int
    columns: int
    ld: tuple[int, int]  # leading dimensions in elements, as column-major and as row-major; 0: it is not
    element: str  # element type, a key of DTYPES
    dtype: np.dtype[Any]
    read_only: bool
    stream: int | None  # handle of the stream in the array's `__cuda_array_interface__`
    is_conjugate: bool  # whether the values are the complex conjugates of the memory
    span_bytes: int  # number of bytes from the first to the last element, padding included
    is_vector: bool = False  # whether the array has one dimension
    library: str = ""  # the array's library, as `library_of` names it
    by_dlpack: bool = False  # whether the matrix was read through DLPack
    home: tuple[int, int] | None = None  # the result of `driver.home`, once it was called
    products: tuple[int, ...] = ()  # the array's dimensions before those of a matrix; (): it is no batch
    steps: tuple[int, ...] = ()  # bytes from a matrix to the next one along each of these dimensions

    @classmethod
    def of(cls, name: str, array: Any, *, vector: str = "", dimensions: int | None = None) -> Matrix:
        """Return the array as a matrix. A 1-d array becomes what `vector` says, a row or a column; "" refuses it.

        The dimensions before the last two are those of a batch; if `dimensions` is given, there are as many, and
        the rest is a matrix or a vector. `name` is the argument's name, for errors.
        """
        library, memory, on_host, read_only, stream, is_conjugate = library_of(array), None, False, False, None, False
        if library == "torch":
            check_tensor(name, array)
            memory = tensor_memory(array)
        if memory is not None:
            (element, dtype), shape, strides, address = memory
            is_conjugate = OF_ELEMENT[element][1] and array.is_conj()  # as PyTorch's x.mH
        else:
            interface = device_interface(name, array)
            on_host = interface is None
            if on_host:
                if not isinstance(array, np.ndarray):
                    raise TypeError(
                        f"{name}: expected a device array (with __cuda_array_interface__ or __dlpack__), or for"
                        f" kernels tuned on a CPU a NumPy array, got {type(array).__name__}"
                    )
                interface = array.__array_interface__
            elif wrong := _wrong_with(interface):
                raise TypeError(f"{name}: its __cuda_array_interface__ is not one: {wrong}")
            if interface.get("mask") is not None or isinstance(array, np.ma.MaskedArray):
                raise TypeError(f"{name}: masked arrays are not supported")
            typestr = interface["typestr"]
            if typestr[2:] == "2" and (typestr == TYPE_OF_BFLOAT16 or _is_bfloat16(array)):
                element, dtype = "bf16", array.dtype if on_host else np.dtype(typestr)
            else:
                element, dtype = _type_of(typestr, name)
            shape, strides, stream = tuple(interface["shape"]), interface.get("strides"), interface.get("stream")
            address, read_only = interface["data"]
        size = dtype.itemsize
        products, steps, shape, strides, is_vector = split_array(name, shape, strides, size, vector, dimensions)
        if address == 0 and 0 not in shape and 0 not in products:
            raise TypeError(f"{name}: it has no memory of its own: pass {name}.clone()")
        if address % size:
            raise ValueError(f"{name}: its address is not a multiple of {size} bytes")
        rows, columns = shape
        ld, of_matrix = leading_dimensions(name, shape, strides, size)
        return cls(
            name, array, on_host, address, rows, columns, ld, element, dtype, read_only, stream, is_conjugate,
            span_bytes(products, steps, of_matrix) if products else of_matrix, is_vector, library,
            library != "torch" and speaks_dlpack(array), None, products, steps,
        )  # fmt: skip

    @property
    def span(self) -> np.ndarray[Any, Any]:
        """A NumPy array with the matrix's addresses and strides, for np.shares_memory. Never read its elements."""
        interface = {
            "version": 3,
            "shape": (*self.products, self.rows, self.columns),
            "typestr": self.dtype.str,
            "data": (self.address, True),
            "strides": (*self.steps, *self.strides),
        }
        return np.asarray(SimpleNamespace(__array_interface__=interface))

    @property
    def strides(self) -> tuple[int, int]:
        """The bytes from an element to the next one below and to the right."""
        order, ld = self.order
        one, line = self.dtype.itemsize, ld * self.dtype.itemsize
        return (one, line) if order == "n" else (line, one)

    @property
    def order(self) -> tuple[str, int]:
        """A storage order that the matrix has, "n" or "t", and its leading dimension."""
        return ("n", self.ld[0]) if self.ld[0] else ("t", self.ld[1])

    def transposed(self) -> Matrix:
        """Return the transposed matrix, in the same memory."""
        return replace(self, rows=self.columns, columns=self.rows, ld=self.ld[::-1])


def _wrong_with(interface: Any) -> str:
    """Return a description of what is wrong with a `__cuda_array_interface__`; "" if it is valid."""
    if not (isinstance(interface, dict) and "typestr" in interface and "shape" in interface and "data" in interface):
        return "expected typestr, shape and data"
    shape, data = interface["shape"], interface["data"]
    strides, stream = interface.get("strides"), interface.get("stream")
    if not isinstance(interface["typestr"], str):
        return "expected a text as typestr"
    if not isinstance(shape, (tuple, list)) or not _are_whole(shape, 0):
        return "expected whole numbers from 0 on as shape"
    if strides is not None and not (isinstance(strides, (tuple, list)) and _are_whole(strides, -LARGEST_ADDRESS)):
        return "expected whole numbers as strides"
    if not (isinstance(data, (tuple, list)) and len(data) == 2 and _are_whole(data[:1], 0)):
        return "expected an address and whether it is read-only as data"
    if stream is not None and not _are_whole((stream,), 0):
        return "expected a handle or None as stream"
    return ""


def _are_whole(numbers: Sequence[Any], least: int) -> bool:
    """Return whether the values are integers from `least` to the largest address."""
    for number in numbers:  # noqa: SIM110, since a generator takes longer
        if not (isinstance(number, INTEGERS) and least <= number <= LARGEST_ADDRESS):
            return False
    return True


def _is_bfloat16(array: Any) -> bool:
    """Return whether the array's dtype is named bfloat16, in any library."""
    try:
        return _last_word(getattr(array, "dtype", None)) == "bfloat16"
    except TypeError:  # an unhashable dtype
        return False


@cache
def _last_word(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


@cache
def _type_of(typestr: str, name: str) -> tuple[str, np.dtype[Any]]:
    """Return the key in DTYPES of a typestr, and its NumPy dtype. `name` is the argument's name, for errors."""
    dtype = np.dtype(typestr)
    return dtype_name(dtype, name), dtype


def leading_dimensions(name: str, shape: tuple[int, int], strides: Any, itemsize: int) -> tuple[tuple[int, int], int]:
    """Return the leading dimensions in elements: as column-major and as row-major, 0 if it does not have that order.

    Also return the number of bytes from the first to the last element, padding included. The stride along an extent
    of 1 does not count, so a vector has both orders.
    """
    (rows, columns), (down, across) = shape, strides
    column, row = rows * itemsize, columns * itemsize  # bytes of a contiguous column and row
    as_columns = as_rows = 0
    if 0 in shape:  # without elements any order is right
        return (max(rows, 1), max(columns, 1)), 0
    if down == itemsize or rows == 1:
        apart = column if columns == 1 else across
        if apart >= column and apart % itemsize == 0:
            as_columns = int(apart // itemsize)
    if across == itemsize or columns == 1:
        apart = row if rows == 1 else down
        if apart >= row and apart % itemsize == 0:
            as_rows = int(apart // itemsize)
    if as_columns == as_rows == 0:
        raise ValueError(
            f"{name}: expected a {rows}x{columns} matrix whose columns or rows are contiguous, with strides"
            f" ({itemsize}, at least {column}) or (at least {row}, {itemsize}) bytes,"
            f" got {tuple(strides)}: pass a contiguous copy"
        )
    distance = (columns - 1) * as_columns + rows if as_columns else (rows - 1) * as_rows + columns
    return (as_columns, as_rows), distance * itemsize


@dataclass(slots=True)  # not frozen: see Matrix
class Product:
    """The matrices a, b and out of one call, or those of a batch, which is several products of one shape."""

    a: Matrix
    b: Matrix
    out: Matrix | None  # None: the call returns a new array
    conjugates: tuple[bool, bool] = (False, False)
    math: str | None = None
    given: tuple[Matrix, ...] = field(init=False)  # a, b and, if the call has it, out
    shape: tuple[int, int, int] = field(init=False)  # the extents m, n and k
    products: tuple[int, ...] = field(init=False, default=())  # the extents of a batch, as those of out; () without
    batch: int = field(init=False, default=1)  # number of products
    # Elements from a product's a, b and out to the next product's. None: the batch has no such strides.
    strides: tuple[int, int, int] | None = field(init=False, default=(0, 0, 0))
    on_host: bool = field(init=False)
    library: str = field(init=False)  # the library of all arrays; "" if it is unknown or they have several

    def __post_init__(self) -> None:
        a, b, out = self.a, self.b, self.out
        self.given = (a, b) if out is None else (a, b, out)
        self.shape, self.on_host = (a.rows, b.columns, a.columns), a.on_host
        is_one = a.library == b.library and (out is None or out.library == a.library)
        self.library = a.library if is_one else ""
        if a.products or b.products:
            self._set_batch()

    def _set_batch(self) -> None:
        """Set the batch. Raise ValueError if the dimensions do not broadcast."""
        self.products = common_extents(self.a.products, self.b.products)
        self.batch = math.prod(self.products)
        steps = [broadcast_strides(x.products, x.steps, self.products) for x in (self.a, self.b)]
        if self.out is not None and self.out.products == self.products:
            steps.append(self.out.steps)
        found = one_stride(self.products, steps)
        of_each = None if found is None else [step // self.dtype.itemsize for step in found]
        self.strides = None if of_each is None else (of_each[0], of_each[1], of_each[2] if len(of_each) > 2 else 0)

    @classmethod
    def of(
        cls,
        a: Any,
        b: Any,
        out: Any,
        conjugates: tuple[bool, bool] = (False, False),
        math: str | None = None,
    ) -> Product:
        of_a, of_b = Matrix.of("a", a, vector="row"), Matrix.of("b", b, vector="column")
        if of_a.is_vector and of_b.is_vector:
            raise ValueError("a and b: two vectors: pass one of them as a matrix, such as a[None, :]")
        vector = "column" if of_b.is_vector else "row" if of_a.is_vector else ""
        dimensions = max(len(of_a.products), len(of_b.products))
        of_out = None if out is None else Matrix.of("out", out, vector=vector, dimensions=dimensions)
        if OF_ELEMENT[of_a.element][1]:
            conjugates = bool(conjugates[0]) != of_a.is_conjugate, bool(conjugates[1]) != of_b.is_conjugate
        else:
            conjugates = (False, False)
        product = cls(of_a, of_b, of_out, conjugates, math)
        if math is not None and not (isinstance(math, str) and (math, of_a.element) in MATHS):
            known = "".join(f", or {x} of {DTYPES[element]}" for x, element in MATHS)
            raise ValueError(f"math: expected None{known}, got {math!r} of {product.dtype}")
        product._check_fit()
        if of_out is not None:
            product._check_writable(of_out)
        return product

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.a.dtype

    @property
    def name(self) -> str:
        """The name of the kernels' element type or, if `math` is set, a name in MATHS such as "tf32"."""
        return self.a.element if self.math is None else MATHS[self.math, self.a.element]

    @property
    def sum_dtype(self) -> np.dtype[Any]:
        """The accumulator type, which is also the type of alpha and beta."""
        return SUMS.get(self.a.element, self.dtype)

    @property
    def is_complex(self) -> bool:
        return OF_ELEMENT[self.a.element][1]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape of a new `out`: (m, n), or (m,) or (n,) if b or a is a vector; before it that of a batch."""
        m, n, _ = self.shape
        of_one = (m,) if self.b.is_vector else (n,) if self.a.is_vector else (m, n)
        return self.products + of_one if self.products else of_one

    @property
    def is_gram(self) -> bool:
        """Whether b is the transpose of a, in the same memory."""
        if self.a.address != self.b.address or self.b.columns != self.a.rows:
            return False
        is_one = not self.products or (self.strides is not None and self.strides[0] == self.strides[1])
        return is_one and self.b.ld == self.a.ld[::-1]

    def with_out(self, array: Any) -> Product:
        """Return a copy of the product with this array as `out`."""
        vector = "column" if self.b.is_vector else "row"
        out = Matrix.of("out", array, vector=vector, dimensions=len(self.products))
        return Product(self.a, self.b, out, self.conjugates, self.math)

    def transposed(self) -> Product:
        """Return the transposed product: out^T = b^T a^T, in the same memory."""
        out = None if self.out is None else self.out.transposed()
        return Product(self.b.transposed(), self.a.transposed(), out, self.conjugates[::-1], self.math)

    def _check_fit(self) -> None:
        a, b, out = self.a, self.b, self.out
        for other in self.given[1:]:
            if other.on_host != a.on_host:
                raise TypeError(f"a and {other.name}: one is a NumPy array, the other a device array")
            if other.element != a.element:
                raise TypeError(f"{other.name}: expected {a.dtype} as a, got {other.dtype}")
        if b.rows != a.columns:
            raise ValueError(f"b: expected {a.columns} rows, as a has columns, got {b.rows}x{b.columns}")
        if out is not None and (out.rows, out.columns) != (a.rows, b.columns):
            raise ValueError(f"out: expected {a.rows}x{b.columns}, got {out.rows}x{out.columns}")
        if out is not None and out.products != self.products:
            raise ValueError(f"out: expected the leading dimensions {self.products}, got {out.products}")

    def _check_writable(self, out: Matrix) -> None:
        if out.read_only:
            unknown = ", or does not say otherwise" if out.by_dlpack else ""
            raise ValueError(f"out: it is read-only{unknown}")
        if out.is_conjugate:
            raise TypeError(
                "out: its conjugate bit is set, and no kernel writes conjugates: pass a tensor without it"
            )
        if 0 in self.shape or self.batch == 0:
            return
        if out.products:
            extents, strides = (*out.products, out.rows, out.columns), (*out.steps, *out.strides)
            if not has_nested_strides(extents, strides, self.dtype.itemsize):
                raise ValueError("out: its matrices overlap: pass an out in which each has memory of its own")
        end = out.address + out.span_bytes
        for matrix in (self.a, self.b):
            apart = end <= matrix.address or matrix.address + matrix.span_bytes <= out.address
            if not apart and (how := _shares(out, matrix)):
                raise ValueError(f"out: it {how} memory with {matrix.name}, which the kernel still reads")


def _shares(x: Matrix, y: Matrix) -> str:
    """Return "shares" if the matrices overlap, "may share" if that is too expensive to decide, else ""."""
    try:
        return "shares" if np.shares_memory(x.span, y.span, max_work=cast(Any, MOST_WORK)) else ""
    except RuntimeError:  # it needs more than MOST_WORK steps
        return "may share"
