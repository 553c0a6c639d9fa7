"""Predict a kernel's time and its best launch for a shape that was not tuned.

A time has three parts: the start of any launch; the sums of the splits, if any; and the body, which grows with the
shape. The body is the root of the sum of squares of three times, since they overlap in part: memory traffic,
arithmetic, and the serial part of the tiles. The first two grow if multiprocessors are idle. The ratio of measured to
predicted times is interpolated from measured shapes (interpolation.py). `tuner/export/c/predict.c` is the same in C.

All kernels for a product are evaluated at once: arrays have a row a kernel, and in it a column a launch, or a column
a measured shape.

The constants were fitted to 1,033 measured winners on an H200. `python -m benchmarks.expected` prints the error of
the prediction from one shape that a kernel won to the nearest other one that it won.
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

SUMS_US = 2.0  # until the last block of a tile has arrived and read all partial sums
SUMS_RATE = 0.5  # of the memory's rate, for partial sums
CACHED_RATE = 1.2  # of the memory's rate, for lines that are reread and may be in the L2; typical
UNEVEN = 0.3  # share of idle multiprocessors' bandwidth that the others cannot use
LEAST = 0.95  # lower bound of a prediction, in units of the time for the memory traffic
TURN_US = 0.5  # between one tile of C and the next of the same block slot
ENOUGH = 0.5  # share of the resident blocks where a kernel won that could keep a multiprocessor busy
MORE = 2.0  # times the blocks where it won, beyond which more blocks gain nothing
SPARE = 2.0  # with so many times fewer blocks, time becomes inversely proportional to their number
BEYOND = 3.0  # penalty if k exceeds what the kernel sums at once, though not where it won
DOUBT = 0.05  # penalty: e to this for each unit of distance from the kernel's nearest measured shape
HOST_DOUBT = 0.5  # the same for emulated kernels, whose times follow no card's rates
MOST_SPLITS = 65535  # the largest grid in y
MOST_ROWS = 2.0**30  # rows of a block
WAVES = np.array((1, 2, 3, 4, 5, 6, 8, 12, 16, 24))  # blocks per multiprocessor for which splits of k are tried


@dataclass(frozen=True, slots=True)
class Division:
    """How a kernel divides its work, independent of the shape."""

    resident: int  # resident blocks per multiprocessor
    block_m: int  # rows of a tile of C; a block computes a whole number of tiles, one below the other
    block_n: int  # columns of a tile of C; 0: n
    step: int  # of k; each part of k but the last is a multiple; 0: k is not split
    deepest: int  # extent of k after which C is written, and then read again for the next part; 0: k
    odd_lines: float  # factor on the body if lines of operands are not whole vectors
    longest: int = 0  # largest part of k for which a block keeps its part of B; 0: any
    arithmetic_rate: float = 1.0  # share of the card's arithmetic rate
    cached_rate: float = CACHED_RATE  # of the memory's rate, for lines that are reread and may be in the L2
    vector_bytes: int = VECTOR_BYTES  # of its widest loads; other lines than multiples are odd
    depth: int = 1  # k is padded to a multiple with zeros
    width: int = 0  # n is padded to a multiple with zeros; 0: to a tile
    flows: bool = False  # loads for the next tile of C are in flight while a block computes one
    vectors_of_c: bool = False  # vectors are of A and C, else of A and B; odd lines are counted there


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured time of a kernel for a product with this launch."""

    work: Work
    rows_per_block: int
    splits: int
    us: float


class Kernels:
    """Predictions for kernels of one element type on one card."""

    def __init__(
        self,
        divisions: Sequence[Division],
        launches: Sequence[Launch],  # of each kernel where it won
        won: Sequence[Work],
        measured: Sequence[Sequence[Measured]],  # of each kernel where it won and elsewhere
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
        self._longest_sum = np.where(at.k > self._deepest, EVER, self._deepest)  # the largest k without penalty
        tiles = self._tiles(at)
        blocks = self._blocks(tiles, at, self._rows, self._splits)
        each = blocks / card.sms
        several = ~self._persistent & (self._rows > self._tile_rows)
        self._at_once, self._waves_won = several & (each <= self._resident), np.ceil(each)
        self.at_work, self.busy = self._at_work(tiles, at, blocks), self._busy(blocks)  # where it won
        expected = self.unmeasured_us(measured)
        self.interpolated = Interpolated(
            [[one.work for one in of] for of in measured],
            [[one.us for one in of] for of in measured],
            [[float(us) for us in expected[i, : len(of)]] for i, of in enumerate(measured)],
        )

    def unmeasured_us(self, measured: Sequence[Sequence[Measured]]) -> Floats:
        """Return the predictions from the card's rates alone at the measured shapes: a row a kernel, padded."""
        longest = max(map(len, measured))
        filled = [[*of, *[of[0]] * (longest - len(of))] for of in measured]
        work = WorkTable.of([[one.work for one in of] for of in filled])
        rows, splits = (
            np.array([[getattr(one, name) for one in of] for of in filled], np.float64)
            for name in ("rows_per_block", "splits")
        )
        return self._us(self._tiles(work), work, rows, splits)

    def waves_won(self, at: int) -> float:
        """Return the blocks per multiprocessor where it won, if all were resident and had several tiles; else 0."""
        return float(self._waves_won[at, 0]) if self._at_once[at, 0] else 0.0

    def us(self, launches: Sequence[Launch], work: Work | WorkTable) -> list[float]:
        """Return the predicted time of each kernel with its launch."""
        started = _columns(launches, Launch)
        plain = self._us(self._tiles(work), work, started["rows_per_block"], started["splits"])
        times = self._carried_over(work, plain, self.interpolated.at(work, plain)[0])
        return [float(us) for us in times[:, 0]]

    def best(self, work: Work | WorkTable, doubt: float = DOUBT) -> tuple[int, Launch, float]:
        """Return the index, launch and time of the kernel with the least predicted time.

        Of equal launches the one with the fewest blocks is taken. A kernel counts as e to the `doubt` slower for each
        unit of distance from its nearest measured shape, since its prediction is less certain there.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        every = self._us(tiles, work, rows, splits)
        times, away = self._least_us(work, every)
        at = int((times * np.exp(doubt * away)).argmin())
        option = int(every[at].argmin())
        return at, self._started(at, int(rows[at, option]), int(splits[at, option])), float(times[at, 0])

    def ways(self, work: Work | WorkTable, of_kernel: int) -> list[tuple[int, Launch, float]]:
        """Return index, launch and predicted time of kernels, fastest first; at most `of_kernel` launches of each."""
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
        """Return the kernel's launch with these rows per block and splits."""
        launch = self._launches[at]
        if rows != launch.rows_per_block:
            launch = replace(launch, rows_per_block=rows)
        return launch if splits == launch.splits else launch.with_splits(splits)

    def least(self, work: Work | WorkTable) -> tuple[Floats, Floats]:
        """Return each kernel's time with its best launch, and the launch's blocks, as columns.

        The time is penalised if k exceeds what the kernel is for.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        every = self._us(tiles, work, rows, splits)
        blocks = np.broadcast_to(self._blocks(tiles, work, rows, splits), every.shape)
        return self._least_us(work, every)[0], np.take_along_axis(blocks, every.argmin(axis=1)[:, None], axis=1)

    def _least_us(self, work: Work | WorkTable, every: Floats) -> tuple[Floats, Floats]:
        """Return each kernel's corrected least time, and the distance to its nearest measured shape."""
        plain = every.min(axis=1)[:, None]
        factors, away = self.interpolated.at(work, plain)
        beyond = np.where(work.k > self._longest_sum, BEYOND, 1.0)  # other kernels suit such k better
        return self._carried_over(work, plain, factors) * beyond, away

    @staticmethod
    def _carried_over(work: Work | WorkTable, plain_us: Floats, factors: Floats) -> Floats:
        """Return the times corrected by the interpolated ratios, but no less than the memory allows."""
        times: Floats = np.maximum(factors * plain_us, LEAST * work.memory_us)
        return times

    def _tiles(self, work: Work | WorkTable) -> Tiles:
        down, across = ceil(work.m / self._tile_rows), ceil(work.n / self._tile_columns)
        steps = ceil(work.k / self._step)
        return Tiles(down, across, steps, down * across * steps)

    def _options(self, tiles: Tiles, work: Work | WorkTable) -> tuple[Floats, Floats]:
        """Return the rows per block and the splits to try for each kernel.

        Splits give each multiprocessor a whole number of blocks, or just less. Rows are those where it won, or
        fewer, to fill all multiprocessors. A kernel whose blocks had several tiles and were all resident where it won
        gets such launches, with the fewest splits that keep B, or somewhat more.
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
        """Return the number of blocks with work."""
        of_tiles = ceil(work.m / rows) * ceil(work.n / self._columns) * splits
        return np.where(self._persistent, np.minimum(splits, tiles.pieces), of_tiles)

    def _fixed_us(self, work: Work | WorkTable, blocks: Floats, rows: Floats) -> Floats:
        """Return the time of the start and of the splits' sums."""
        sums = (
            np.minimum(np.where(self._persistent, self._tile_rows, rows), work.m)
            * np.minimum(self._tile_columns, work.n)
            * blocks
        )
        has_parts = self._has_workspace & (~self._persistent | (work.k > self._step))
        times: Floats = START_US + has_parts * (SUMS_US + 2 / SUMS_RATE * self._us_per_byte * sums)
        return times

    def _body_us(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats, rows: Floats, splits: Floats) -> Floats:
        """Return the time of the body at the card's rates."""
        sms, (m, n, k) = self.card.sms, (work.m, work.n, work.k)
        keeps_b = ~self._persistent & (
            k <= self._longest * splits
        )  # in registers or shared memory, for all tiles of a block
        again = (tiles.across - 1) * m * k + (np.where(keeps_b, ceil(m / rows), tiles.down) - 1) * k * n
        rewritten = 2 * floor((k - 1) / self._deepest) * m * n
        slower = CACHED_RATE / self._cached_rate  # than typical rereads
        memory = work.memory_us + self._us_per_byte * slower * (again / CACHED_RATE + rewritten)
        multiplied = (ceil(n / self._width) * self._width) * (ceil(k / self._depth) * self._depth)
        whole = tiles.down * self._tile_rows * multiplied
        arithmetic = work.arithmetic_us / self._arithmetic_rate * (whole / (m * n * k))

        pieces = np.where(self._persistent, tiles.pieces, tiles.steps)
        parts = np.where(self._persistent, blocks, splits)
        share = ceil(pieces / parts) * parts / pieces
        waves = ceil(blocks / (sms * self._resident))
        most = np.where(waves > 1, waves * self._resident, ceil(blocks / sms))  # blocks of the busiest multiprocessor
        longest = share * most * sms / blocks  # the busiest multiprocessor's work over the mean
        idle = 1 + (blocks > sms) * UNEVEN * (longest - 1)
        memory = memory * idle * self._slowed(self.at_work / self._at_work(tiles, work, blocks))
        arithmetic = arithmetic * longest * self._slowed(self.busy / self._busy(blocks))
        turns = self._turns(tiles, work, blocks, splits)
        turns_us = TURN_US * (turns - 1)
        body: Floats = np.sqrt(memory * memory + arithmetic * arithmetic + turns_us * turns_us)
        return np.where(work.has_odd_lines, self._odd, 1.0) * body

    def _turns(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats, splits: Floats) -> Floats:
        """Return the tiles of C, times the parts of k, that a block slot computes one after another.

        Blocks that load the next tile ahead count one tile.
        """
        parts = np.where(self._persistent, 1.0, splits)
        each = tiles.down * tiles.across * parts / np.minimum(blocks, self.card.sms * self._resident)
        of_tiles = np.where(self._flows, 1.0, np.maximum(each, 1.0))
        turns: Floats = of_tiles * ceil(work.k / self._deepest)
        return turns

    def _slowed(self, fewer: Floats) -> Floats:
        """Return the slowdown of a multiprocessor with so many times fewer blocks than where the kernel won."""
        few: Floats = np.maximum(fewer, 1 / MORE)
        slower = np.sqrt(1.0 + ENOUGH * few * (ENOUGH * few)) / math.sqrt(1.0 + ENOUGH * ENOUGH)
        return np.maximum(few / self._spare, slower)

    def _busy(self, blocks: Floats) -> Floats:
        """Return the resident blocks of a multiprocessor that has any."""
        return np.minimum(np.maximum(blocks / self.card.sms, 1.0), self._resident)

    def _at_work(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats) -> Floats:
        """Return the resident blocks per multiprocessor, weighted by how full their tiles are: they load memory.

        Persistent blocks count fully, since their loads go on to the next piece.
        """
        filled: Floats = np.where(self._persistent, 1.0, work.m / (tiles.down * self._tile_rows))
        return np.minimum(blocks / self.card.sms, self._resident) * filled


class Tiles(NamedTuple):
    """The numbers of tiles, steps and pieces of each kernel."""

    down: Floats
    across: Floats
    steps: Floats  # along k
    pieces: Floats  # steps of all tiles, which persistent blocks share


def _columns(records: Sequence[Any], kind: type) -> dict[str, Floats]:
    """Return field -> column with the records' values."""
    return {field.name: as_column([getattr(record, field.name) for record in records]) for field in fields(kind)}


def _or_all(extents: Floats) -> Floats:
    """Return the extents; 0 means no limit and becomes EVER."""
    return np.where(extents > 0, extents, EVER)
