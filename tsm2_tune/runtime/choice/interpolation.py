"""Interpolate measured times to other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tsm2_tune.runtime.choice.work import Floats, Work, WorkTable

START_US = 5.0  # fixed time of any kernel: until the first loads arrive, and after the last store
NEAR = 0.2  # added to distances, so that no single shape dominates; a factor of e in an extent is a distance of 1
ODD_AWAY = 2.0  # squared distance between lines of whole vectors and other lines
MOSTLY_START_US = 50.0  # body time whose ratio counts half at longer times
VENDOR_TILE = (64.0, 32.0, 32.0)  # m, n and k of the tiles to which the vendor pads
VENDOR_RATE = 0.7  # of the card's arithmetic rate
VECTORS_EXTENT = 0.05  # in distances, for an extent of 1: the vendor multiplies vectors by another routine
ODD_VENDOR = 1.1  # factor on the vendor's time if lines are not whole vectors
EVER = 2.0**60  # larger than any extent


class Interpolated:
    """Ratios of measured to predicted times, interpolated to other shapes.

    It averages the logarithms of the ratios, weighted by the reciprocal cube of the distance. The ratio of a short
    time comes mostly from the kernel's start, so it counts little at a longer time.
    """

    def __init__(
        self,
        works: Sequence[Sequence[Work]],
        measured_us: Sequence[Sequence[float]],
        expected_us: Sequence[Sequence[float]],
    ) -> None:
        """Start with each kernel's works at its measured shapes, and the measured and predicted times there."""
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
        """Return a tuple for each measured shape of the kernel.

        It has the logarithms of m, n and k, whether lines are odd, the predicted time, and the logarithm of the
        ratio.
        """
        columns = (*self._logs, self._odd, self._expected_us, self._ratios)
        count = int(self._known[kernel].sum())
        return [tuple(float(column[kernel, at]) for column in columns) for at in range(count)]

    def at(self, work: Work | WorkTable, expected_us: Floats) -> tuple[Floats, Floats]:
        """Return each kernel's ratio for the work, and the distance to its nearest measured shape.

        `expected_us` is a column with each kernel's prediction before this correction.
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
    """Predicts the times of the vendor's routines from their measured ones."""

    def __init__(self, works: Sequence[Work], measured_us: Sequence[float]) -> None:
        expected_us = list(map(self._plain_us, works))
        self.interpolated = Interpolated([list(map(_vectors_apart, works))], [measured_us], [expected_us])

    def us(self, work: Work) -> float:
        """Return the predicted time."""
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
    """Return the work with the extents from which its distance to others is computed."""
    return replace(work, m=VECTORS_EXTENT if work.m == 1 else work.m, n=VECTORS_EXTENT if work.n == 1 else work.n)


def _padded(rows: Sequence[Sequence[float]]) -> Floats:
    """Return the rows as an array, padded with zeros."""
    longest = max(map(len, rows))
    return np.array([[*row, *[0.0] * (longest - len(row))] for row in rows], np.float64)


def as_column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float64)[:, None]
