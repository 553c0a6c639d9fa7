"""Fit of a kernel's arithmetic rate and cached bandwidth to its measured times at several shapes.

At some shapes a kernel does additional work: it computes partly filled tiles, or reads an operand several times. The
rate of this work differs between kernels, and can be measured only at such shapes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tsm2_tune.generator.config import family_name_in
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.core import Core, CoreTime
from tsm2_tune.tuner.compile.core_library import core_library
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_pack, with_rates

# Values that are tried: arithmetic rate as a multiple of the GPU's rate (tensor cores exceed 1), rate of rereads as a
# multiple of the typical one, and the time factor for lines that are not a multiple of vector loads.
ARITHMETIC_RATES = (4.0, 2.5, 1.6, 1.0, 0.7, 0.5, 0.33, 0.25, 0.17, 0.11, 0.07)
CACHED_RATES = (6.7, 3.3, 1.7, 1.0, 0.6, 0.3, 0.14)
ODD_LINES = (1.0, 1.15, 1.4, 1.8, 2.4)
# Kernel family -> usual share of the GPU's arithmetic rate; 1 for other families. They are the means for 276 winners
# on an H100. Families whose threads read most operands from shared memory have lower rates.
USUAL_ARITHMETIC = {
    "tsm2": 0.5,
    "ism2": 0.5,
    "resident_b_dmma": 0.6,
    "resident_b_fma_ring": 0.6,
    "row_lanes_register_b": 0.35,
    "inner_fma_ring": 0.4,
}
USUAL = 0.1  # weight of a rate's squared log-ratio to its usual value; times have weight 1
FAR = 4.0  # ratio of a time to the least time that any rates predict, beyond which its weight is small


def fitted(kernel: MeasuredKernel, rates: DeviceRates) -> Tiling:
    """Return the kernel's Tiling with rates fitted to its measured times.

    A rate that differs from its usual value is penalised. If the kernel was timed only at its own shape, its rates
    are the usual values.
    """
    winner, tiling = kernel.winner, kernel.tiling
    assert tiling is not None
    if winner.on_host:
        return tiling
    tiling = replace(tiling, arithmetic_rate=USUAL_ARITHMETIC.get(family_name_in(winner.config), 1.0))
    if not kernel.times:
        return tiling
    own = (winner.m, winner.n, winner.k, winner.launch.rows_per_block, winner.launch.splits, winner.median_us)
    points = [CoreTime(m, n, k, us, rows, splits) for m, n, k, rows, splits, us in (own, *kernel.times)]
    times = (CoreTime * len(points))(*points)
    tried = list(product(ARITHMETIC_RATES, CACHED_RATES, sorted({*ODD_LINES, tiling.odd_lines})))
    predicted_us = _predicted_us(kernel, tried, times, rates)
    has_odd_lines = predicted_us[0] != predicted_us[len({*ODD_LINES, tiling.odd_lines}) - 1]
    if has_odd_lines.all() or not has_odd_lines.any():  # then the times do not show what odd lines cost
        kept = [at for at, (*_, odd_lines) in enumerate(tried) if odd_lines == tiling.odd_lines]
        tried, predicted_us = [tried[at] for at in kept], predicted_us[kept]
    us = np.array([one.us for one in points])
    weights = 1 / (1 + (us / (FAR * predicted_us.min(axis=0))) ** 2)
    unexplained = (weights * np.log(us / predicted_us) ** 2).sum(axis=1)
    usual = np.array([tiling.arithmetic_rate, tiling.cached_rate, tiling.odd_lines])
    unusual = (np.log(np.array(tried) / usual) ** 2).sum(axis=1)
    arithmetic, cached, odd = tried[int((unexplained + USUAL * unusual).argmin())]
    return replace(tiling, arithmetic_rate=arithmetic, cached_rate=cached, odd_lines=odd)


def _predicted_us(
    kernel: MeasuredKernel,
    tried: Sequence[tuple[float, float, float]],
    times: ctypes.Array[CoreTime],
    rates: DeviceRates,
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the times predicted with each of the tried rates, a row for each, from the device's rates alone."""
    alone = core_pack([replace(kernel, times=(), vendor_times=())], {kernel.winner.device: rates})
    core = Core(core_library(), with_rates(alone, tried))
    return np.array([core.rates_us(at, times) for at in range(len(tried))])
