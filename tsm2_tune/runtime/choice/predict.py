"""Predict a kernel's time and its best launch for a shape that was not tuned.

A kernel's time has three parts: the fixed start of any launch; adding up the partial sums of split-k; and the body,
which grows with the shape. The body is the root of the sum of the squares of three times, because they overlap in
part: memory traffic, arithmetic, and the serial part of the tiles. Memory traffic and arithmetic take longer if
multiprocessors are idle. The prediction is corrected by the ratio of measured to predicted times, interpolated from
measured shapes (interpolation.py). `core/predict.c` computes the same in C.

All kernels for a product are evaluated at once. Arrays have a row for each kernel, and a column for each launch or
for each measured shape.

The constants were fitted to 1,033 measured kernels on an H200. `python -m benchmarks.expected` prints the error of
predictions. For a kernel that was the fastest at several shapes, this benchmark predicts the time at each of these
shapes from the measured time at the nearest of the other shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy import ceil, floor

from tsm2_tune.runtime.choice.interpolation import EVER, START_US, Interpolated, as_column
from tsm2_tune.runtime.choice.launch import Launch
from tsm2_tune.runtime.choice.work import VECTOR_BYTES, Card, Floats, Work, WorkTable

SUMS_US = 2.0  # time until the last block of a tile has read all partial sums
SUMS_RATE = 0.5  # bandwidth of partial sums, as a share of the memory's read bandwidth
CACHED_RATE = 1.2  # typical bandwidth of rereads, which may hit the L2, relative to the memory's read bandwidth
UNEVEN = 0.3  # share of idle multiprocessors' bandwidth that the busy ones cannot use
LEAST = 0.95  # lower bound of a prediction, relative to the time for the memory traffic
TURN_US = 0.5  # time between two successive tiles of C, computed by one block or by the block that replaces it
ENOUGH = 0.5  # share of the resident blocks at the tuned shape that could keep a multiprocessor busy
MORE = 2.0  # more blocks than this many times those at the tuned shape gain nothing
SPARE = 2.0  # with this many times fewer blocks, time becomes inversely proportional to the number of blocks
BEYOND = 3.0  # factor on the time if k exceeds `Division.deepest`, unless k exceeded it at the tuned shape, too
DOUBT = 0.05  # a kernel counts as slower by e to this for each unit of distance from its nearest measured shape
HOST_DOUBT = 0.5  # DOUBT for kernels emulated on the CPU, whose times follow no GPU's rates
MOST_SPLITS = 65535  # the largest grid in y
MOST_ROWS = 2.0**30  # most rows that a block computes
WAVES = np.array((1, 2, 3, 4, 5, 6, 8, 12, 16, 24))  # blocks per multiprocessor to try when choosing splits of k


@dataclass(frozen=True, slots=True)
class Division:
    """A kernel's tile sizes and other properties that determine its time, independent of the shape.

    In the fields, lines are the columns of a column-major matrix, or the rows of a row-major matrix.
    """

    resident: int  # resident blocks per multiprocessor (occupancy)
    block_m: int  # rows of a tile of C; a block computes one or more tiles, one below the other
    block_n: int  # columns of a tile of C; 0: n
    step: int  # each split-k slice but the last is a multiple of this extent; 0: k is not split
    deepest: int  # largest extent of k after which C is written; for larger k, C is read and written again; 0: any
    odd_lines: float  # factor on the body's time if lines are not a multiple of the vector loads
    longest: int = 0  # largest split-k slice for which a block loads its part of B only once; 0: any
    arithmetic_rate: float = 1.0  # share of the GPU's arithmetic rate that the kernel can reach
    cached_rate: float = CACHED_RATE  # bandwidth of rereads, relative to the memory's read bandwidth
    vector_bytes: int = VECTOR_BYTES  # bytes of the widest loads; lines that are not a multiple are odd
    depth: int = 1  # k is padded with zeros to a multiple of this
    width: int = 0  # n is padded with zeros to a multiple of this; 0: of block_n
    flows: bool = False  # a block loads its next tile's operands while it computes a tile of C
    vectors_of_c: bool = False  # vectors access lines of A and C; False: of A and B


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured time of a kernel for one product with one launch, in microseconds."""

    work: Work
    rows_per_block: int
    splits: int
    us: float


class Kernels:
    """A predictor of times of kernels for one element type on one GPU.

    Arrays that are called columns have a row for each kernel. In names, "won" refers to a kernel's tuned shape.
    """

    def __init__(
        self,
        divisions: Sequence[Division],
        launches: Sequence[Launch],  # each kernel's launch at its tuned shape
        won: Sequence[Work],  # each kernel's work at its tuned shape
        measured: Sequence[Sequence[Measured]],  # each kernel's times at its tuned shape and at others
        card: Card,
    ) -> None:
        self.card, self._launches = card, launches
        self._us_per_byte = won[0].element_bytes * 1e-3 / card.read_gbytes_per_s
        division, started = _columns(divisions, Division), _columns(launches, Launch)
        self._resident, self._odd = division["resident"], division["odd_lines"]
        self._step, self._flows = _or_all(division["step"]), division["flows"] > 0
        self._tile_rows, self._tile_columns = division["block_m"], _or_all(division["block_n"])
        self._deepest, self._columns = _or_all(division["deepest"]), _or_all(started["columns_per_block"])
        self._rows, self._splits = started["rows_per_block"], started["splits"]
        self._longest, self._depth = _or_all(division["longest"]), division["depth"]
        width = np.where(division["width"] > 0, division["width"], division["block_n"])
        self._width = np.maximum(width, 1.0)
        self._arithmetic_rate, self._cached_rate = division["arithmetic_rate"], division["cached_rate"]
        self._persistent = started["persistent"] > 0
        self._spare = np.where(self._persistent, 1.0, SPARE)
        self._row_tiles, self._has_row_tiles = floor(self._rows / self._tile_rows), self._rows > self._tile_rows
        self._most_tiles = floor(MOST_ROWS / self._tile_rows)
        self._all_at_work = np.minimum(WAVES, np.maximum(floor(self._splits / card.sms), 1)) * card.sms
        self._has_workspace = as_column([launch.has_workspace for launch in launches]) > 0
        at = WorkTable.of([[one] for one in won])
        self._longest_sum = np.where(at.k > self._deepest, EVER, self._deepest)  # largest k without BEYOND
        tiles = self._tiles(at)
        blocks = self._blocks(tiles, at, self._rows, self._splits)
        each = blocks / card.sms
        several = ~self._persistent & (self._rows > self._tile_rows)
        self._at_once, self._waves_won = several & (each <= self._resident), np.ceil(each)
        self.at_work, self.busy = self._at_work(tiles, at, blocks), self._busy(blocks)  # at the tuned shapes
        expected = self.unmeasured_us(measured)
        self.interpolated = Interpolated(
            [[one.work for one in of] for of in measured],
            [[one.us for one in of] for of in measured],
            [[float(us) for us in expected[i, : len(of)]] for i, of in enumerate(measured)],
        )

    def unmeasured_us(self, measured: Sequence[Sequence[Measured]]) -> Floats:
        """Return the times at the measured shapes, predicted only from the GPU's rates, without interpolation.

        The array has a row for each kernel; short rows are padded.
        """
        longest = max(map(len, measured))
        filled = [[*of, *[of[0]] * (longest - len(of))] for of in measured]
        work = WorkTable.of([[one.work for one in of] for of in filled])
        rows, splits = (
            np.array([[getattr(one, name) for one in of] for of in filled], np.float64)
            for name in ("rows_per_block", "splits")
        )
        return self._us(self._tiles(work), work, rows, splits)

    def waves_won(self, at: int) -> float:
        """Return the blocks per multiprocessor at the tuned shape of the kernel with this index.

        Return 0 unless all blocks were resident at once and each computed several tiles.
        """
        return float(self._waves_won[at, 0]) if self._at_once[at, 0] else 0.0

    def us(self, launches: Sequence[Launch], work: Work | WorkTable) -> list[float]:
        """Return the predicted time of each kernel with its launch, in microseconds."""
        started = _columns(launches, Launch)
        plain = self._us(self._tiles(work), work, started["rows_per_block"], started["splits"])
        times = self._carried_over(work, plain, self.interpolated.at(work, plain)[0])
        return [float(us) for us in times[:, 0]]

    def best(self, work: Work | WorkTable, doubt: float = DOUBT) -> tuple[int, Launch, float]:
        """Return the index, launch and time (in microseconds) of the kernel with the least predicted time.

        Of launches with equal times, the one with the fewest blocks is chosen. When kernels are compared, a kernel's
        time is multiplied by exp(`doubt`) for each unit of distance to the kernel's nearest measured shape, because
        predictions are less certain at larger distances.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        every = self._us(tiles, work, rows, splits)
        times, away = self._least_us(work, every)
        at = int((times * np.exp(doubt * away)).argmin())
        option = int(every[at].argmin())
        return at, self._started(at, int(rows[at, option]), int(splits[at, option])), float(times[at, 0])

    def ways(self, work: Work | WorkTable, of_kernel: int) -> list[tuple[int, Launch, float]]:
        """Return tuples of kernel index, launch and predicted time in microseconds, fastest first.

        Each kernel has at most `of_kernel` launches in the list.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        plain = self._us(tiles, work, rows, splits)
        longer = self._least_us(work, plain)[0] / plain.min(axis=1)[:, None]
        rows, splits, times = np.broadcast_arrays(rows, splits, plain * longer)
        found: list[dict[tuple[int, int], float]] = [{} for _ in self._launches]
        for at, option in zip(*np.unravel_index(times.argsort(axis=None, kind="stable"), times.shape), strict=True):
            of, way = found[at], (int(rows[at, option]), int(splits[at, option]))
            if len(of) < of_kernel and way not in of:
                of[way] = float(times[at, option])
        every = [(at, self._started(at, *way), us) for at, of in enumerate(found) for way, us in of.items()]
        return sorted(every, key=lambda one: one[2])

    def _started(self, at: int, rows: int, splits: int) -> Launch:
        """Return the launch of the kernel with this index, with these rows per block and splits."""
        launch = self._launches[at]
        if rows != launch.rows_per_block:
            launch = replace(launch, rows_per_block=rows)
        return launch if splits == launch.splits else launch.with_splits(splits)

    def least(self, work: Work | WorkTable) -> tuple[Floats, Floats]:
        """Return two columns: each kernel's predicted time with its best launch, and that launch's number of blocks.

        The time is multiplied by BEYOND if k is larger than the kernel is designed for.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        every = self._us(tiles, work, rows, splits)
        blocks = np.broadcast_to(self._blocks(tiles, work, rows, splits), every.shape)
        return self._least_us(work, every)[0], np.take_along_axis(blocks, every.argmin(axis=1)[:, None], axis=1)

    def _least_us(self, work: Work | WorkTable, every: Floats) -> tuple[Floats, Floats]:
        """Return two columns: each kernel's least time, corrected, and the distance to its nearest measured shape.

        `every` has the times predicted from the GPU's rates, a column for each launch. The least of each row is
        multiplied by the interpolated ratio of measured to predicted times.
        """
        plain = every.min(axis=1)[:, None]
        factors, away = self.interpolated.at(work, plain)
        beyond = np.where(work.k > self._longest_sum, BEYOND, 1.0)  # other kernels suit so large a k better
        return self._carried_over(work, plain, factors) * beyond, away

    @staticmethod
    def _carried_over(work: Work | WorkTable, plain_us: Floats, factors: Floats) -> Floats:
        """Return the times multiplied by the interpolated ratios.

        A result is not less than LEAST times the time for the memory traffic.
        """
        times: Floats = np.maximum(factors * plain_us, LEAST * work.memory_us)
        return times

    def _tiles(self, work: Work | WorkTable) -> Tiles:
        down, across = ceil(work.m / self._tile_rows), ceil(work.n / self._tile_columns)
        steps = ceil(work.k / self._step)
        return Tiles(down, across, steps, down * across * steps)

    def _options(self, tiles: Tiles, work: Work | WorkTable) -> tuple[Floats, Floats]:
        """Return the rows per block and the splits of k to try, arrays with a row for each kernel.

        For each number in WAVES, the splits result in about this number of blocks per multiprocessor. The rows per
        block are those at the tuned shape, or fewer if the grid would not fill all multiprocessors. If, at a kernel's
        tuned shape, all blocks were resident at once and each computed several tiles, only such launches are tried
        for this kernel. The splits are then multiples of the least number with which a block loads its part of B only
        once.
        """
        sms, across = self.card.sms, ceil(work.n / self._columns)
        filling = floor(tiles.down * across * self._splits / (sms * self._resident))
        rows = np.maximum(np.minimum(self._row_tiles, filling), 1) * self._tile_rows
        rows = np.where(self._has_row_tiles, rows, self._rows)
        blocks = ceil(work.m / rows) * across
        most = np.minimum(tiles.steps, MOST_SPLITS)
        of_tiles = np.minimum(np.maximum(floor(WAVES * sms / blocks), 1), most)
        of_all = np.minimum(self._all_at_work, tiles.pieces)
        fewest = np.where(self._has_workspace, ceil(work.k / self._longest), 1.0)
        at_once = np.where(self._has_workspace, np.minimum(fewest * WAVES, most), 1.0)
        of_block = ceil(tiles.down * across * at_once / (sms * self._waves_won))
        of_block = np.minimum(np.maximum(of_block, 1), np.minimum(tiles.down, self._most_tiles))
        rows = np.where(self._at_once, of_block * self._tile_rows, rows)
        splits = np.where(self._persistent, of_all, np.where(self._at_once, at_once, of_tiles))
        return rows, np.where(self._has_workspace, splits, 1.0)

    def _us(self, tiles: Tiles, work: Work | WorkTable, rows: Floats, splits: Floats) -> Floats:
        blocks = self._blocks(tiles, work, rows, splits)
        times: Floats = self._fixed_us(work, blocks, rows) + self._body_us(tiles, work, blocks, rows, splits)
        return times

    def _blocks(self, tiles: Tiles, work: Work | WorkTable, rows: Floats, splits: Floats) -> Floats:
        """Return the number of blocks that have any work."""
        of_tiles = ceil(work.m / rows) * ceil(work.n / self._columns) * splits
        return np.where(self._persistent, np.minimum(splits, tiles.pieces), of_tiles)

    def _fixed_us(self, work: Work | WorkTable, blocks: Floats, rows: Floats) -> Floats:
        """Return the time of the launch's start, plus that of adding up the partial sums of split-k."""
        sums = (
            np.minimum(np.where(self._persistent, self._tile_rows, rows), work.m)
            * np.minimum(self._tile_columns, work.n)
            * blocks
        )
        has_parts = self._has_workspace & (~self._persistent | (work.k > self._step))
        times: Floats = START_US + has_parts * (SUMS_US + 2 / SUMS_RATE * self._us_per_byte * sums)
        return times

    def _body_us(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats, rows: Floats, splits: Floats) -> Floats:
        """Return the time of the body: memory traffic, arithmetic and serial tiles at the GPU's rates."""
        sms, (m, n, k) = self.card.sms, (work.m, work.n, work.k)
        keeps_b = ~self._persistent & (
            k <= self._longest * splits
        )  # a block loads its part of B once, and keeps it for all its tiles
        again = (tiles.across - 1) * m * k + (np.where(keeps_b, ceil(m / rows), tiles.down) - 1) * k * n
        rewritten = 2 * floor((k - 1) / self._deepest) * m * n
        slower = CACHED_RATE / self._cached_rate  # relative to typical rereads
        memory = work.memory_us + self._us_per_byte * slower * (again / CACHED_RATE + rewritten)
        multiplied = (ceil(n / self._width) * self._width) * (ceil(k / self._depth) * self._depth)
        whole = tiles.down * self._tile_rows * multiplied
        arithmetic = work.arithmetic_us / self._arithmetic_rate * (whole / (m * n * k))

        pieces = np.where(self._persistent, tiles.pieces, tiles.steps)
        parts = np.where(self._persistent, blocks, splits)
        share = ceil(pieces / parts) * parts / pieces
        waves = ceil(blocks / (sms * self._resident))
        most = np.where(waves > 1, waves * self._resident, ceil(blocks / sms))  # blocks of the busiest multiprocessor
        longest = share * most * sms / blocks  # work of the busiest multiprocessor, relative to the mean
        idle = 1 + (blocks > sms) * UNEVEN * (longest - 1)
        memory = memory * idle * self._slowed(self.at_work / self._at_work(tiles, work, blocks))
        arithmetic = arithmetic * longest * self._slowed(self.busy / self._busy(blocks))
        turns = self._turns(tiles, work, blocks, splits)
        turns_us = TURN_US * (turns - 1)
        body: Floats = np.sqrt(memory * memory + arithmetic * arithmetic + turns_us * turns_us)
        return np.where(work.has_odd_lines, self._odd, 1.0) * body

    def _turns(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats, splits: Floats) -> Floats:
        """Return how many tiles of C are computed one after another in the place of one resident block.

        If k exceeds `deepest`, each tile counts once for every `deepest` elements of k. If a block loads its next
        tile in advance, the tiles of the block count as a single tile.
        """
        parts = np.where(self._persistent, 1.0, splits)
        each = tiles.down * tiles.across * parts / np.minimum(blocks, self.card.sms * self._resident)
        of_tiles = np.where(self._flows, 1.0, np.maximum(each, 1.0))
        turns: Floats = of_tiles * ceil(work.k / self._deepest)
        return turns

    def _slowed(self, fewer: Floats) -> Floats:
        """Return the factor on a time if this launch keeps fewer blocks busy than the launch at the tuned shape.

        `fewer` is the measure of busy blocks at the tuned shape, divided by the measure for this launch.
        """
        few: Floats = np.maximum(fewer, 1 / MORE)
        slower = np.sqrt(1.0 + ENOUGH * few * (ENOUGH * few)) / math.sqrt(1.0 + ENOUGH * ENOUGH)
        return np.maximum(few / self._spare, slower)

    def _busy(self, blocks: Floats) -> Floats:
        """Return the mean number of resident blocks on the multiprocessors that have at least one."""
        return np.minimum(np.maximum(blocks / self.card.sms, 1.0), self._resident)

    def _at_work(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats) -> Floats:
        """Return the resident blocks per multiprocessor times the filled share of their tiles' rows.

        This is a measure of the loads in flight. Persistent blocks count fully, because they load continuously.
        """
        filled: Floats = np.where(self._persistent, 1.0, work.m / (tiles.down * self._tile_rows))
        return np.minimum(blocks / self.card.sms, self._resident) * filled


class Tiles(NamedTuple):
    """The numbers of tiles and steps of a product, columns with a row for each kernel."""

    down: Floats  # tiles along m
    across: Floats  # tiles along n
    steps: Floats  # steps along k
    pieces: Floats  # steps of all tiles together, which persistent blocks divide among themselves


def _columns(records: Sequence[Any], kind: type) -> dict[str, Floats]:
    """Return a dict: name of a field of the dataclass `kind` -> column with the records' values of this field."""
    return {field.name: as_column([getattr(record, field.name) for record in records]) for field in fields(kind)}


def _or_all(extents: Floats) -> Floats:
    """Return the extents with each 0, which means no limit, replaced by EVER."""
    return np.where(extents > 0, extents, EVER)
