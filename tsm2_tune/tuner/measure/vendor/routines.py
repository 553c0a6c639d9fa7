"""Timing and verification of the routines of cuBLAS and cuBLASLt that compute a product."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tsm2_tune.generator.dtypes import dtype_named
from tsm2_tune.tuner.device.interface import Device
from tsm2_tune.tuner.measure.vendor.blas import GEMV_CALLS, SYRK_CALLS, gemm_of
from tsm2_tune.tuner.measure.vendor.cublas import Cublas, routine_of
from tsm2_tune.tuner.measure.vendor.cublaslt import MATMUL, Plan
from tsm2_tune.tuner.measure.vendor.libraries import CublasError
from tsm2_tune.tuner.results.trial import Cache, Verdict
from tsm2_tune.tuner.verify.checks import checks_of
from tsm2_tune.tuner.verify.operands import Operand, Operands
from tsm2_tune.tuner.verify.verdict import inspect, prepare

SHORT_SAMPLES = 3  # per routine, to rank the routines
HOPELESS = 2.0  # a routine whose first sample is this many times the best median gets no more samples
Launch = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Routine:
    """A library call that computes the product on fixed buffers."""

    name: str  # cublasSgemm, or cublasLtMatmul #3: the third algorithm of its heuristic
    launch: Launch  # raises CublasError if the call fails
    is_half: bool = False  # it writes only the lower half of a symmetric C


@dataclass(frozen=True, slots=True)
class Timed:
    """A routine that was launched without an error, with the median of a few timings."""

    routine: Routine
    median_us: float


def routines_of_cublas(cublas: Cublas, operands: Operands) -> list[Routine]:
    """Return cuBLAS's GEMM, and its SYRK or GEMV if that can compute it. Raise CublasError if it has no GEMM."""
    problem = operands.problem
    found = [Routine(routine_of(gemm_of(operands).routine), cublas.launch(operands))]
    with suppress(CublasError):
        if problem.is_gram:
            launch = cublas.syrk_launch(operands)
            found.append(Routine(routine_of(SYRK_CALLS[problem.dtype_name]), launch, is_half=True))
    with suppress(CublasError):
        if problem.n == 1 and not problem.is_gram:
            launch = cublas.gemv_launch(operands)
            found.append(Routine(routine_of(GEMV_CALLS[problem.dtype_name]), launch))
    return found


def routines_of_cublaslt(plan: Plan) -> list[Routine]:
    """Return one routine for each algorithm of cuBLASLt's heuristic, in the heuristic's order."""
    return [Routine(f"{MATMUL} #{place}", plan.launch(one)) for place, one in enumerate(plan.heuristic(), 1)]


def fastest_first(device: Device, routines: Sequence[Routine], cache: Cache = Cache.CLEAN) -> list[Timed]:
    """Return the routines that launch, by their median time in L2 state `cache`. Raise CublasError if none does."""
    found: list[Timed] = []
    declined: CublasError | None = None
    for routine in routines:
        try:
            routine.launch()
        except CublasError as error:  # some algorithms of the heuristic fail at the launch
            declined = error
            continue
        device.synchronise()
        samples = [device.time_us(routine.launch, cache)]
        if not found or samples[0] <= HOPELESS * min(one.median_us for one in found):
            samples += [device.time_us(routine.launch, cache) for _ in range(SHORT_SAMPLES - 1)]
        found.append(Timed(routine, statistics.median(samples)))
    if declined is not None and not found:
        raise declined
    return sorted(found, key=lambda one: one.median_us)


def verdict_on(device: Device, operands: Operands, routine: Routine, *, seed: int) -> Verdict:
    """Verify the routine with the calls and error bounds that verify a tuned kernel.

    Calls with padded leading dimensions are skipped, because the routine has fixed leading dimensions. May raise
    CublasError and KernelFault.
    """
    checks = [one for one in checks_of(operands.problem) if not any(one.padding.values())]
    worst_ratio = 0.0
    for number, check in enumerate(checks):
        prepare(operands, check, seed=seed + 3 * number)
        routine.launch()
        device.synchronise()
        if routine.is_half:
            complete(device, operands.c, operands.problem.dtype_name)
        verdict = inspect(operands, check)
        if not verdict.correct:
            return verdict
        worst_ratio = max(worst_ratio, verdict.worst_ratio)
    return Verdict(True, worst_ratio, f"every element of {len(checks)} calls right")


def fastest_right(
    device: Device, operands: Operands, ranked: Sequence[Timed], *, seed: int
) -> tuple[Routine, Verdict]:
    """Return the fastest routine with a correct result, else the fastest routine, and its verdict."""
    verdicts = []
    for one in ranked:
        verdicts.append((one.routine, verdict_on(device, operands, one.routine, seed=seed)))
        if verdicts[-1][1].correct:
            return verdicts[-1]
    return verdicts[0]


def mirrored(lower: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the Hermitian matrix with this lower triangle. The upper triangle of `lower` is ignored."""
    below = np.tril(lower, -1)
    return np.asarray(np.tril(lower) + below.conj().T)


def complete(device: Device, c: Operand, dtype_name: str) -> None:
    """Copy C's lower triangle, which SYRK wrote, to its upper triangle, so that all of C can be verified."""
    dtype = np.dtype(dtype_named(dtype_name).numpy_name)
    whole = np.empty(c.buffer.size_bytes // dtype.itemsize, dtype)
    device.download(c.buffer, whole)
    leading = c.filling.leading_dimension
    lines = whole[c.front : c.front + leading * (c.columns - 1) + c.rows]
    stored = np.lib.stride_tricks.as_strided(lines, (c.rows, c.columns), (dtype.itemsize, leading * dtype.itemsize))
    stored[:] = mirrored(stored)
    device.upload(whole, c.buffer)
