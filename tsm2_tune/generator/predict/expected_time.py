"""Model that predicts the time of a kernel launch. Searches try configurations in the order of predicted times.

    time = start-up + waves of blocks, each limited by memory or arithmetic + adding up partial sums

The last two terms are functions below. Peak rates (`Ceilings`) are measured or come from the data sheet. For 1,033
winners on an H200 (benchmarks/results/h200-versus-cublas.json) the prediction is 0.45 to 1.92 times the measured
time, and 0.64 to 1.27 times for 98 % of them. `python -m benchmarks.first_choices --beside` prints these numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from tsm2_tune.generator.config import GROUP_SPLITS
from tsm2_tune.generator.device.architecture import architecture_of, peak_gflops
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.roofline import Ceilings, data_sheet
from tsm2_tune.generator.space.candidate import Candidate

START_US = 5.0  # microseconds between CUDA events around a kernel with little work
SUMS_BYTES_PER_CLOCK = 64  # bytes per clock that a multiprocessor reads from the L2 cache
ROUND_US = 1.0  # microseconds until the last block of a round has loaded its first sums


def expected_us(candidate: Candidate, ceilings: Ceilings | None = None) -> Any:
    """Return the predicted time in microseconds; infinity if no block fits on a multiprocessor.

    `ceilings` contains the device's peak rates. If it is None, use the peak rates of the data sheet. For a table of
    candidates, return an array with a time for each row. Then at least one block of every row must fit on a
    multiprocessor.
    """
    rates = ceilings or sheet(candidate.limits)
    if not is_table(candidate) and candidate.occupancy.blocks_per_sm < 1:
        return math.inf
    return START_US + waves_us(candidate, rates) + sums_us(candidate)


def is_table(candidate: Candidate) -> bool:
    """Return whether the candidate is a table of candidates, with arrays for some tunables."""
    return isinstance(candidate.launch.blocks(candidate.problem.m, candidate.problem.n), np.ndarray)


@lru_cache(maxsize=64)  # called for each candidate of a space
def sheet(limits: DeviceLimits) -> Ceilings:
    """Return the peak rates of the device from its data sheet."""
    return data_sheet(limits)


def gflops(candidate: Candidate, ceilings: Ceilings) -> float:
    """Return the peak GFLOPS of the unit that the kernel uses: tensor cores or FMA units."""
    name = candidate.problem.dtype_name
    if candidate.family.on_tensor_cores:
        return dict(ceilings.gflops)[name]
    return peak_gflops(candidate.limits, name)


def padded_flops(candidate: Candidate) -> Any:
    """Return the floating-point operations of the problem with m and n padded to whole tiles."""
    problem, launch = candidate.problem, candidate.launch
    columns: Any = launch.columns_per_block
    columns = problem.n if isinstance(columns, int) and columns == 0 else columns
    tiles = launch.tiles(problem.m, problem.n)
    return problem.flops * (launch.rows_per_block / problem.m * tiles) * (columns / problem.n)


def moved_us(candidate: Candidate, ceilings: Ceilings) -> Any:
    """Return the microseconds that the kernel's memory traffic takes at the peak rates."""
    traffic = candidate.family.traffic(candidate.config, candidate.problem)
    return ceilings.bytes_us(traffic.read_bytes, traffic.written_bytes)


def bytes_in_flight_per_sm(candidate: Candidate, blocks: Any) -> Any:
    """Return the bytes in flight on the busiest multiprocessor if `blocks` blocks run on the device."""
    busiest = -(-blocks // candidate.limits.sms) * candidate.launch.threads
    resident = candidate.occupancy.threads_per_sm
    threads = np.minimum(resident, busiest) if is_table(candidate) else min(resident, busiest)
    return threads * candidate.resources.bytes_in_flight


def waves_us(candidate: Candidate, ceilings: Ceilings) -> Any:
    """Return the microseconds of all blocks. They run in waves of multiprocessors x resident blocks.

    A wave takes as long as the busiest multiprocessor needs for memory traffic or for arithmetic, whichever is
    longer. The memory rate of a multiprocessor is an equal share of the bandwidth. If too few bytes are in flight for
    this rate, it is the bytes in flight over the latency.
    """
    problem, limits, occupancy = candidate.problem, candidate.limits, candidate.occupancy
    blocks = candidate.launch.blocks(problem.m, problem.n)
    least, most = (np.minimum, np.maximum) if is_table(candidate) else (min, max)
    traffic = candidate.family.traffic(candidate.config, problem)
    moved_bytes = traffic.read_bytes + traffic.written_bytes
    bytes_per_us = moved_bytes / moved_us(candidate, ceilings)
    flops_per_us_per_sm = gflops(candidate, ceilings) * 1e3 / limits.sms
    flops_us = padded_flops(candidate) / blocks / flops_per_us_per_sm  # of a block alone on a multiprocessor
    latency_us = architecture_of(limits.compute_capability).memory_latency_clocks / limits.sm_clock_mhz

    def wave_us(wave_blocks: Any) -> Any:
        busiest = -(-wave_blocks // limits.sms)
        share = bytes_per_us / least(wave_blocks, limits.sms)
        rate = least(share, most(1.0, bytes_in_flight_per_sm(candidate, wave_blocks)) / latency_us)
        return busiest * most(moved_bytes / blocks / rate, flops_us)

    whole = limits.sms * occupancy.blocks_per_sm
    waves, rest = divmod(blocks, whole)
    return waves * wave_us(whole) + wave_us(most(rest, 1)) * (rest > 0)


def sums_us(candidate: Candidate) -> float:
    """Return the microseconds for adding up the splits' partial sums; 0 without splits.

    One block adds up the partial sums of a tile. If there are many splits, groups of blocks add them up in two
    rounds. In a persistent kernel, each block adds up the sums of a part of a tile. If every block also computes
    whole tiles, this overlaps with their computation.
    """
    problem, launch = candidate.problem, candidate.launch
    if not launch.has_workspace:
        return 0.0
    tile_bytes = launch.rows_per_block * (launch.columns_per_block or problem.n) * problem.dtype.sum.element_bytes
    tile_us = tile_bytes / (SUMS_BYTES_PER_CLOCK * candidate.limits.sm_clock_mhz)
    if launch.persistent:
        rounds = 2 if launch.tiles(problem.m, problem.n) < launch.splits else 0
        return rounds * ROUND_US + 2 * tile_us
    if launch.groups:
        return 2 * ROUND_US + (GROUP_SPLITS + launch.groups) * tile_us
    return ROUND_US + launch.splits * tile_us
