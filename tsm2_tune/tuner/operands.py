"""A, B and C of one problem in a device's memory, each between guard zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import isqrt
from mmap import PAGESIZE

import numpy as np

from tsm2_tune.generator.problem import PADDING_ROWS, Dtype, Problem, dtype_named
from tsm2_tune.generator.source import REFERENCE_BLOCKS_PER_SM, SUPPORT_THREADS
from tsm2_tune.tuner.device import Buffer, Device, Kernel

VECTOR_BYTES = 16  # the most that a thread loads at a time
GUARD_ELEMENTS = 1024  # before and behind each operand: past what a thread tile or a vector would overrun
SUPPORT_BLOCKS_PER_SM = 8
REFERENCE_ROUNDS = 4  # most tiles or chunks of tiles of C that such a thread takes, where it need not take more
LEAST_CHUNK = 64  # products of an inner product that are worth a thread of their own
FEW_CHUNKS = 64  # that one thread adds up
REFERENCE_BYTES = 3 * 8  # of a part of a real inner product, as the support kernels keep it
MOST_WATCHED = 4  # buffers that are looked at together: A, B, C and a workspace
WORST_NUMBERS = 5  # that `compare` tells of each thread
WORST_RECORDS = 4 * SUPPORT_THREADS  # that are copied to the host


class Values(IntEnum):
    """What an operand is filled with; the numbers are those of the support kernels."""

    POISON = 0  # NaN
    INTEGERS = 1  # -2, -1, 1, 2
    UNIFORM = 2  # [-1, 1)
    SMALL_REAL = 3  # complex numbers: the same, but real parts of the size of a power of two
    SMALL_IMAGINARY = 4  # the same of the imaginary parts
    SMALL_AT_EDGE = 5  # the same of the imaginary parts in the last row and the last column
    LENGTHS = 6  # [0, 1), and every fourth infinite
    FEW_SIGNS = 7  # the same, and every 2048th negative
    UNUSUAL = 8  # integers, infinities of both signs and NaN; infinities in the last row and the last column
    SIGNED_NANS = 9  # as LENGTHS, and every 256th NaN with a sign
    WIDE = 10  # of very different sizes, up to 4
    SPECIAL = 11  # integers, every fourth a zero of either sign; once in 2**exponent NaN, an infinity or 3
    SPARSE = 12  # [-1, 1) in SPARSE_TERMS elements of each line of k, which runs along memory, 0 in all others
    SPARSE_ACROSS = 13  # the same where lines of k run across memory


@dataclass(frozen=True, slots=True)
class Filling:
    """How an operand lies in its buffer and what it holds."""

    leading_dimension: int  # elements from one column to the next
    values: Values
    seed: int
    exponent: int = 0  # integers and small parts are multiplied by 2 to this; of special and sparse ones as they say
    shift: int | None = None  # elements past a multiple of 16 bytes where it begins; None where it lies as it may
    at_start: bool = False  # of its buffer, where that faults at its ends: else it ends where that does


_Factor = tuple[np.uint64, np.int64, np.int64, np.int32]


class Support:
    """The support kernels of one dtype and of its sums, loaded on a device, and the scratch memory of their reports.

    They take a matrix of complex numbers as one of real numbers with twice the rows.
    """

    def __init__(self, device: Device, binary_path: str, dtype_name: str) -> None:
        self._device = device
        dtype = dtype_named(dtype_name)
        names = {dtype.component.name, dtype.sum.component.name}
        self._fill = {name: device.load(binary_path, f"fill_{name}") for name in names}
        self._find_changes = {name: device.load(binary_path, f"find_changes_{name}") for name in names}
        self._find_parts = device.load(binary_path, f"find_parts_{dtype.reference_name}")
        self._add_parts = device.load(binary_path, f"add_parts_{dtype.reference_name}")
        self._compare = device.load(binary_path, f"compare_{dtype.reference_name}")
        self._keep_worst = device.load(binary_path, "keep_worst")
        self._parts_of_element, self._warp = dtype.parts, device.limits.warp_threads
        self._rows, self._columns = dtype.reference_tile
        self._most_blocks = device.limits.sms * SUPPORT_BLOCKS_PER_SM
        self._reference_blocks = device.limits.sms * REFERENCE_BLOCKS_PER_SM
        self._threads = device.support_threads
        self._reference_threads = self._reference_blocks * self._threads
        elements = REFERENCE_ROUNDS * self._reference_threads * self._rows * self._columns
        self._found = np.array(MOST_WATCHED * [[0, np.iinfo(np.uint64).max]], np.uint64)  # of no change
        sizes_bytes = (
            self._found.nbytes,
            self._reference_threads * WORST_NUMBERS * 8,
            elements * REFERENCE_BYTES * dtype.parts,
        )
        self._buffers: list[Buffer] = []
        try:
            self._buffers.extend(device.allocate(size) for size in sizes_bytes)
        except MemoryError:
            self.free()
            raise
        self._changes, self._scratch, self._parts = self._buffers

    def fill(self, name: str, reals: int, *arguments: np.generic) -> None:
        """Start `fill` on a buffer of `reals` numbers of the real Dtype of this name."""
        self._start(self._fill[name], reals, arguments)

    def look_for_changes(self, watched: Sequence[tuple[str, int, tuple[np.generic, ...]]]) -> None:
        """Start `find_changes` on buffers: the name of a real Dtype, how many numbers, and the kernel's arguments."""
        self._device.upload(self._found, self._changes)
        for place, (name, reals, arguments) in enumerate(watched):
            found = np.uint64(self._changes.address + place * self._found[0].nbytes)
            self._start(self._find_changes[name], reals, (*arguments, found))

    def changes(self) -> list[tuple[int, int]]:
        """Of each buffer that was looked at, when that has ended: how many numbers changed, and which first."""
        found = np.empty_like(self._found)
        self._device.download(self._changes, found)
        return [(int(count), int(first)) for count, first in found]

    def split(self, tiles: int, k: int, *, along_k: bool) -> tuple[int, int]:
        """Chunks in which each inner product of a C of `tiles` is computed, and how many share a stretch of k.

        There are enough chunks that every thread has work. Where both factors lie along k, neighbouring threads take
        neighbouring products if there are enough chunks for a warp.
        """
        chunks = max(1, min(REFERENCE_ROUNDS * self._reference_threads // tiles, k // LEAST_CHUNK))
        lanes = self._warp if along_k and chunks >= self._warp else 1
        return chunks // lanes * lanes, lanes

    def compare(
        self,
        m: int,
        n: int,
        k: int,
        *,
        alpha: complex,
        factors: tuple[_Factor, _Factor],
        result: tuple[np.generic, ...],
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Rows of worst ratio, its place, found, expected, and how many are wrong, each of some of the elements.

        `factors` are A and B with their strides and signs, `result` what the kernel `compare` takes between them and
        the inner products, where these are computed already.
        """
        (a, b), extents = factors, (np.int64(m), np.int64(n), np.int64(k))
        tiles = -(-m // self._rows) * -(-n // self._columns)
        one = self._parts_of_element
        chunks, lanes = self.split(tiles, k, along_k=a[2] == one and b[1] == one)
        parts, scratch = np.uint64(self._parts.address), np.uint64(self._scratch.address)
        if chunks > 1:
            arguments: tuple[np.generic, ...] = (*extents, *a, *b, np.int64(chunks), np.int64(lanes), parts)
            self._start(self._find_parts, tiles * chunks, arguments, most_blocks=self._reference_blocks)
            self._add_up(m * n * one, chunks)
        scale = (np.float64(alpha.real), np.float64(alpha.imag))
        arguments = (*extents, *scale, *a, *b, *result, parts if chunks > 1 else np.uint64(0), scratch)
        blocks = self._start(self._compare, tiles, arguments, most_blocks=self._reference_blocks)
        records = blocks * self._threads
        arguments = (np.int64(records), scratch)
        keepers = self._start(self._keep_worst, min(records, WORST_RECORDS), arguments) * self._threads
        self._device.synchronise()
        worst = np.empty((min(records, keepers), WORST_NUMBERS), np.float64)
        self._device.download(self._scratch, worst)
        return worst

    def _add_up(self, sums: int, chunks: int) -> None:
        """Add the chunks of each of `sums` up: where they are many, in several rounds."""
        while chunks > 1:
            kept = 1 if chunks <= FEW_CHUNKS else isqrt(chunks)
            arguments = (np.int64(sums), np.int64(chunks), np.int64(kept), np.uint64(self._parts.address))
            self._start(self._add_parts, sums * kept, arguments)
            chunks = kept

    def free(self) -> None:
        for buffer in self._buffers:
            buffer.free()

    def _start(
        self, kernel: Kernel, elements: int, arguments: tuple[np.generic, ...], *, most_blocks: int | None = None
    ) -> int:
        """Start the kernel with a thread for each element, or with most_blocks; returns its blocks."""
        blocks = min(most_blocks or self._most_blocks, -(-elements // SUPPORT_THREADS))
        kernel(arguments, blocks=blocks, threads=self._threads)
        return blocks


class Operand:
    """A matrix in a buffer of its own, placed anew for each check.

    `rows` and `columns` are those of the column-major matrix in memory: the transposed one of a row-major operand.
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
    ) -> None:
        """Its leading dimension is at most PADDING_ROWS + `padding` over `rows`."""
        self.name, self.rows, self.columns, self.row_major = name, rows, columns, row_major
        self._support, self._dtype = support, dtype
        back = 0 if device.faults_past_buffers else GUARD_ELEMENTS
        self._total = GUARD_ELEMENTS + self._extent(rows + PADDING_ROWS + padding) + back
        self._ends_at_buffer_end = device.faults_past_buffers
        if device.faults_past_buffers:  # so in whole pages, before which it faults too
            self._total += -self._total % (PAGESIZE // dtype.element_bytes)
        self.buffer: Buffer = device.allocate(self._total * dtype.element_bytes)
        self.filling = Filling(rows, Values.POISON, 0)

    def _extent(self, leading_dimension: int) -> int:
        """Elements from the first to the last of the matrix."""
        return leading_dimension * (self.columns - 1) + self.rows

    @property
    def front(self) -> int:
        """Elements of the buffer before the matrix."""
        shift, element_bytes = self.filling.shift, self._dtype.element_bytes
        if not self._ends_at_buffer_end:
            return GUARD_ELEMENTS + (shift or 0)
        if self.filling.at_start:
            return 0
        front = self._total - self._extent(self.filling.leading_dimension)
        if shift is None:
            return front
        past = self.buffer.address + (front - shift) * element_bytes
        return front - past % VECTOR_BYTES // element_bytes

    @property
    def address(self) -> int:
        """Of the matrix's first element."""
        return self.buffer.address + self.front * self._dtype.element_bytes

    @property
    def strides(self) -> tuple[np.int64, np.int64]:
        """Real numbers from one row of the operand to the next, and from one column to the next."""
        reals = self._dtype.parts
        one, line = np.int64(reals), np.int64(self.filling.leading_dimension * reals)
        return (line, one) if self.row_major else (one, line)

    def fill(self, filling: Filling) -> None:
        """Fill the matrix, and everything around it with poison."""
        self.filling = filling
        self._support.fill(self._dtype.component.name, self._total * self._dtype.parts, *self._whole_buffer())

    def look(self, *, matrix_too: bool) -> tuple[str, int, tuple[np.generic, ...]]:
        """What `Support.look_for_changes` takes: it looks around the matrix, and in it where `matrix_too`."""
        name, reals = self._dtype.component.name, self._dtype.parts
        return name, self._total * reals, (*self._whole_buffer(), np.int32(matrix_too))

    def first_change(self, real: int) -> str:
        """Where that number of the buffer is, in words."""
        return self._where(real // self._dtype.parts)

    def _whole_buffer(self) -> tuple[np.generic, ...]:
        reals = self._dtype.parts
        return (
            np.uint64(self.buffer.address),
            np.int64(self._total * reals),
            np.int64(self.front * reals),
            np.int64(self.rows * reals),
            np.int64(self.columns),
            np.int64(self.filling.leading_dimension * reals),
            np.int32(self.filling.values),
            np.uint64(self.filling.seed),
            np.int32(self.filling.exponent),
        )

    def _where(self, index: int) -> str:
        position = index - self.front
        if position < 0:
            return f"{-position} elements before {self.name}"
        past = position - self._extent(self.filling.leading_dimension) + 1
        if past > 0:
            return f"{past} elements past the end of {self.name}"
        column, row = divmod(position, self.filling.leading_dimension)
        if row >= self.rows:
            lines = "rows" if self.row_major else "columns"
            return f"between {lines} {column} and {column + 1} of {self.name}"
        i, j = (column, row) if self.row_major else (row, column)
        return f"{self.name}[{i}, {j}]"


class Operands:
    """A, B and C of one problem; of a Gram matrix A is B too. MemoryError where the device has not enough memory.

    `index_bits` is the width that the kernels to come were compiled with; `padding` says by how much more than
    PADDING_ROWS the leading dimensions of which operands may be padded.
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
        self.problem, self.support, self._index_bits = problem, support, index_bits
        dtype = problem.dtype
        made: dict[str, Operand] = {}
        along = dict(zip("ABC", problem.contiguous, strict=True))
        try:
            for name, (rows, columns) in problem.stored.items():
                row_major = along[name] == ("n" if name in "BC" else "k")
                more = (padding or {}).get(name, 0)
                made[name] = Operand(
                    device, self.support, name, rows, columns, dtype, row_major=row_major, padding=more
                )
        except MemoryError:
            for operand in made.values():
                operand.buffer.free()
            raise
        self.every = tuple(made.values())  # each once
        self.a, self.b, self.c = made["A"], made.get("B", made["A"]), made["C"]

    def free(self) -> None:
        for operand in self.every:
            operand.buffer.free()

    @property
    def factors(self) -> tuple[_Factor, _Factor]:
        """Of A and B: the address, elements from row to row and column to column, the sign of imaginary parts."""
        sign_a, sign_b = (np.int32(-1 if conjugated else 1) for conjugated in self.problem.conjugated)
        strides_b = self.a.strides[::-1] if self.problem.is_gram else self.b.strides
        return (
            (np.uint64(self.a.address), *self.a.strides, sign_a),
            (np.uint64(self.b.address), *strides_b, sign_b),
        )

    def arguments(self, alpha: complex | None = None, beta: complex | None = None) -> tuple[np.generic, ...]:
        """The arguments of a kernel of any family, as the operands lie now, up to its workspace.

        Without alpha and beta those of the product alone, which are the semiring's one and zero.
        """
        index = np.int32 if self._index_bits == 32 else np.int64
        factor, semiring = self.problem.dtype.factor, self.problem.dtype.semiring
        alpha, beta = (semiring.one if alpha is None else alpha), (semiring.zero if beta is None else beta)
        return (
            index(self.problem.m),
            index(self.problem.n),
            index(self.problem.k),
            factor(alpha),
            np.uint64(self.a.address),
            index(self.a.filling.leading_dimension),
            np.uint64(self.b.address),
            index(self.b.filling.leading_dimension),
            factor(beta),
            np.uint64(self.c.address),
            index(self.c.filling.leading_dimension),
        )


def needed_bytes(problem: Problem) -> int:
    """Device memory that verifying this problem takes, guard zones and padding included."""
    elements = sum((rows + PADDING_ROWS) * columns + 2 * GUARD_ELEMENTS for rows, columns in problem.stored.values())
    return elements * problem.dtype.element_bytes
