"""Expected time of a launch, without running it. It orders trials, and exposes absurd choices.

    start-up + tiles in waves, each as long as its bytes or its arithmetic takes + sums of splits

Each term is a function below. Rates are those of `Ceilings`: measured, or the data sheet's. For 1,033 winners on an
H200 (benchmarks/results/h200-versus-cublas.json) it is 0.45 to 1.92 times the measured time, for 98 % of them 0.64 to
1.27 times. `python -m benchmarks.first_choices --beside` prints this.
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

START_US = 5.0  # between two events around a kernel with next to no work: the least time of small winners
SUMS_BYTES_PER_CLOCK = 64  # bytes that a multiprocessor reads from the L2
ROUND_US = 1.0  # until the last block of a round has read the counter and loaded its first sums


def expected_us(candidate: Candidate, ceilings: Ceilings | None = None) -> Any:
    """Return the expected time in microseconds, by these ceilings or the data sheet's; infinity if no block fits.

    For a table of candidates, in which a block of each fits, return an array.
    """
    rates = ceilings or sheet(candidate.limits)
    if not is_table(candidate) and candidate.occupancy.blocks_per_sm < 1:
        return math.inf
    return START_US + waves_us(candidate, rates) + sums_us(candidate)


def is_table(candidate: Candidate) -> bool:
    """Return whether the candidate is a table, whose numbers are arrays."""
    return isinstance(candidate.launch.blocks(candidate.problem.m, candidate.problem.n), np.ndarray)


@lru_cache(maxsize=64)  # called for each candidate of a space
def sheet(limits: DeviceLimits) -> Ceilings:
    """Return the data sheet's rates."""
    return data_sheet(limits)


def gflops(candidate: Candidate, ceilings: Ceilings) -> float:
    """Return the rate of the unit that the family computes with."""
    name = candidate.problem.dtype_name
    if candidate.family.on_tensor_cores:
        return dict(ceilings.gflops)[name]
    return peak_gflops(candidate.limits, name)


def padded_flops(candidate: Candidate) -> Any:
    """Return the operations, including those of tile rows and columns outside C."""
    problem, launch = candidate.problem, candidate.launch
    columns: Any = launch.columns_per_block
    columns = problem.n if isinstance(columns, int) and columns == 0 else columns
    tiles = launch.tiles(problem.m, problem.n)
    return problem.flops * (launch.rows_per_block / problem.m * tiles) * (columns / problem.n)


def moved_us(candidate: Candidate, ceilings: Ceilings) -> Any:
    """Return the time of the design's memory traffic at the device's rates, with all multiprocessors busy."""
    traffic = candidate.family.traffic(candidate.config, candidate.problem)
    return ceilings.bytes_us(traffic.read_bytes, traffic.written_bytes)


def bytes_in_flight_per_sm(candidate: Candidate, blocks: Any) -> Any:
    """Return the bytes in flight of the busiest multiprocessor, with this many blocks on the device."""
    busiest = -(-blocks // candidate.limits.sms) * candidate.launch.threads
    resident = candidate.occupancy.threads_per_sm
    threads = np.minimum(resident, busiest) if is_table(candidate) else min(resident, busiest)
    return threads * candidate.resources.bytes_in_flight


def waves_us(candidate: Candidate, ceilings: Ceilings) -> Any:
    """Return the time of the tiles. Blocks run in waves of multiprocessors x resident blocks; the busiest one
    decides.

    It gets its share of the memory bandwidth or, if fewer bytes are in flight than Little's law requires, those bytes
    over the latency; and its share of the arithmetic rate.
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
    """Return the time to add up the partial sums of the splits: by one block a tile, or in two rounds of groups.

    Each persistent block adds up a slice; if each has whole tiles too, this overlaps with other blocks' tiles. Tables
    have no splits.
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
