"""Predicted times of candidates, which have no measured times. Searches try candidates in this order."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from tsm2_tune.generator.device.architecture import architecture_of, peak_gflops
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import data_sheet
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, Floats
from tsm2_tune.generator.space.columnar import Rows, parts_of
from tsm2_tune.generator.tiling import Tiling
from tsm2_tune.runtime.choice.core import TYPES_IN_C, CoreTime
from tsm2_tune.tuner.compile.core_library import core_library
from tsm2_tune.tuner.packs.core_pack import DeviceRecord, KernelRecord

BUSY_THREADS = 128  # a warp for each partition of a multiprocessor: its independent FMAs hide their latency

# Members of a kernel's record, which have the names of a Tiling, a Launch and a Problem.
TILING = tuple(field.name for field in fields(Tiling) if field.name != "arithmetic_rate")
LAUNCH = ("rows_per_block", "columns_per_block", "splits", "is_persistent", "has_workspace")
PRODUCT = ("m", "n", "k", "type", "orders", "is_gram")
_of_tiling = attrgetter(*TILING)
_of_launch = attrgetter(*(name.replace("is_", "") for name in LAUNCH))


class LatencyBlocks(ctypes.Structure):
    """struct core_latency_blocks."""

    _fields_ = (("memory", ctypes.c_double), ("arithmetic", ctypes.c_double))


def candidate_times_us(candidates: Sequence[Candidate]) -> Floats:
    """Return the predicted time of each candidate in microseconds, at the rates of its device's data sheet.

    The time is infinite if no block fits on a multiprocessor. Raise ToolMissing if there is no C compiler.
    """
    count = len(candidates)
    kernels, latencies, times = (
        np.zeros(count, np.dtype(record)) for record in (KernelRecord, LatencyBlocks, CoreTime)
    )
    names = (*TILING, *LAUNCH, *PRODUCT, "arithmetic_rate", "device")
    columns = [*(kernels[name] for name in names), latencies["memory"], latencies["arithmetic"]]
    devices: dict[DeviceLimits, int] = {}
    for first, part in parts_of(candidates):
        rows = [part.wide] if isinstance(part, Rows) else part  # the only row is a table
        for column, values in zip(columns, zip(*(_values(one, devices) for one in rows), strict=True), strict=False):
            column[first : first + len(part)] = values[0] if isinstance(part, Rows) else values
    for name in ("m", "n", "k", "rows_per_block", "splits"):
        times[name] = kernels[name]
    device_records, us = (DeviceRecord * len(devices))(*map(_device, devices)), np.empty(count)
    kernels_at, latencies_at, times_at, us_at = (
        ctypes.c_void_p(array.ctypes.data) for array in (kernels, latencies, times, us)
    )
    predict = core_library().core_unmeasured_us
    predict.restype = None
    predict(device_records, kernels_at, latencies_at, times_at, count, us_at)
    return us


def _values(candidate: Candidate, devices: dict[DeviceLimits, int]) -> tuple[Any, ...]:
    """Return the members of the candidate's records. A device that is not in `devices` gets the next index."""
    problem, limits, family, resources = candidate.problem, candidate.limits, candidate.family, candidate.resources
    latency_us = architecture_of(limits.compute_capability).memory_latency_clocks / limits.sm_clock_mhz
    bytes_per_us_per_sm = limits.dram_gbytes_per_s * 1e3 / limits.sms
    bytes_in_flight = resources.threads * np.maximum(resources.bytes_in_flight, 1)
    return (
        *_of_tiling(family.tiling(candidate.config, problem, candidate.occupancy.blocks_per_sm)),
        *_of_launch(candidate.launch),
        *_of_product(problem),
        _arithmetic_rate(limits, problem.dtype_name, family.on_tensor_cores),
        devices.setdefault(limits, len(devices)),
        bytes_per_us_per_sm * latency_us / bytes_in_flight,  # by Little's law
        BUSY_THREADS / resources.threads,
    )


@lru_cache(maxsize=64)  # called for each candidate of a problem
def _of_product(problem: Problem) -> tuple[Any, ...]:
    orders = tuple(int(along == last) for along, last in zip(problem.contiguous, "knn", strict=True))
    return problem.m, problem.n, problem.k, TYPES_IN_C.index(problem.dtype_name), orders, problem.is_gram


@lru_cache(maxsize=64)
def _arithmetic_rate(limits: DeviceLimits, dtype_name: str, on_tensor_cores: bool) -> float:
    """Return the share of the device's arithmetic rate that the kernel's unit has: tensor cores or FMA units."""
    return 1.0 if on_tensor_cores else peak_gflops(limits, dtype_name) / dict(data_sheet(limits).gflops)[dtype_name]


def _device(limits: DeviceLimits) -> DeviceRecord:
    rates = data_sheet(limits)
    gflops = dict(rates.gflops)
    return DeviceRecord(
        read_gbytes_per_s=rates.read_gbytes_per_s,
        copy_gbytes_per_s=rates.copy_gbytes_per_s,
        gflops=tuple(gflops.get(dtype, 0.0) for dtype in TYPES_IN_C),
        multiprocessors=limits.sms,
    )
