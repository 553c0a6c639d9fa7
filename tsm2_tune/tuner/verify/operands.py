"""The operands A, B and C of one problem in device memory. Guard zones before and after each show stray writes.

An operand of a batch has one buffer: its matrices follow one another, with columns between them that may be unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from enum import IntEnum
from mmap import PAGESIZE
from typing import NamedTuple

import numpy as np

from tsm2_tune.generator.dtypes import Dtype
from tsm2_tune.generator.problem import PADDING_ROWS, Problem
from tsm2_tune.tuner.device.interface import Buffer, Device
from tsm2_tune.tuner.device.support_kernels import Factor, Placed, Support

VECTOR_BYTES = 16  # the widest load of a thread
GUARD_ELEMENTS = 1024  # of each guard zone: more than one thread tile or vector
MOST_GAP = 3  # the most unused columns between a batch's matrices


class Values(IntEnum):
    """Kinds of values that fill an operand. The CUDA kernels that fill operands use these numbers too."""

    POISON = 0  # NaN
    INTEGERS = 1  # -2, -1, 1, 2
    UNIFORM = 2  # [-1, 1)
    SMALL_REAL = 3  # complex: UNIFORM with real parts scaled by a power of two
    SMALL_IMAGINARY = 4  # complex: UNIFORM with imaginary parts scaled by a power of two
    SMALL_AT_EDGE = 5  # complex: the imaginary parts of the last row and column are scaled
    LENGTHS = 6  # [0, 1), and every fourth infinite
    FEW_SIGNS = 7  # LENGTHS with every 2048th negative
    UNUSUAL = 8  # integers, infinities of both signs and NaN; infinities in the last row and the last column
    SIGNED_NANS = 9  # LENGTHS with every 256th NaN with a sign
    WIDE = 10  # very different sizes, up to 4
    SPECIAL = 11  # integers, every fourth a zero of either sign; one in 2**exponent is NaN, an infinity or 3
    SPARSE = 12  # [-1, 1) in SPARSE_TERMS elements along k, 0 elsewhere; k is contiguous
    SPARSE_ACROSS = 13  # SPARSE if k is not contiguous


class Filling(NamedTuple):
    """The placement of an operand in its buffer, and its values."""

    leading_dimension: int  # elements between the starts of two columns
    values: Values
    seed: int
    exponent: int = 0  # see Check.exponent
    shift: int | None = None  # elements from a multiple of 16 bytes to the first element; None: any address
    at_start: bool = False  # on the emulator: at the start of the buffer, else at its end
    gap: int = 0  # unused columns between a batch's matrices; less than 0 if they overlap


class Operand:
    """A matrix, or a batch of them, in its own buffer. It can have a different place there in every test call.

    `rows` and `columns` are the extents of a column-major matrix in memory. A row-major operand is stored as its
    column-major transpose.
    """

    def __init__(
        self,
        device: Device,
        support: Support,
        name: str,
        rows: int,
        columns: int,
        dtype: Dtype,
        *,
        row_major: bool = False,
        padding: int = 0,
        batch: int = 1,
    ) -> None:
        """Allocate a buffer for matrices whose leading dimension is at most `rows` + PADDING_ROWS + `padding`."""
        self.name, self.rows, self.columns, self.row_major, self.batch = name, rows, columns, row_major, batch
        self._support, self._dtype, self._component_name = support, dtype, dtype.component.name
        back = 0 if device.faults_past_buffers else GUARD_ELEMENTS
        self._total = GUARD_ELEMENTS + self._extent(rows + PADDING_ROWS + padding, MOST_GAP) + back
        self._ends_at_buffer_end = device.faults_past_buffers
        if device.faults_past_buffers:  # whole pages, so that accesses before the buffer fault too
            self._total += -self._total % (PAGESIZE // dtype.element_bytes)
        self.buffer: Buffer = device.allocate(self._total * dtype.element_bytes)
        self.place(Filling(rows, Values.POISON, 0))

    def _extent(self, leading_dimension: int, gap: int) -> int:
        """Return the number of elements from the first to the last element of the matrices, padding included."""
        return leading_dimension * ((self.batch - 1) * (self.columns + gap) + self.columns - 1) + self.rows

    def place(self, filling: Filling) -> Placed:
        """Choose the matrices' place in the buffer. Return a descriptor for the kernels that fill them.

        This sets `front` (elements of the buffer before the first matrix), `address` (of its first element), `stride`
        (elements from a matrix to the next) and `strides` (row stride and column stride of the operand, and the
        distance between matrices, in real numbers).
        """
        self.filling = filling
        self.front = self._front_of(filling)
        self.address = self.buffer.address + self.front * self._dtype.element_bytes
        reals = self._dtype.parts
        line = filling.leading_dimension * reals
        self.apart = self.columns + filling.gap
        self.stride = self.apart * filling.leading_dimension
        one, apart, to_next = np.int64(reals), np.int64(line), np.int64(self.stride * reals)
        self.strides = (apart, one, to_next) if self.row_major else (one, apart, to_next)
        self.placed = Placed(
            component=self._component_name,
            buffer=self.buffer.address,
            total=self._total * reals,
            front=self.front * reals,
            rows=self.rows * reals,
            columns=self.columns,
            leading_dimension=line,
            batch=self.batch,
            apart=self.apart,
            seed=filling.seed,
            values=filling.values,
            exponent=filling.exponent,
        )
        return self.placed

    def _front_of(self, filling: Filling) -> int:
        shift, element_bytes = filling.shift, self._dtype.element_bytes
        if not self._ends_at_buffer_end:
            return GUARD_ELEMENTS + (shift or 0)
        if filling.at_start:
            return 0
        front = self._total - self._extent(filling.leading_dimension, filling.gap)
        if shift is None:
            return front
        past = self.buffer.address + (front - shift) * element_bytes
        return front - past % VECTOR_BYTES // element_bytes

    def fill(self, filling: Filling) -> None:
        """Fill the matrix with values, and the rest of the buffer with NaN."""
        self._support.fill([self.place(filling)])

    def as_filled(self, filling: Filling) -> Operand:
        """Return a copy of the operand with the placement of `filling`, on the same buffer."""
        before = copy(self)
        before.place(filling)
        return before

    def first_change(self, real: int) -> str:
        """Return the position, such as A[3, 4], of real number `real` of the buffer, counted from its start."""
        position = real // self._dtype.parts - self.front
        if position < 0:
            return f"{-position} elements before {self.name}"
        past = position - self._extent(self.filling.leading_dimension, self.filling.gap) + 1
        if past > 0:
            return f"{past} elements past the end of {self.name}"
        column, row = divmod(position, self.filling.leading_dimension)
        product, column = divmod(column, self.apart) if self.batch > 1 and self.apart else (0, column)
        if column >= self.columns:
            return f"between {self.name} {product} and {product + 1} of the batch"
        if row >= self.rows:
            lines = "rows" if self.row_major else "columns"
            return f"between {lines} {column} and {column + 1} of {self.name}"
        i, j = (column, row) if self.row_major else (row, column)
        return element_text(self.name, product, self.batch, i, j)


def element_text(name: str, product: int, batch: int, i: int, j: int) -> str:
    """Return the name of an element, such as C[3, 4]; of the product with this index in a batch, C[2][3, 4]."""
    return name + f"[{product}]" * (batch > 1) + f"[{i}, {j}]"


class Operands:
    """The operands A, B and C of one problem in device memory; for a Gram matrix B is A.

    `index_bits` is the index width of the kernels. Leading dimensions may be padded by up to PADDING_ROWS elements,
    plus the number that `padding` contains for the operand. The constructor raises MemoryError if the operands do not
    fit in memory.
    """

    def __init__(
        self,
        device: Device,
        support: Support,
        problem: Problem,
        *,
        index_bits: int,
        padding: Mapping[str, int] | None = None,
    ) -> None:
        self.problem, self.support = problem, support
        dtype = problem.dtype
        self._index: type[np.int32 | np.int64] = np.int32 if index_bits == 32 else np.int64
        self._extents = tuple(self._index(extent) for extent in (problem.m, problem.n, problem.k))
        self._one_and_zero = dtype.factor(dtype.semiring.one), dtype.factor(dtype.semiring.zero)
        made: dict[str, Operand] = {}
        along = dict(zip("ABC", problem.contiguous, strict=True))
        try:
            for name, (rows, columns) in problem.stored.items():
                row_major = along[name] == ("n" if name in "BC" else "k")
                more = (padding or {}).get(name, 0)
                made[name] = Operand(
                    device, self.support, name, rows, columns, dtype,
                    row_major=row_major, padding=more, batch=problem.batch,
                )  # fmt: skip
        except MemoryError:
            for operand in made.values():
                operand.buffer.free()
            raise
        self.every = tuple(made.values())  # A, B and C; A and C for a Gram matrix
        self.a, self.b, self.c = made["A"], made.get("B", made["A"]), made["C"]
        self._signs = tuple(np.int32(-1 if conjugated else 1) for conjugated in problem.conjugated)

    def free(self) -> None:
        for operand in self.every:
            operand.buffer.free()

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """Address, strides and sign (-1 for a conjugated operand, else 1) of A, then of B."""
        sign_a, sign_b = self._signs
        down, across, to_next = self.b.strides
        strides_b = (across, down, to_next) if self.problem.is_gram else self.b.strides
        return (
            (np.uint64(self.a.address), *self.a.strides, sign_a),
            (np.uint64(self.b.address), *strides_b, sign_b),
        )

    def arguments(self, alpha: complex | None = None, beta: complex | None = None) -> tuple[np.generic, ...]:
        """Return the arguments of a kernel call: extents, alpha, A, B, beta and C, without workspace and batch.

        alpha defaults to 1 and beta to 0; for a min-plus product, to 0 and infinity.
        """
        factor, index, (one, zero) = self.problem.dtype.factor, self._index, self._one_and_zero
        a, b, c = self.a, self.b, self.c
        return (
            *self._extents,
            one if alpha is None else factor(alpha),
            np.uint64(a.address),
            index(a.filling.leading_dimension),
            np.uint64(b.address),
            index(b.filling.leading_dimension),
            zero if beta is None else factor(beta),
            np.uint64(c.address),
            index(c.filling.leading_dimension),
        )

    def batch_arguments(self) -> tuple[np.generic, ...]:
        """Return the number of products, and the distances in elements between the matrices of A, of B and of C."""
        return np.int32(self.problem.batch), *(np.int64(one.stride) for one in (self.a, self.b, self.c))


def needed_bytes(problem: Problem, padding: Mapping[str, int] | None = None) -> int:
    """Return the number of bytes of device memory that the operands need, with guard zones and padding.

    `padding` (matrix name -> elements) increases leading dimensions.
    """
    more = padding or {}
    elements = sum(
        problem.batch * (rows + PADDING_ROWS + more.get(name, 0)) * (columns + MOST_GAP * problem.is_batched)
        + 2 * GUARD_ELEMENTS
        for name, (rows, columns) in problem.stored.items()
    )
    return elements * problem.dtype.element_bytes
