"""Predicted times of candidates, which have no measured times. Searches try candidates in this order."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
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
from tsm2_tune.runtime.choice.core import TYPES_IN_C
from tsm2_tune.tuner.compile.core_library import core_library
from tsm2_tune.tuner.packs.core_pack import DeviceRecord, KernelRecord

BALANCED_THREADS = 128  # threads per multiprocessor with which FMAs take as long as their latency

# Members of core_kernel. A Tiling has the same names, and a Launch lacks the prefix "is_".
TILING = tuple(field.name for field in fields(Tiling) if field.name != "arithmetic_rate")
LAUNCH = ("rows_per_block", "columns_per_block", "splits", "is_persistent", "has_workspace", "batched")
PRODUCT = ("m", "n", "k", "batch", "type", "orders", "is_gram")
_of_tiling = attrgetter(*TILING)
_of_launch = attrgetter(*(name.removeprefix("is_") for name in LAUNCH))


class BalanceBlocks(ctypes.Structure):
    """struct core_balance_blocks."""

    _fields_ = (("memory", ctypes.c_double), ("arithmetic", ctypes.c_double))


KERNEL, BALANCE = np.dtype(KernelRecord), np.dtype(BalanceBlocks)  # NumPy takes long to make them


def candidate_times_us(candidates: Sequence[Candidate]) -> Floats:
    """Return the predicted time of each candidate in us, at data sheet rates; infinite if no block fits."""
    count = len(candidates)
    kernels, balances = np.zeros(count, KERNEL), np.zeros(count, BALANCE)
    names = (*TILING, *LAUNCH, *PRODUCT, "arithmetic_rate", "device")
    members = [*(kernels[name] for name in names), balances["memory"], balances["arithmetic"]]  # views
    devices: dict[DeviceLimits, int] = {}
    for first, part in parts_of(candidates):
        if isinstance(part, Rows):
            columns: Iterable[Any] = _members(part.wide, devices)
        else:
            columns = zip(*(_members(one, devices) for one in part), strict=True)
        for member, column in zip(members, columns, strict=len(part) > 0):
            member[first : first + len(part)] = column
    device_records, us = (DeviceRecord * len(devices))(*map(_device, devices)), np.empty(count)
    kernels_at, balances_at, us_at = (ctypes.c_void_p(array.ctypes.data) for array in (kernels, balances, us))
    predict = core_library().core_unmeasured_us
    predict.restype = None
    predict(device_records, kernels_at, balances_at, count, us_at)
    return us


def _members(candidate: Candidate, devices: dict[DeviceLimits, int]) -> tuple[Any, ...]:
    """Return the members of the candidate's records, arrays for a table. A new device gets the next index."""
    problem, limits, family, resources = candidate.problem, candidate.limits, candidate.family, candidate.resources
    latency_us = architecture_of(limits.compute_capability).memory_latency_clocks / limits.sm_clock_mhz
    bytes_per_us_per_sm = limits.dram_gbytes_per_s * 1e3 / limits.sms
    block_bytes = resources.threads * np.maximum(resources.bytes_in_flight, 1)  # at least 1: it is a divisor
    return (
        *_of_tiling(candidate.tiling),
        *_of_launch(candidate.launch),
        *_of_product(problem),
        _arithmetic_rate(limits, problem.dtype_name, family.on_tensor_cores),
        devices.setdefault(limits, len(devices)),
        bytes_per_us_per_sm * latency_us / block_bytes,  # by Little's law
        BALANCED_THREADS / resources.threads,
    )


@lru_cache(maxsize=64)  # called for each candidate of a problem
def _of_product(problem: Problem) -> tuple[Any, ...]:
    """Return the members that describe the problem."""
    orders = tuple(int(along == last) for along, last in zip(problem.contiguous, "knn", strict=True))
    extents = problem.m, problem.n, problem.k, problem.batch
    return *extents, TYPES_IN_C.index(problem.dtype_name), orders, problem.is_gram


@lru_cache(maxsize=64)
def _arithmetic_rate(limits: DeviceLimits, dtype_name: str, on_tensor_cores: bool) -> float:
    """Return the rate of the kernel's unit (tensor cores or FMA units), divided by the device's rate for the type."""
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
