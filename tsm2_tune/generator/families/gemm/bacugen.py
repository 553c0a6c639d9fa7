"""The search-space generator of BACUGen: Kurzak, Tomov, Dongarra, "Autotuning GEMMs for Fermi", section 5.3.

A configuration has nine parameters. A block computes m_blk x n_blk elements of C, in k tiles (the paper: stripes) of
k_blk products, with m_dim x n_dim threads. To load a k tile of A, the same threads form a grid of m_dim_a x n_dim_a.
To load a k tile of B, they form a grid of m_dim_b x n_dim_b. These two grids are the reading grids.

The paper contradicts itself in some details. This module has the variants that reproduce the paper's results:

- Algorithm 2 prints the divisibility of the reading grids backwards (M_dimA % M_blk == 0). Here the block is a
  multiple of the grid, as in the paper's winners.
- Algorithm 2 is for untransposed operands. For a transposed operand the winners' reading grids are transposed too
  (32 x 8 for B^T, 8 x 32 for B): the first extent of a grid runs along the contiguous direction of the operand.
- K and N in Algorithm 3's formula for shared memory mean K_blk and N_blk.
- Quotients are not rounded. With the guidelines of Table 1, 294 variants of SGEMM, 138 of DGEMM and 84 of ZGEMM
  remain, and Figure 5 begins "slightly below one hundred". With integer division, only 86 variants of SGEMM, 66 of
  DGEMM and 60 of ZGEMM would remain.
- Table 1 states a reuse of 5 for CGEMM. By the formulas of Algorithm 3, the paper's winner has a reuse of 4, and no
  variant has a reuse of 4.5. If the least reuse is 4, 138 variants remain, and the winner is one of them. 8 of the
  138 have a larger reuse. (In the paper, 6 variants remain at the next larger reuse, and the winner is not one of
  them.)
- A thread may have any number of registers: Algorithm 3 has no limit, and Fermi's L1 caches spilled registers.
  Without a limit and without guidelines 1 136 490 variants of SGEMM remain: "slightly more than one million".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import UNLIMITED, Ints, Occupancy
from tsm2_tune.generator.families.family import BLOCK_THREADS, WARP_THREADS
from tsm2_tune.generator.problem import Problem

# The upper bounds of Algorithm 2's loops.
MOST_DIM = 256  # M_dimMAX, N_dimMAX
MOST_BLK = 256  # M_blkMAX, N_blkMAX
MOST_K_BLK = 64  # K_blkMAX
MOST_THREADS = BLOCK_THREADS


@dataclass(frozen=True, slots=True)
class Blocks:
    """A table with a configuration without reading grids per row, and the number of pairs of reading grids."""

    columns: dict[str, Any]  # m_blk, n_blk, k_blk, m_dim, n_dim -> an array with an element per row
    variants: Ints  # pairs of a reading grid of A and one of B, for each row

    def __len__(self) -> int:
        return len(self.variants)


@cache
def blocks() -> Blocks:
    """Return the table of all configurations of Algorithm 2, after the first checks of Algorithm 3.

    The first check is that the threads of a block are whole warps. The second check is that every thread loads
    equally many elements of a k tile. So m_blk and n_blk must be multiples of threads / gcd(threads, k_blk), and the
    loops over m_blk and n_blk only visit such multiples.
    """
    m_dim, n_dim = (grid.ravel().astype(np.int32) for grid in np.mgrid[1 : MOST_DIM + 1, 1 : MOST_DIM + 1])
    grids = np.flatnonzero((m_dim * n_dim % WARP_THREADS == 0) & (m_dim * n_dim <= MOST_THREADS))
    k_blk = np.tile(np.arange(1, MOST_K_BLK + 1, dtype=np.int32), len(grids))
    m_dim, n_dim = (np.repeat(dim[grids], MOST_K_BLK) for dim in (m_dim, n_dim))
    lines = m_dim * n_dim // np.gcd(m_dim * n_dim, k_blk)
    m_step, n_step = np.lcm(m_dim, lines), np.lcm(n_dim, lines)
    m_steps, n_steps = MOST_BLK // m_step, MOST_BLK // n_step
    row, place = _each(m_steps * n_steps)
    columns = {
        "m_blk": m_step[row] * (1 + place // n_steps[row]).astype(np.int32),
        "n_blk": n_step[row] * (1 + place % n_steps[row]).astype(np.int32),
        "k_blk": k_blk[row],
        "m_dim": m_dim[row],
        "n_dim": n_dim[row],
    }
    ways, warps = _ways(), columns["m_dim"] * columns["n_dim"] // WARP_THREADS
    variants = ways[warps, columns["m_blk"], columns["k_blk"]] * ways[warps, columns["n_blk"], columns["k_blk"]]
    return Blocks({name: column[variants > 0] for name, column in columns.items()}, variants[variants > 0])


def with_reading_grids(chosen: Ints, problem: Problem) -> dict[str, Any]:
    """Return parameter -> array of values, for the chosen rows of `blocks()` with all of their reading grids.

    The arrays have an element for each pair of reading grids of each row. The first extent of a reading grid runs
    along the contiguous direction of the operand.
    """
    columns = {name: column[chosen] for name, column in blocks().columns.items()}
    threads = columns["m_dim"] * columns["n_dim"]
    along_a, along_b, _ = problem.contiguous
    of_a = _grids(threads, columns["m_blk"], columns["k_blk"], along_k=along_a == "k")
    of_b = _grids(threads, columns["n_blk"], columns["k_blk"], along_k=along_b == "k")
    row, place = _each(of_a.count * of_b.count)
    m_dim_a = of_a.dim[of_a.first[row] + place // of_b.count[row]]
    m_dim_b = of_b.dim[of_b.first[row] + place % of_b.count[row]]
    return {
        **{name: column[row] for name, column in columns.items()},
        "m_dim_a": m_dim_a,
        "n_dim_a": threads[row] // m_dim_a,
        "m_dim_b": m_dim_b,
        "n_dim_b": threads[row] // m_dim_b,
    }


def published_occupancy(resources: Resources, limits: DeviceLimits, *, registers: Any) -> Occupancy:
    """Return the occupancy by Algorithm 3. Arguments may be arrays, and the number of blocks a fraction."""
    warps = resources.threads / limits.warp_threads
    most_warps = limits.threads_per_sm // limits.warp_threads

    def held(capacity: int, per_block: Any) -> Any:
        by_resource = np.minimum(np.true_divide(capacity, per_block), limits.blocks_per_sm)
        return np.minimum(by_resource * warps, most_warps) / warps

    resident = np.minimum(
        held(limits.smem_bytes_per_sm, resources.smem_bytes),
        held(limits.registers_per_sm, registers * resources.threads),
    )
    return Occupancy(
        blocks_per_sm=resident,
        warps_per_sm=resident * warps,
        threads_per_sm=resident * resources.threads,
        limited_by=(),
        registers_per_thread_limit=UNLIMITED,
    )


@dataclass(frozen=True, slots=True)
class _Grids:
    """The reading grids that divide a k tile evenly, for each row of a table.

    The grids of row r are the `count[r]` elements of `dim` that begin at index `first[r]`.
    """

    dim: Ints  # extents of grids along the contiguous direction of the operand
    first: Ints
    count: Ints


def _grids(threads: Ints, lines: Ints, k_blk: Ints, *, along_k: bool) -> _Grids:
    along, across = (k_blk, lines) if along_k else (lines, k_blk)
    dims = _divisors()[threads // WARP_THREADS]
    fits = (along[:, None] % dims == 0) & (across[:, None] % (threads[:, None] // dims) == 0)
    fits[:, 1:] &= dims[:, 1:] > 1  # padding
    count = fits.sum(axis=1)
    return _Grids(dims[fits], np.cumsum(count) - count, count)


@cache
def _divisors() -> Ints:
    """Return an array: row w has the ascending divisors of the threads of w warps, padded with ones."""
    found = [
        [dim for dim in range(1, MOST_THREADS + 1) if warps * WARP_THREADS % dim == 0] if warps else [1]
        for warps in range(MOST_THREADS // WARP_THREADS + 1)
    ]
    most = max(map(len, found))
    return np.array([dims + [1] * (most - len(dims)) for dims in found])


@cache
def _ways() -> Ints:
    """Return an array: [warps, lines, k_blk] is the number of reading grids for a k tile of these lines."""
    ways = np.zeros((MOST_THREADS // WARP_THREADS + 1, MOST_BLK + 1, MOST_K_BLK + 1), np.int64)
    for warps in range(1, len(ways)):
        threads = warps * WARP_THREADS
        for dim in range(1, MOST_BLK + 1):
            if threads % dim == 0 and threads // dim <= MOST_K_BLK:
                ways[warps, dim::dim, threads // dim :: threads // dim] += 1
    return ways


def _each(counts: Ints) -> tuple[Ints, Ints]:
    """Return each row index repeated by its count, and a running number per row.

    For the counts 2, 0, 3 these are 0, 0, 2, 2, 2 and 0, 1, 0, 1, 2.
    """
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
