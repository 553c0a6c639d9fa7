"""The search-space generator of BACUGen: Kurzak, Tomov, Dongarra, "Autotuning GEMMs for Fermi", section 5.3.

Nine parameters: a block computes m_blk x n_blk elements of C in stripes of k_blk products, by a grid of m_dim x n_dim
threads, which reads A as a grid of m_dim_a x n_dim_a and B as one of m_dim_b x n_dim_b.

Where the paper contradicts itself, this follows what reproduces its results:

- Algorithm 2 prints the divisibility of the reading grids backwards (M_dimA % M_blk == 0). The block is a multiple of
  the grid, as its own winners have it.
- Algorithm 2 is of A B. Of transposed operands the winners' grids are turned (32 x 8 for B^T where B has 8 x 32): the
  first extent of a grid lies along the operand's memory.
- K and N of Algorithm 3's shared memory are K_blk and N_blk.
- Divisions are real: with Table 1's guidelines 294 variants of SGEMM are left, 138 of DGEMM and 84 of ZGEMM. Figure 5
  begins "slightly below one hundred"; with whole numbers it would be 86, 66 and 60.
- Table 1 asks of CGEMM for a reuse of 5. By Algorithm 3 its own winner has 4, and no variant 4.5. At 4 there are 138
  variants, the winner among them, and 8 above it (the paper has 6 one step higher, without the winner).
- A thread may have any number of registers: Algorithm 3 knows no limit, and Fermi's L1 takes what is spilled. Only so
  "slightly more than one million" variants of SGEMM are left without guidelines: 1 136 490.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from tsm2_tune.generator.config import Resources
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.device.occupancy import UNLIMITED, Ints, Occupancy
from tsm2_tune.generator.problem import Problem

# The loops' upper ends in Algorithm 2.
MOST_DIM = 256  # M_dimMAX, N_dimMAX
MOST_BLK = 256  # M_blkMAX, N_blkMAX
MOST_K_BLK = 64  # K_blkMAX
WARP_THREADS = 32
MOST_THREADS = 1024  # of a block, on every GPU since Fermi

Division = Literal["real", "integer"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks with their grids of threads, one a row, and how many ways each has to read A and B."""

    columns: dict[str, Any]  # m_blk, n_blk, k_blk, m_dim, n_dim: arrays
    variants: Ints

    def __len__(self) -> int:
        return len(self.variants)


@cache
def blocks() -> Blocks:
    """Algorithm 2's loops with the first block of Algorithm 3: whole warps, and no thread idle in reading a stripe.

    A stripe of m_blk x k_blk elements is one for every thread where m_blk is a multiple of threads / gcd(threads,
    k_blk), so that the loops over m_blk and n_blk step over nothing that would be dropped.
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
    """Return the nine parameters of every variant of the chosen rows of `blocks()`: an array for each name.

    The first extent of a reading grid lies along the operand's memory.
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


def published_occupancy(
    resources: Resources, limits: DeviceLimits, *, registers: Any, division: Division = "real"
) -> Occupancy:
    """Algorithm 3's second and third block: what shared memory and registers leave room for.

    The numbers may be arrays. With real division a multiprocessor holds parts of blocks.
    """
    divided = np.true_divide if division == "real" else np.floor_divide
    warps = divided(resources.threads, limits.warp_threads)
    most_warps = limits.threads_per_sm // limits.warp_threads

    def held(capacity: int, per_block: Any) -> Any:
        by_resource = np.minimum(divided(capacity, per_block), limits.blocks_per_sm)
        return divided(np.minimum(by_resource * warps, most_warps), warps)

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
    """Extents along memory of the grids that overlay a stripe: of row r `count[r]` of `dim` from `first[r]` on."""

    dim: Ints
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
    """Return the divisors of 32, 64 ... 1024, by the number of warps, in ascending order and padded by ones."""
    found = [
        [dim for dim in range(1, MOST_THREADS + 1) if warps * WARP_THREADS % dim == 0] if warps else [1]
        for warps in range(MOST_THREADS // WARP_THREADS + 1)
    ]
    most = max(map(len, found))
    return np.array([dims + [1] * (most - len(dims)) for dims in found])


@cache
def _ways() -> Ints:
    """Grids of so many warps that overlay a stripe of so many lines of k_blk products, whichever way it is turned."""
    ways = np.zeros((MOST_THREADS // WARP_THREADS + 1, MOST_BLK + 1, MOST_K_BLK + 1), np.int64)
    for warps in range(1, len(ways)):
        threads = warps * WARP_THREADS
        for dim in range(1, MOST_BLK + 1):
            if threads % dim == 0 and threads // dim <= MOST_K_BLK:
                ways[warps, dim::dim, threads // dim :: threads // dim] += 1
    return ways


def _each(counts: Ints) -> tuple[Ints, Ints]:
    """For counts 2, 0, 3 the rows 0, 0, 2, 2, 2 and the places 0, 1, 0, 1, 2."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
