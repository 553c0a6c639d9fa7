"""Interpolate measured times to other shapes.

Lines are the columns of a column-major matrix, or the rows of a row-major matrix. They are odd if the leading
dimension, in bytes, is not a multiple of the width of a kernel's vector loads. The distance between two shapes is
computed from the logarithms of m, n and k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tsm2_tune.runtime.choice.work import Floats, Work, WorkTable

START_US = 5.0  # fixed time of any kernel: until the first loads arrive, and after the last store
NEAR = 0.2  # added to distances, so that no single shape dominates; a factor of e in an extent is a distance of 1
ODD_AWAY = 2.0  # squared distance between a product with odd lines and one without
MOSTLY_START_US = 50.0  # the ratio at a measured time of START_US + this counts half for much longer times
VENDOR_TILE = (64.0, 32.0, 32.0)  # m, n and k of cuBLAS's tiles, to which it pads
VENDOR_RATE = 0.7  # cuBLAS's share of the GPU's arithmetic rate
VECTORS_EXTENT = 0.05  # replaces an extent of 1 in distances: cuBLAS multiplies vectors with other routines
ODD_VENDOR = 1.1  # factor on cuBLAS's time if lines are odd
EVER = 2.0**60  # larger than any extent


class Interpolated:
    """Ratios of measured to predicted times, interpolated to other shapes.

    The logarithm of a ratio is interpolated: it is the average of the logarithms at the measured shapes, weighted by
    the reciprocal cube of the distance. If a measured time is short, its ratio is mostly due to the kernel's fixed
    start time. Such a ratio therefore counts little in the prediction of a longer time.
    """

    def __init__(
        self,
        works: Sequence[Sequence[Work]],
        measured_us: Sequence[Sequence[float]],
        expected_us: Sequence[Sequence[float]],
    ) -> None:
        """Store for each kernel the work, the measured time and the predicted time at its measured shapes."""
        self._logs = [
            _padded([[math.log(getattr(work, extent)) for work in of] for of in works]) for extent in ("m", "n", "k")
        ]
        self._odd = _padded([[float(work.has_odd_lines) for work in of] for of in works])
        self._known = _padded([[1.0] * len(of) for of in works])
        ratios = [[a / b for a, b in zip(*of, strict=True)] for of in zip(measured_us, expected_us, strict=True)]
        self._ratios = _padded([[math.log(ratio) for ratio in of] for of in ratios])
        self._expected_us = np.maximum(_padded(expected_us), START_US)
        body_us = self._expected_us - START_US
        self._of_body = body_us / (body_us + MOSTLY_START_US)

    def points(self, kernel: int) -> list[tuple[float, ...]]:
        """Return a tuple for each measured shape of the kernel with this index.

        The tuple has the logarithms of m, n and k; 1 if a leading dimension is not a multiple of the vector loads,
        else 0; the predicted time in microseconds, at least START_US; and the logarithm of the ratio of measured to
        predicted time.
        """
        columns = (*self._logs, self._odd, self._expected_us, self._ratios)
        count = int(self._known[kernel].sum())
        return [tuple(float(column[kernel, at]) for column in columns) for at in range(count)]

    def at(self, work: Work | WorkTable, expected_us: Floats) -> tuple[Floats, Floats]:
        """Return each kernel's interpolated ratio for the work, and the distance to its nearest measured shape.

        Both are columns with a row for each kernel. `expected_us` is a column with the kernels' predicted times.
        """
        extents = (work.m, work.n, work.k)
        m, n, k = (
            known - (np.log(extent) if isinstance(extent, np.ndarray) else math.log(extent))
            for known, extent in zip(self._logs, extents, strict=True)
        )
        odd = self._odd - work.has_odd_lines
        away = np.sqrt(m * m + n * n + k * k + ODD_AWAY * odd * odd)
        near = away + NEAR
        weights = self._known / (near * near * near)
        ratios = self._ratios * (self._of_body + (1 - self._of_body) * np.minimum(self._expected_us / expected_us, 1))
        means = np.cumsum(weights * ratios, axis=1)[:, -1] / np.cumsum(weights, axis=1)[:, -1]
        nearest = np.where(self._known > 0, away, EVER).min(axis=1)
        return as_column([math.exp(mean) for mean in means]), nearest[:, None]


class Routines:
    """A predictor of cuBLAS's times, from measured times."""

    def __init__(self, works: Sequence[Work], measured_us: Sequence[float]) -> None:
        expected_us = list(map(self._plain_us, works))
        self.interpolated = Interpolated([list(map(_vectors_apart, works))], [measured_us], [expected_us])

    def us(self, work: Work) -> float:
        """Return cuBLAS's predicted time for the work, in microseconds."""
        plain_us = self._plain_us(work)
        factors, _ = self.interpolated.at(_vectors_apart(work), as_column([plain_us]))
        return float(factors[0, 0] * plain_us)

    @staticmethod
    def _plain_us(work: Work) -> float:
        m, n, k = extents = work.m, work.n, work.k
        if min(m, n) > 1:  # padded to tiles, unless it is a product with a vector
            m, n, k = (math.ceil(x / tile) * tile for x, tile in zip(extents, VENDOR_TILE, strict=True))
        arithmetic_us = work.arithmetic_us / VENDOR_RATE * (m * n * k / math.prod(extents))
        body_us = math.hypot(work.memory_us, arithmetic_us)
        return START_US + (ODD_VENDOR if work.has_odd_lines else 1.0) * body_us


def _vectors_apart(work: Work) -> Work:
    """Return the work with an m or n of 1 replaced by VECTORS_EXTENT.

    Products with a vector are then distant from other products.
    """
    return replace(work, m=VECTORS_EXTENT if work.m == 1 else work.m, n=VECTORS_EXTENT if work.n == 1 else work.n)


def _padded(rows: Sequence[Sequence[float]]) -> Floats:
    """Return the rows as a 2-d array, padded with zeros to equal length."""
    longest = max(map(len, rows))
    return np.array([[*row, *[0.0] * (longest - len(row))] for row in rows], np.float64)


def as_column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float64)[:, None]
