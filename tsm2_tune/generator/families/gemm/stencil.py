"""The universal stencil, the kernel of the families gemm and minplus: its tunables, its rules, and its loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import numpy as np

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families.family import VECTORS_OF_16_BYTES, WARP_THREADS, rule_of, vector_elements
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate, tunable
from tsm2_tune.generator.space.rules import Rule
from tsm2_tune.generator.space.tunables import Tunable

VECTORS = (1, 2, 4)
LOADS = (1, 2, 4)
BUFFERS = (1, 2)  # k tiles in shared memory; with 1 the next k tile is loaded into registers
# Options of `read` -> the CUDA intrinsic: loads cached in the L1, or loads on the read-only path.
READS = {"ca": "__ldca", "nc": "__ldg"}
OLDEST_WITH_NC, ONE_READ_PATH = (3, 5), (7, 0)  # compute capabilities: the first with __ldg; one path for both
OLDEST_WITH_COPIES = (8, 0)  # the first compute capability with asynchronous copies to shared memory
FERMI = 2  # major compute capability


@dataclass(frozen=True, slots=True)
class GemmConfig(KernelConfig):
    """A configuration of gemm or minplus, under the paper's names. In a table the tunables are arrays."""

    family: ClassVar[str] = "gemm"

    m_blk: Annotated[int, Tunable("rows of C that a block computes", symbol="M_blk", word="block")]
    n_blk: Annotated[int, Tunable("columns of C that a block computes", symbol="N_blk", word="block")]
    k_blk: Annotated[int, Tunable("k extent of the tiles of A and B", symbol="K_blk", word="block")]
    m_dim: Annotated[int, Tunable("threads of a block in the m direction", symbol="M_dim", word="threads")]
    n_dim: Annotated[int, Tunable("threads of a block in the n direction", symbol="N_dim", word="threads")]
    m_dim_a: Annotated[int, Tunable("threads loading A, contiguous", symbol="M_dimA", word="threads_a")]
    n_dim_a: Annotated[int, Tunable("threads loading A, strided", symbol="N_dimA", word="threads_a")]
    m_dim_b: Annotated[int, Tunable("threads loading B, contiguous", symbol="M_dimB", word="threads_b")]
    n_dim_b: Annotated[int, Tunable("threads loading B, strided", symbol="N_dimB", word="threads_b")]
    vector: Annotated[
        int, Tunable("elements that a thread reads from shared memory at a time; 1 in the paper", default=1)
    ]
    read: Annotated[str, Tunable("loads of A and B: normal (ca) or through the read-only cache (nc)")]
    load: Annotated[
        int,
        Tunable("elements of A or B that a thread loads at a time, if they are aligned; 1 in the paper", default=1),
    ] = 1
    buffers: Annotated[
        int, Tunable("k tiles in shared memory; 1 in the paper; with more, copies are asynchronous", default=1)
    ] = 1


S = TypeVar("S", bound=GemmConfig)


def _vectors_fit_threads(config: GemmConfig, problem: Problem) -> bool:
    m_vectors, n_vectors = config.m_dim * config.vector, config.n_dim * config.vector  # a vector of each thread
    return config.vector == 1 or (config.m_blk % m_vectors == 0) & (config.n_blk % n_vectors == 0)


def _reads_lines(candidate: Candidate) -> bool:
    config, least = candidate.config, candidate.guidelines.min_line_bytes
    assert isinstance(config, GemmConfig)
    return line_bytes(config, candidate.problem) >= least


def line_bytes(config: GemmConfig, problem: Problem) -> int:
    """Return the contiguous bytes that a row of a reading grid loads at a time, of A or B, whichever is less."""
    wide_a, wide_b = at_a_time(config.load, config.buffers, problem)
    shorter: int = np.minimum(config.m_dim_a * wide_a, config.m_dim_b * wide_b)
    return shorter * problem.dtype.element_bytes


def _loads_fit_grids(config: GemmConfig, problem: Problem) -> bool:
    along_a, along_b, _ = problem.contiguous
    wide_a, wide_b = at_a_time(config.load, config.buffers, problem)
    of_a, of_b = (config.k_blk if along_a == "k" else config.m_blk, config.k_blk if along_b == "k" else config.n_blk)
    return (of_a % (config.m_dim_a * wide_a) == 0) & (of_b % (config.m_dim_b * wide_b) == 0)


def _widest_copies(config: GemmConfig, problem: Problem) -> bool:
    widest = vector_elements(problem)
    return config.buffers == 1 or config.load == widest or widest not in _in_loads(problem, widest, config.buffers)


def _in_loads(problem: Problem, load: int, buffers: int) -> list[int]:
    """Return the elements that a thread loads at a time, for each operand whose contiguous extent is whole loads."""
    wide = at_a_time(load, buffers, problem)
    return [of for of, along in zip(wide, problem.contiguous, strict=False) if getattr(problem, along) % load == 0]


def at_a_time(load: int, buffers: int, problem: Problem) -> tuple[int, int]:
    """Return the elements of A and of B that a thread loads or copies at a time.

    In shared memory, elements with equal k are adjacent. An asynchronous copy of several elements cannot transpose
    them. So with several buffers, an operand that is contiguous along k is copied element by element.
    """
    along_a, along_b, _ = problem.contiguous
    return (1 if along_a == "k" and buffers > 1 else load), (1 if along_b == "k" and buffers > 1 else load)


def _within_a_warp(candidate: Candidate) -> bool:
    config = candidate.config
    assert isinstance(config, GemmConfig)
    is_fermi = candidate.limits.compute_capability[0] == FERMI
    return is_fermi | ((config.m_dim_a <= WARP_THREADS) & (config.m_dim_b <= WARP_THREADS))


OF_GRIDS = (  # the rules that depend on the reading grids
    rule_of(
        "loads-fit-grids",
        "limit",
        "in contiguous memory, a tile must be a multiple of what its threads load at a time",
        _loads_fit_grids,
    ),
    Rule(
        "grids-of-a-warp",
        "shape",
        "more than 32 threads along contiguous memory do not change what one warp loads",
        _within_a_warp,
    ),
    Rule(
        "min-line-bytes",
        "guideline",
        "memory is read in sectors of 32 bytes, which neighbouring threads should share",
        _reads_lines,
    ),
)


def _reading_grid(threads: int, lines: int, k_blk: int, *, along_k: bool, wide: int) -> tuple[int, int] | None:
    """Return the extents of an operand's reading grid along and across contiguous memory; None if no grid fits.

    The extent along contiguous memory is the largest that fits, up to a warp. A thread loads `wide` elements at a
    time.
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
        "since Volta normal loads use the same cache as read-only loads, so only nc is tried",
        lambda c: c.config.tunables["read"] == "nc" or c.limits.compute_capability < ONE_READ_PATH,
    ),
    Rule(
        "published-for-fermi",
        "limit",
        "on Fermi the search space is the paper's: vector, load and buffers are 1",
        lambda c: (
            tunable(c, "vector") == tunable(c, "load") == tunable(c, "buffers") == 1
            or c.limits.compute_capability[0] != FERMI
        ),
    ),
    Rule(
        "copies-exist",
        "limit",
        "asynchronous copies to shared memory need compute capability 8.0 or newer",
        lambda c: tunable(c, "buffers") == 1 or not (0, 0) < c.limits.compute_capability < OLDEST_WITH_COPIES,
    ),
    VECTORS_OF_16_BYTES,
    rule_of(
        "vectors-fit-threads",
        "limit",
        "a thread's rows and columns of C must be multiples of its vector",
        _vectors_fit_threads,
    ),
    rule_of(
        "loads-fit-vectors",
        "limit",
        "a thread stores to shared memory what it loaded at a time, so vector must be a multiple of load",
        lambda config, problem: config.vector % config.load == 0,
    ),
    rule_of(
        "widest-vectors-first",
        "shape",
        "reads of less than 16 bytes of shared memory are the bottleneck: wide loads and more buffers do not help",
        lambda config, problem: config.load == config.buffers == 1 or config.vector == vector_elements(problem),
    ),
    rule_of(
        "lines-are-loads",
        "shape",
        "loads of several elements are aligned only if the contiguous extent of A or B is a multiple of load",
        lambda config, problem: config.load == 1 or config.load in _in_loads(problem, config.load, config.buffers),
    ),
    rule_of(
        "widest-copies",
        "shape",
        "if the contiguous extent of A or B is a multiple of 16 bytes, copies of 16 bytes cost least",
        _widest_copies,
    ),
    *OF_GRIDS,
)
