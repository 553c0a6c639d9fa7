"""Fit of a kernel's arithmetic_rate, cached_rate and without_vectors (members of Tiling) to its measured times.

At some shapes a kernel does additional work: it computes partly filled tiles, or reads an operand several times. The
rate of this work differs between kernels, and can be measured only at such shapes.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tsm2_tune.generator.config import family_name_in
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.core import CoreRates, CoreTime
from tsm2_tune.tuner.packs.core_pack import DeviceRates, MeasuredKernel, core_of

Array = np.ndarray[Any, np.dtype[np.float64]]

# Values that are tried: arithmetic rate as a multiple of the GPU's rate (tensor cores exceed 1), rate of rereads as a
# multiple of the typical one, and the time factor if the kernel cannot use vectors, also in multiples of its prior.
ARITHMETIC_RATES = (4.0, 2.5, 1.6, 1.0, 0.7, 0.5, 0.33, 0.25, 0.17, 0.11, 0.07)
CACHED_RATES = (6.7, 3.3, 1.7, 1.0, 0.6, 0.3, 0.14)
WITHOUT_VECTORS = (1.0, 1.15, 1.4, 1.8, 2.4)
OF_PRIOR_WITHOUT_VECTORS = (1.0, 1.4, 2.0)
# Kernel family -> prior value of the arithmetic rate; 1 for other families. They are the means for 276 winners on an
# H100, and the medians for the pretuned winners of 16-bit elements and c128 on an H200. Families whose threads
# read most operands from shared memory have lower rates.
PRIOR_ARITHMETIC = {
    "tsm2": 0.5,
    "ism2": 0.5,
    "resident_b_dmma": 0.6,
    "resident_b_fma_ring": 0.6,
    "row_lanes_register_b": 0.35,
    "inner_fma_ring": 0.4,
    "inner_mma16": 0.4,
    "stream_a_mma16": 0.2,
    "stream_a_mma16_ring": 0.25,
    "staged_wgmma": 0.25,
    "stream_a_complex_dmma": 0.7,
}
PRIOR_WEIGHT = 0.1  # weight of a rate's squared log-ratio to its prior value; times have weight 1
OUTLIER_RATIO = 4.0  # ratio of a time to the least time that any rates predict, beyond which its weight is small


def fitted(kernel: MeasuredKernel, device_rates: DeviceRates) -> Tiling:
    """Return the kernel's Tiling with rates fitted to its measured times. A host's Tiling is returned unchanged.

    The fit is a search of a grid for the least squares of log(measured time / predicted time), with a prior: the
    squared log-ratio of each rate to its prior value is added. If the kernel was timed only at its own shape, its
    rates are the prior values.
    """
    tiling = kernel.tiling
    assert tiling is not None
    if kernel.winner.on_host:
        return tiling
    prior = replace(tiling, arithmetic_rate=PRIOR_ARITHMETIC.get(family_name_in(kernel.winner.config), 1.0))
    if not kernel.times:
        return prior
    near_prior = (factor * prior.without_vectors for factor in OF_PRIOR_WITHOUT_VECTORS)
    times, vector_factors = _times(kernel), sorted({*WITHOUT_VECTORS, *near_prior})
    axes = np.meshgrid(ARITHMETIC_RATES, CACHED_RATES, vector_factors, indexing="ij")
    rates = np.stack(axes, axis=-1)  # [arithmetic, cached, vectors, 3 rates]
    predicted_us = _predicted_us(kernel, rates, times, device_rates)  # [arithmetic, cached, vectors, time]
    lacks_vectors = predicted_us[0, 0, 0] != predicted_us[0, 0, -1]
    if lacks_vectors.all() or not lacks_vectors.any():  # then the times do not show what the lack of vectors costs
        at = vector_factors.index(prior.without_vectors)
        rates, predicted_us = rates[:, :, at : at + 1], predicted_us[:, :, at : at + 1]
    us = np.array([time.us for time in times])
    errors = _squared_residuals(us, predicted_us) + PRIOR_WEIGHT * _prior_penalty(rates, prior)
    arithmetic_rate, cached_rate, without_vectors = rates[np.unravel_index(errors.argmin(), errors.shape)].tolist()
    return replace(prior, arithmetic_rate=arithmetic_rate, cached_rate=cached_rate, without_vectors=without_vectors)


def _times(kernel: MeasuredKernel) -> ctypes.Array[CoreTime]:
    """Return the kernel's measured times, first the time at its own shape."""
    w = kernel.winner
    own = (w.m, w.n, w.k, w.batch, w.launch.rows_per_block, w.launch.splits, w.median_us)
    times = [CoreTime(m, n, k, batch, us, rows, splits) for m, n, k, batch, rows, splits, us in (own, *kernel.times)]
    return (CoreTime * len(times))(*times)


def _predicted_us(
    kernel: MeasuredKernel, rates: Array, times: ctypes.Array[CoreTime], device_rates: DeviceRates
) -> Array:
    """Return the times predicted with each triple of rates (the last axis), without the measured times."""
    triples = rates.reshape(-1, rates.shape[-1])[:, [2, 0, 1]]  # in the order of CoreRates
    core = core_of([replace(kernel, times=(), vendor_times=())], {kernel.winner.device: device_rates})
    own = (CoreRates * len(triples)).from_buffer_copy(triples.tobytes())
    return np.ctypeslib.as_array(core.us_by_rates(0, times, own)).reshape(*rates.shape[:-1], len(times))


def _squared_residuals(us: Array, predicted_us: Array) -> Array:
    """Return the sum over the times (the last axis) of squared log(measured / predicted), less for outliers."""
    least_us = predicted_us.min(axis=(0, 1, 2))
    weights = 1 / (1 + (us / (OUTLIER_RATIO * least_us)) ** 2)
    return cast(Array, (weights * np.log(us / predicted_us) ** 2).sum(axis=-1))


def _prior_penalty(rates: Array, prior: Tiling) -> Array:
    """Return the sum over the three rates (the last axis) of squared log(rate / prior value)."""
    prior_rates = np.array([prior.arithmetic_rate, prior.cached_rate, prior.without_vectors])
    return cast(Array, (np.log(rates / prior_rates) ** 2).sum(axis=-1))
