"""The universal stencil, the kernel of the families gemm and minplus: its tunables, its rules, and its loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.gemm.bacugen import WARP_THREADS
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import Tunable

VECTORS = (1, 2, 4)
LOADS = (1, 2, 4)
BUFFERS = (1, 2)  # k tiles in shared memory; with 1 the next k tile is loaded into registers
VECTOR_BYTES = 16  # the most bytes of shared memory that a thread reads at a time
# Options of `read` -> the CUDA intrinsic: loads cached in the L1, or loads on the read-only path.
READS = {"ca": "__ldca", "nc": "__ldg"}
OLDEST_WITH_NC, ONE_READ_PATH = (3, 5), (7, 0)  # compute capabilities: the first with __ldg; one path for both
OLDEST_WITH_COPIES = (8, 0)  # the first compute capability with asynchronous copies to shared memory
FERMI = 2  # major compute capability


@dataclass(frozen=True, slots=True)
class StencilConfig(KernelConfig):
    """The tunables of gemm and minplus, under the paper's names. In a table of configurations they are arrays."""

    m_blk: Annotated[int, Tunable("rows of C that a block computes", symbol="M_blk", word="block")]
    n_blk: Annotated[int, Tunable("columns of C that a block computes", symbol="N_blk", word="block")]
    k_blk: Annotated[int, Tunable("products along k of a stripe", symbol="K_blk", word="block")]
    m_dim: Annotated[int, Tunable("threads of a block along the rows of C", symbol="M_dim", word="threads")]
    n_dim: Annotated[int, Tunable("threads of a block along the columns of C", symbol="N_dim", word="threads")]
    m_dim_a: Annotated[int, Tunable("reading threads along A's memory", symbol="M_dimA", word="threads_a")]
    n_dim_a: Annotated[int, Tunable("reading threads across A", symbol="N_dimA", word="threads_a")]
    m_dim_b: Annotated[int, Tunable("reading threads along B's memory", symbol="M_dimB", word="threads_b")]
    n_dim_b: Annotated[int, Tunable("reading threads across B", symbol="N_dimB", word="threads_b")]
    vector: Annotated[
        int, Tunable("elements of shared memory that a thread reads at a time: 1 as published", default=1)
    ]
    read: Annotated[str, Tunable("loads of A and B: cached as any other (ca) or on the read-only path (nc)")]
    load: Annotated[
        int,
        Tunable(
            "elements of A or B that a thread loads at a time, where they are aligned: 1 as published",
            default=1,
        ),
    ] = 1
    buffers: Annotated[
        int,
        Tunable("stripes in shared memory; 1 as published, of more the others are copied meanwhile", default=1),
    ] = 1


S = TypeVar("S", bound=StencilConfig)


def _vectors_fit_threads(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, StencilConfig)
    m_vectors, n_vectors = config.m_dim * config.vector, config.n_dim * config.vector  # a vector of each thread
    return config.vector == 1 or (config.m_blk % m_vectors == 0) & (config.n_blk % n_vectors == 0)


def _reads_lines(candidate: Candidate) -> bool:
    config, least = candidate.config, candidate.guidelines.min_line_bytes
    assert isinstance(config, StencilConfig)
    return line_bytes(config, candidate.problem) >= least


def line_bytes(config: StencilConfig, problem: Problem) -> int:
    """Return the contiguous bytes that one row of a reading grid loads at a time, the lesser number of A and B."""
    wide_a, wide_b = at_a_time(config.load, config.buffers, problem)
    shorter: int = np.minimum(config.m_dim_a * wide_a, config.m_dim_b * wide_b)
    return shorter * problem.dtype.element_bytes


def _loads_fit_grids(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, StencilConfig)
    along_a, along_b, _ = candidate.problem.contiguous
    wide_a, wide_b = at_a_time(config.load, config.buffers, candidate.problem)
    of_a, of_b = (config.k_blk if along_a == "k" else config.m_blk, config.k_blk if along_b == "k" else config.n_blk)
    return (of_a % (config.m_dim_a * wide_a) == 0) & (of_b % (config.m_dim_b * wide_b) == 0)


def _lines_are_loads(candidate: Candidate) -> bool:
    load, buffers = tunable(candidate, "load"), tunable(candidate, "buffers")
    return load == 1 or load in _in_loads(candidate, load, buffers)


def _widest_copies(candidate: Candidate) -> bool:
    load, buffers = tunable(candidate, "load"), tunable(candidate, "buffers")
    widest = VECTOR_BYTES // candidate.problem.dtype.element_bytes
    return buffers == 1 or load == widest or widest not in _in_loads(candidate, widest, buffers)


def _in_loads(candidate: Candidate, load: int, buffers: int) -> list[int]:
    """Return the elements that a thread loads at a time, for each operand whose extent along memory is whole loads.

    The list has no element for other operands.
    """
    problem = candidate.problem
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    wide = at_a_time(load, buffers, problem)
    return [of for of, along in zip(wide, problem.contiguous, strict=False) if extents[along] % load == 0]


def at_a_time(load: int, buffers: int, problem: Problem) -> tuple[int, int]:
    """Return the elements of A and of B that a thread loads or copies at a time.

    An asynchronous copy keeps adjacent elements adjacent. In shared memory, elements of one k are adjacent. So with
    several buffers an operand that is contiguous along k is copied element by element, which transposes it.
    """
    along_a, along_b, _ = problem.contiguous
    return (1 if along_a == "k" and buffers > 1 else load), (1 if along_b == "k" and buffers > 1 else load)


def _within_a_warp(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, StencilConfig)
    is_fermi = candidate.limits.compute_capability[0] == FERMI
    return is_fermi | ((config.m_dim_a <= WARP_THREADS) & (config.m_dim_b <= WARP_THREADS))


LINES = Rule(
    "min-line-bytes",
    "guideline",
    "memory is read in sectors of 32 bytes, which neighbouring threads should share",
    _reads_lines,
)
LOADS_FIT_GRIDS = Rule(
    "loads-fit-grids",
    "limit",
    "along the operand's memory a stripe is whole loads of the threads that read it",
    _loads_fit_grids,
)
GRIDS_OF_A_WARP = Rule(
    "grids-of-a-warp",
    "shape",
    "along memory a warp reads the same neighbours, however much longer than a warp the grid is",
    _within_a_warp,
)
OF_GRIDS = (LOADS_FIT_GRIDS, GRIDS_OF_A_WARP, LINES)  # the rules that depend on the reading grids


def _reading_grid(threads: int, lines: int, k_blk: int, *, along_k: bool, wide: int) -> tuple[int, int] | None:
    """Return the reading grid of an operand with the largest extent along contiguous memory, at most a warp.

    A thread loads `wide` elements at a time. The second number is the extent across. Return None if no grid fits.
    """
    along, across = (k_blk, lines) if along_k else (lines, k_blk)
    fits = [
        dim
        for dim in range(1, WARP_THREADS + 1)
        if threads % dim == along % (dim * wide) == 0 and across % (threads // dim) == 0
    ]
    return (max(fits), threads // max(fits)) if fits else None


def with_widest_grids(made: type[S], problem: Problem, *numbers: int) -> S | None:
    """Return the configuration with these values and the reading grids that extend furthest along contiguous memory.

    `numbers` are m_blk, n_blk, k_blk, m_dim, n_dim, vector, load, buffers. `load` becomes 1 if both operands are
    copied element by element. Return None if no grid fits.
    """
    m_blk, n_blk, k_blk, m_dim, n_dim, vector, load, buffers = numbers
    threads, (along_a, along_b, _) = m_dim * n_dim, problem.contiguous
    wide_a, wide_b = at_a_time(load, buffers, problem)
    of_a = _reading_grid(threads, m_blk, k_blk, along_k=along_a == "k", wide=wide_a)
    of_b = _reading_grid(threads, n_blk, k_blk, along_k=along_b == "k", wide=wide_b)
    if of_a is None or of_b is None:
        return None
    load = max(wide_a, wide_b)
    return made(m_blk, n_blk, k_blk, m_dim, n_dim, *of_a, *of_b, vector, "nc", load, buffers)


STENCIL_RULES = (
    Rule(
        "read-path-exists",
        "limit",
        "the read-only path needs compute capability 3.5 or newer",
        lambda c: c.config.tunables["read"] == "ca" or not (0, 0) < c.limits.compute_capability < OLDEST_WITH_NC,
    ),
    Rule(
        "read-path-of-its-own",
        "shape",
        "from Volta on the read-only path is that of every load, and as fast",
        lambda c: c.config.tunables["read"] == "nc" or c.limits.compute_capability < ONE_READ_PATH,
    ),
    Rule(
        "published-for-fermi",
        "limit",
        "on Fermi the space is the published one: element by element, and the next stripe in registers",
        lambda c: (
            tunable(c, "vector") == tunable(c, "load") == tunable(c, "buffers") == 1
            or c.limits.compute_capability[0] != FERMI
        ),
    ),
    Rule(
        "copies-exist",
        "limit",
        "copies to shared memory that no thread waits for need compute capability 8.0 or newer",
        lambda c: tunable(c, "buffers") == 1 or not (0, 0) < c.limits.compute_capability < OLDEST_WITH_COPIES,
    ),
    Rule(
        "vectors-of-16-bytes",
        "limit",
        "a thread reads at most 16 bytes of shared memory at a time",
        lambda c: tunable(c, "vector") * c.problem.dtype.element_bytes <= VECTOR_BYTES,
    ),
    Rule(
        "vectors-fit-threads",
        "limit",
        "a thread's rows and columns are whole vectors",
        _vectors_fit_threads,
    ),
    Rule(
        "loads-fit-vectors",
        "limit",
        "what is loaded at a time is stored so, in shared memory that is aligned for vectors",
        lambda c: tunable(c, "vector") % tunable(c, "load") == 0,
    ),
    Rule(
        "widest-vectors-first",
        "shape",
        "where shared memory is read by less than 16 bytes, that takes the time, and not what is on its way",
        lambda c: (
            tunable(c, "load") == tunable(c, "buffers") == 1
            or tunable(c, "vector") * c.problem.dtype.element_bytes == VECTOR_BYTES
        ),
    ),
    Rule(
        "lines-are-loads",
        "shape",
        "several elements are loaded at a time where an operand's lines are whole loads, and so aligned",
        _lines_are_loads,
    ),
    Rule(
        "widest-copies",
        "shape",
        "where a line is whole copies of 16 bytes, fewer and larger copies cost least",
        _widest_copies,
    ),
    *OF_GRIDS,
)
