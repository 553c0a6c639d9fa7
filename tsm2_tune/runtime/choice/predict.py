"""Predict a kernel's time and its best launch for a shape that was not tuned.

A time has three parts: a start, which every launch has; the sums of the splits, if there are any; and the body, which
grows with the shape. The body combines three times, each as an edge of a box whose diagonal it is, since none hides
all of the others. They are the bytes at the memory's rate, the operations at the arithmetic rate, both longer if
blocks leave multiprocessors idle, and the serial part of the tiles. Measured times of a kernel differ from that by a
ratio. Elsewhere the ratio is predicted to be about that at the nearest measured shape.

All kernels for a product are evaluated at once. Numbers of kernels are columns of arrays. The possible launches of
each kernel, or the shapes where it was measured, are the elements of their rows.

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

SUMS_US = 2.0  # until the last block of a tile knows that it is, and has the sums of all
SUMS_RATE = 0.5  # of the memory's, at which they are written and read again
CACHED_RATE = 1.2  # of the memory's, at which lines are read again that may be in the L2: of most kernels
UNEVEN = 0.3  # of idle multiprocessors' share of the bandwidth, what the others cannot use instead
LEAST = 0.95  # of what the card's rates allow for the bytes alone, below which no kernel is expected
TURN_US = 0.5  # from one tile of C to the next that is computed in its place
ENOUGH = (
    0.5  # of the blocks on a multiprocessor where a kernel won: as many as could keep it busy if all were at work
)
MORE = 2.0  # times the blocks where it won, beyond which still more gain nothing
SPARE = 2.0  # at so many times fewer blocks than that, each time fewer takes as many times longer
BEYOND = 3.0  # times as long a kernel counts where k, not as where it won, is more than it sums up at once
DOUBT = 0.05  # a time counts as e to this longer, for each unit of distance from where the kernel was measured
HOST_DOUBT = 0.5  # the same of emulated kernels, whose times follow no card's rates
MOST_SPLITS = 65535  # blocks of a grid in y
MOST_ROWS = 2.0**30  # of a block
WAVES = np.array((1, 2, 3, 4, 5, 6, 8, 12, 16, 24))  # blocks on a multiprocessor that a split of k is tried for


@dataclass(frozen=True, slots=True)
class Division:
    """Into what a kernel divides its work, whatever the shape."""

    resident: int  # blocks that a multiprocessor holds at a time
    block_m: int  # of C; a block computes a whole number of such tiles, one below the other
    block_n: int  # of C; 0: all of them
    step: int  # products of a sum; every part of k but the last has a whole number of such steps; 0: k has no parts
    deepest: int  # products of a sum after which C is written, to be read and written again for the next; 0: all
    odd_lines: float  # how much longer the body is where lines of operands are not whole vectors
    longest: int = 0  # products of the longest part of k for which a block keeps its part of B; 0: any
    arithmetic_rate: float = 1.0  # of the card's, at which it multiplies
    cached_rate: float = CACHED_RATE  # of the memory's, at which it reads lines again that may be in the L2
    vector_bytes: int = VECTOR_BYTES  # lines that are whole vectors of so many bytes are not odd to it
    depth: int = 1  # products of a sum that are multiplied as a whole, with zeros behind the last
    width: int = 0  # columns of C that are multiplied as a whole, with zeros behind the last; 0: those of a tile
    flows: bool = False  # while a block computes a tile of C, loads of the next are in flight
    vectors_of_c: bool = False  # it has vectors of A and C, else of A and B: so whose lines may be odd


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured time of a kernel for a product with this launch."""

    work: Work
    rows_per_block: int
    splits: int
    us: float


class Kernels:
    """Kernels of one element type on one card, with what was measured of each."""

    def __init__(
        self,
        divisions: Sequence[Division],
        launches: Sequence[Launch],  # where each won
        won: Sequence[Work],
        measured: Sequence[Sequence[Measured]],  # there and elsewhere
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
        self._longest_sum = np.where(at.k > self._deepest, EVER, self._deepest)  # the longest k that it is for
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
        """Return the predicted times at the measured shapes by the card's rates alone: one row a kernel.

        A row is padded behind the kernel's own shapes.
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
        """Blocks on a multiprocessor, where a block has several tiles and all blocks ran at once; elsewhere 0."""
        return float(self._waves_won[at, 0]) if self._at_once[at, 0] else 0.0

    def us(self, launches: Sequence[Launch], work: Work | WorkTable) -> list[float]:
        """Return the expected time of each kernel started so."""
        started = _columns(launches, Launch)
        plain = self._us(self._tiles(work), work, started["rows_per_block"], started["splits"])
        times = self._carried_over(work, plain, self.interpolated.at(work, plain)[0])
        return [float(us) for us in times[:, 0]]

    def best(self, work: Work | WorkTable, doubt: float = DOUBT) -> tuple[int, Launch, float]:
        """Return the kernel that is expected to take least, by its place, its launch, and the time; of launches that
        take the same the one with the fewest blocks. A kernel that was measured far from here alone counts as e to
        the `doubt` longer for each unit of that distance: what sets it apart from others is less known.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        every = self._us(tiles, work, rows, splits)
        times, away = self._least_us(work, every)
        at = int((times * np.exp(doubt * away)).argmin())
        option = int(every[at].argmin())
        return at, self._started(at, int(rows[at, option]), int(splits[at, option])), float(times[at, 0])

    def ways(self, work: Work | WorkTable, of_kernel: int) -> list[tuple[int, Launch, float]]:
        """Return the kernels by their places, launches and expected times, those that are expected to take least
        first: of each kernel at most so many launches.
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
        """Return the launch of the kernel at this place with so many rows of a block, and splits."""
        launch = self._launches[at]
        if rows != launch.rows_per_block:
            launch = replace(launch, rows_per_block=rows)
        return launch if splits == launch.splits else launch.with_splits(splits)

    def least(self, work: Work | WorkTable) -> tuple[Floats, Floats]:
        """Return the predicted time of each kernel with its best launch, and its blocks, as columns.

        If k is beyond what a kernel is for, its time counts as longer.
        """
        tiles = self._tiles(work)
        rows, splits = self._options(tiles, work)
        every = self._us(tiles, work, rows, splits)
        blocks = np.broadcast_to(self._blocks(tiles, work, rows, splits), every.shape)
        return self._least_us(work, every)[0], np.take_along_axis(blocks, every.argmin(axis=1)[:, None], axis=1)

    def _least_us(self, work: Work | WorkTable, every: Floats) -> tuple[Floats, Floats]:
        """Return the same by the times of all launches, and how far away each kernel was measured."""
        plain = every.min(axis=1)[:, None]
        factors, away = self.interpolated.at(work, plain)
        beyond = np.where(work.k > self._longest_sum, BEYOND, 1.0)  # others have a better way there
        return self._carried_over(work, plain, factors) * beyond, away

    @staticmethod
    def _carried_over(work: Work | WorkTable, plain_us: Floats, factors: Floats) -> Floats:
        """Return the times with the factors by which measured ones differ, as far as the memory allows."""
        times: Floats = np.maximum(factors * plain_us, LEAST * work.memory_us)
        return times

    def _tiles(self, work: Work | WorkTable) -> Tiles:
        down, across = ceil(work.m / self._tile_rows), ceil(work.n / self._tile_columns)
        steps = ceil(work.k / self._step)
        return Tiles(down, across, steps, down * across * steps)

    def _options(self, tiles: Tiles, work: Work | WorkTable) -> tuple[Floats, Floats]:
        """Return the rows of a block, and splits, with which each kernel may be started.

        Splits of k: what gives a whole number of blocks to each multiprocessor, or just less. Rows: as many as where
        it won, but no more than leave every multiprocessor what it holds. A kernel whose blocks have several tiles
        and all ran at once where it won runs so here, with as few splits as keep B, or some more.
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
        """Return the blocks that have something to do."""
        of_tiles = ceil(work.m / rows) * ceil(work.n / self._columns) * splits
        return np.where(self._persistent, np.minimum(splits, tiles.pieces), of_tiles)

    def _fixed_us(self, work: Work | WorkTable, blocks: Floats, rows: Floats) -> Floats:
        """Return the start, and the sums of the splits."""
        sums = (
            np.minimum(np.where(self._persistent, self._tile_rows, rows), work.m)
            * np.minimum(self._tile_columns, work.n)
            * blocks
        )
        has_parts = self._has_workspace & (~self._persistent | (work.k > self._step))
        times: Floats = START_US + has_parts * (SUMS_US + 2 / SUMS_RATE * self._us_per_byte * sums)
        return times

    def _body_us(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats, rows: Floats, splits: Floats) -> Floats:
        """Return the body of kernels that are as fast as the card."""
        sms, (m, n, k) = self.card.sms, (work.m, work.n, work.k)
        keeps_b = ~self._persistent & (k <= self._longest * splits)  # for all tiles of a block
        again = (tiles.across - 1) * m * k + (np.where(keeps_b, ceil(m / rows), tiles.down) - 1) * k * n
        rewritten = 2 * floor((k - 1) / self._deepest) * m * n
        slower = CACHED_RATE / self._cached_rate  # than lines that are read again mostly are
        memory = work.memory_us + self._us_per_byte * slower * (again / CACHED_RATE + rewritten)
        multiplied = (ceil(n / self._width) * self._width) * (ceil(k / self._depth) * self._depth)
        whole = tiles.down * self._tile_rows * multiplied
        arithmetic = work.arithmetic_us / self._arithmetic_rate * (whole / (m * n * k))

        pieces = np.where(self._persistent, tiles.pieces, tiles.steps)
        parts = np.where(self._persistent, blocks, splits)
        share = ceil(pieces / parts) * parts / pieces
        waves = ceil(blocks / (sms * self._resident))
        most = np.where(waves > 1, waves * self._resident, ceil(blocks / sms))  # blocks of one multiprocessor
        longest = share * most * sms / blocks  # beside what all take on average
        idle = 1 + (blocks > sms) * UNEVEN * (longest - 1)
        memory = memory * idle * self._slowed(self.at_work / self._at_work(tiles, work, blocks))
        arithmetic = arithmetic * longest * self._slowed(self.busy / self._busy(blocks))
        turns = self._turns(tiles, work, blocks, splits)
        turns_us = TURN_US * (turns - 1)
        body: Floats = np.sqrt(memory * memory + arithmetic * arithmetic + turns_us * turns_us)
        return np.where(work.has_odd_lines, self._odd, 1.0) * body

    def _turns(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats, splits: Floats) -> Floats:
        """Return the tiles of C, and parts of k, that are computed one after the other where a block has its place.

        For blocks that load the next tile ahead, only the parts of k.
        """
        parts = np.where(self._persistent, 1.0, splits)
        each = tiles.down * tiles.across * parts / np.minimum(blocks, self.card.sms * self._resident)
        of_tiles = np.where(self._flows, 1.0, np.maximum(each, 1.0))
        turns: Floats = of_tiles * ceil(work.k / self._deepest)
        return turns

    def _slowed(self, fewer: Floats) -> Floats:
        """By how much so many times fewer blocks than where it won slow a multiprocessor down."""
        few: Floats = np.maximum(fewer, 1 / MORE)
        slower = np.sqrt(1.0 + ENOUGH * few * (ENOUGH * few)) / math.sqrt(1.0 + ENOUGH * ENOUGH)
        return np.maximum(few / self._spare, slower)

    def _busy(self, blocks: Floats) -> Floats:
        """Return the blocks at a time on a multiprocessor that has some."""
        return np.minimum(np.maximum(blocks / self.card.sms, 1.0), self._resident)

    def _at_work(self, tiles: Tiles, work: Work | WorkTable, blocks: Floats) -> Floats:
        """Return the blocks on a multiprocessor at a time, as far as their tiles are filled: what keeps the memory
        busy.

        Persistent blocks have rings, whose loads go on to the next piece.
        """
        filled: Floats = np.where(self._persistent, 1.0, work.m / (tiles.down * self._tile_rows))
        return np.minimum(blocks / self.card.sms, self._resident) * filled


class Tiles(NamedTuple):
    """How many there are, for each kernel."""

    down: Floats
    across: Floats
    steps: Floats  # along k
    pieces: Floats  # steps of all tiles, which persistent blocks share


def _columns(records: Sequence[Any], kind: type) -> dict[str, Floats]:
    """Field -> column of the records' values."""
    return {field.name: as_column([getattr(record, field.name) for record in records]) for field in fields(kind)}


def _or_all(extents: Floats) -> Floats:
    """Return the extents, 0 as one that is never exceeded."""
    return np.where(extents > 0, extents, EVER)
