"""Launch the support kernels, the tuner's own kernels that verify the results of tuned kernels.

They fill matrices with test values, compute a reference product, and compare C with it. Reports stay in device memory
until they are read, so several calls can be queued at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.generator.source import MOST_PLACED, REFERENCE_BLOCKS_PER_SM, SUPPORT_THREADS
from tsm2_tune.tuner.device.interface import Buffer, Device, Kernel, LaunchConfig

SUPPORT_BLOCKS_PER_SM = 8
REFERENCE_ROUNDS = 4  # tiles of C, or their slices along k, for each thread that computes the reference
LEAST_CHUNK = 64  # least length of a slice along k
FEW_CHUNKS = 64  # most slices that one thread adds up
REFERENCE_BYTES = 3 * 8  # bytes of a partial sum of a real inner product
WORST_NUMBERS = 5  # numbers in a record, which `compare` writes for each thread
WORST_RECORDS = SUPPORT_THREADS  # most records of a call that are downloaded
WORD_BYTES = 2  # of the kernel that compares bits; the size of every buffer of elements is a multiple of it
FEW_RECORDS = 16 * WORST_RECORDS  # most records that one block reduces

# Address, row stride, column stride, distance between a batch's matrices, and sign.
Factor = tuple[np.uint64, np.int64, np.int64, np.int64, np.int32]
_PLACED = Struct("=Q7qQ4i")  # the structure that the support kernels receive: see their text


class Placed(NamedTuple):
    """An argument of support kernels: a batch of matrices of real numbers in a buffer, and the values in them."""

    component: str  # name of the real element type
    buffer: int  # address of the buffer
    total: int  # numbers in the buffer
    front: int  # numbers before the matrix
    rows: int
    columns: int
    leading_dimension: int
    batch: int  # matrices
    apart: int  # columns from the start of a matrix to the start of the next
    seed: int
    values: int  # kind of the test values
    exponent: int


Look = tuple[Placed, bool]  # a matrix whose buffer must not change outside it; True: nor inside it


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters in a device buffer. A correct kernel leaves all of them at 0."""

    buffer: Buffer
    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of the support kernels after one call of a tuned kernel."""

    changes: list[list[int]]  # for each watched buffer: how many numbers changed, and the index of the first
    counters: int  # the number of counters that are not 0
    first_counter: tuple[int, int]  # index and value of the first nonzero counter
    worst: npt.NDArray[np.float64]  # rows: worst ratio, its index, found, expected, number of wrong elements


class Support:
    """The support kernels for one element type, loaded on a device, with the memory of their reports.

    A complex matrix is passed to the support kernels as a real matrix with twice the rows.
    """

    def __init__(self, device: Device, code: bytes, dtype_name: str) -> None:
        self._device = device
        dtype = dtype_named(dtype_name)
        self._component = dtype.component.name
        self._fill = device.load(code, f"fill_{self._component}")
        self._find_changes = device.load(code, f"find_changes_{self._component}")
        self._find_counters = device.load(code, "find_counters")
        self._find_parts = device.load(code, f"find_parts_{dtype.reference_name}")
        self._add_parts = device.load(code, f"add_parts_{dtype.reference_name}")
        self._compare = device.load(code, f"compare_{dtype.reference_name}")
        self._keep_worst = device.load(code, "keep_worst")
        self._compare_bits = device.load(code, "compare_bits")
        self._parts_of_element, self._warp = dtype.parts, device.limits.warp_threads
        self._rows, self._columns = dtype.reference_tile
        self._most_blocks = device.limits.sms * SUPPORT_BLOCKS_PER_SM
        self._reference_blocks = device.limits.sms * REFERENCE_BLOCKS_PER_SM
        self._threads = device.support_threads
        self._reference_threads = self._reference_blocks * self._threads
        elements = REFERENCE_ROUNDS * self._reference_threads * self._rows * self._columns
        nothing = [0, np.iinfo(np.uint64).max]
        self._nothing = np.array(device.calls_ahead * [(MOST_PLACED + 1) * [nothing]], np.uint64)
        self._found = self._nothing.copy()
        self._worst = np.empty((device.calls_ahead, WORST_RECORDS, WORST_NUMBERS), np.float64)
        self._watched, self._records = device.calls_ahead * [0], device.calls_ahead * [0]
        sizes_bytes = (
            self._found.nbytes,
            self._worst.nbytes,
            self._reference_threads * WORST_NUMBERS * 8,
            elements * REFERENCE_BYTES * dtype.parts,
        )
        self._buffers: list[Buffer] = []
        try:
            self._buffers.extend(device.allocate(size) for size in sizes_bytes)
        except MemoryError:
            self.free()
            raise
        self._changes, self._kept, self._scratch, self._parts = self._buffers

    def fill(self, placed: Sequence[Placed]) -> None:
        """Launch a kernel that fills these matrices (at most MOST_PLACED) with their test values."""
        self._start_on(self._fill, [(one, False) for one in placed])

    def begin_reports(self) -> None:
        """Clear all reports in device memory. Call this before the first of several launches of a tuned kernel."""
        self._device.upload(self._nothing, self._changes)

    def look_for_changes(self, looks: Sequence[Look], counters: Counters | None, *, place: int) -> None:
        """Launch kernels that search the buffers for changed numbers, and the counters for values other than 0.

        The kernels also reset the counters to 0. They write the report with the index `place`.
        """
        self._watched[place] = len(looks)
        first = self._changes.address + place * self._found[0].nbytes
        self._start_on(self._find_changes, looks, np.uint64(first))
        if counters is not None:
            found = np.uint64(first + MOST_PLACED * self._found[0, 0].nbytes)
            arguments = (np.uint64(counters.buffer.address), np.int64(counters.count), found)
            self._start(self._find_counters, counters.count, arguments)

    def reports(self, places: int) -> list[Report]:
        """Wait for the device, and return the reports with the first `places` indices."""
        self._device.synchronise()
        self._device.download(self._changes, self._found)
        self._device.download(self._kept, self._worst[:places])
        return [self._report(place, found) for place, found in enumerate(self._found[:places].tolist())]

    def _report(self, place: int, found: list[list[int]]) -> Report:
        changes, (left, first) = found[: self._watched[place]], found[-1]
        worst = self._worst[place, : self._records[place]].copy()
        return Report(changes, left, divmod(first, 2**32), worst)

    def compare_bits(self, result: Buffer, first: Buffer, launch: int | None) -> None:
        """Launch a kernel that compares a result with `first`, a buffer of the same size, bit for bit.

        `launch` is the number of its launch. If it is None, the kernel copies the result to `first`.
        """
        words = result.size_bytes // WORD_BYTES
        arguments = (
            np.uint64(result.address), np.uint64(first.address), np.int64(words), np.int32(launch is None),
            np.int64(launch or 0), np.uint64(self._changes.address),
        )  # fmt: skip
        self._start(self._compare_bits, words, arguments)

    def differing_launch(self) -> int | None:
        """Wait for the device. Return the least number of a launch whose result differed since `begin_reports`."""
        self._device.synchronise()
        self._device.download(self._changes, self._found)
        words, launch = self._found[0, 0].tolist()
        return launch if words else None

    def split(self, tiles: int, k: int, *, along_k: bool) -> tuple[int, int]:
        """Return the number of slices into which the reference splits k, and how many slices are interleaved.

        If k is long enough, there are enough slices for all threads. `along_k` says that k is contiguous in both
        factors. Then the threads of a warp read neighbouring elements of interleaved slices.
        """
        chunks = max(1, min(REFERENCE_ROUNDS * self._reference_threads // tiles, k // LEAST_CHUNK))
        lanes = self._warp if along_k and chunks >= self._warp else 1
        return chunks // lanes * lanes, lanes

    def compare(
        self,
        m: int,
        n: int,
        k: int,
        batch: int,
        *,
        alpha: complex,
        factors: tuple[Factor, Factor],
        result: tuple[np.generic, ...],
        place: int,
    ) -> None:
        """Launch kernels that compute the reference products of a batch and compare each C with its product.

        `factors` are A and B with their strides and signs. `result` contains the kernel arguments that describe C.
        `place` is the index of the report.
        """
        (a, b), extents = factors, (np.int64(m), np.int64(n), np.int64(k), np.int64(batch))
        tiles = batch * -(-m // self._rows) * -(-n // self._columns)
        one = self._parts_of_element
        chunks, lanes = self.split(tiles, k, along_k=a[2] == one and b[1] == one)
        parts = np.uint64(self._parts.address)
        if chunks > 1:
            arguments: tuple[np.generic, ...] = (*extents, *a, *b, np.int64(chunks), np.int64(lanes), parts)
            self._start(self._find_parts, tiles * chunks, arguments, most_blocks=self._reference_blocks)
            self._add_up(batch * m * n * one, chunks)
        scale = (np.float64(alpha.real), np.float64(alpha.imag))
        records = self._blocks(tiles, self._reference_blocks) * self._threads
        kept = np.uint64(self._kept.address + place * self._worst[0].nbytes)
        worst = kept if records <= WORST_RECORDS else np.uint64(self._scratch.address)
        arguments = (*extents, *scale, *a, *b, *result, parts if chunks > 1 else np.uint64(0), worst)
        self._start(self._compare, tiles, arguments, most_blocks=self._reference_blocks)
        self._records[place] = self._put_together(records, worst, kept)

    def _put_together(self, records: int, worst: np.uint64, kept: np.uint64) -> int:
        """Reduce the records at `worst` to at most WORST_RECORDS records at `kept`. Return the number of records."""
        while worst != kept:
            fewer = FEW_RECORDS if records > FEW_RECORDS else WORST_RECORDS
            to = worst if records > FEW_RECORDS else kept
            blocks = self._start(self._keep_worst, fewer, (np.int64(records), worst, to))
            records, worst = min(records, blocks * self._threads), to
        return records

    def _add_up(self, sums: int, chunks: int) -> None:
        """Add up the `chunks` partial sums of each of `sums` inner products, in several rounds if there are many."""
        while chunks > 1:
            kept = 1 if chunks <= FEW_CHUNKS else isqrt(chunks)
            arguments = (np.int64(sums), np.int64(chunks), np.int64(kept), np.uint64(self._parts.address))
            self._start(self._add_parts, sums * kept, arguments)
            chunks = kept

    def free(self) -> None:
        for buffer in self._buffers:
            buffer.free()

    def _blocks(self, elements: int, most: int) -> int:
        """Return the number of blocks that contain one thread for each element, but at most `most`."""
        return min(most, -(-elements // SUPPORT_THREADS))

    def _start_on(self, kernel: Kernel, looks: Sequence[Look], *more: np.generic) -> None:
        """Launch a kernel whose first argument is an array of matrices. `more` are its other arguments."""
        packed = [_PLACED.pack(*one[1:], one.component != self._component, matrix_too) for one, matrix_too in looks]
        several = np.void(b"".join(packed).ljust(MOST_PLACED * _PLACED.size, b"\0"))
        blocks = self._blocks(max(one.total for one, _ in looks), self._most_blocks)
        kernel((several, *more), LaunchConfig(blocks, self._threads, splits=len(looks)))

    def _start(
        self, kernel: Kernel, elements: int, arguments: tuple[np.generic, ...], *, most_blocks: int | None = None
    ) -> int:
        """Launch the kernel with one thread for each element, but with at most `most_blocks` blocks."""
        blocks = self._blocks(elements, most_blocks or self._most_blocks)
        kernel(arguments, LaunchConfig(blocks, self._threads))
        return blocks
