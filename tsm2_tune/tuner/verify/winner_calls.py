"""The calls of the full verification (`exhaustive.py`). The calls for each index width are:

- small problems in which m, n and k leave every possible remainder after division by the kernel's tile sizes;
- small problems with more k tiles than pipeline stages, with more output tiles than thread blocks if the grid has a
  fixed size, and with k = 1, for which the error bound is the smallest;
- for a split-k kernel, other numbers of splits than its own: 1, few, more than one pass reduces, more than k tiles;
- on the small problems around the kernel's tile sizes (`edge_problems`) all defined calls, not only some;
- problems with an extent of 1, on the emulator with unreadable memory before the operands;
- problems in which extents, numbers of blocks, k tiles or leading dimensions exceed 16 bits, if memory suffices;
- problems with the largest offsets that 32-bit indices can address, and with larger offsets for 64-bit indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.probes import (
    deep_problems,
    edge_problems,
    launch_problems,
    least_problems,
    long_line_problems,
    long_problems,
    many_tile_problems,
    precise_problems,
    products_of_a_block,
    remainder_problems,
    within,
)
from tsm2_tune.generator.problem import LARGEST_32_BIT_OFFSET, PADDING_ROWS, Problem
from tsm2_tune.generator.source import INDEX_BITS
from tsm2_tune.tuner.verify.bound_kernel import Entry
from tsm2_tune.tuner.verify.checks import (
    LONG_LINES,
    LONG_WHOLE_LINES,
    checks_of,
    deep_checks,
    every_check,
    first_checks,
    long_checks,
    overwriting,
    precise_checks,
    probe_checks,
    sweep_checks,
)
from tsm2_tune.tuner.worker.protocol import WATCHED, Call, FullVerification, Run

PAST_32_BITS = 2**32  # elements from the first column in memory to the last one
SLOW_PRODUCTS = 1e8  # multiplications of one thread block, which takes some milliseconds
WHOLE = 4  # a padding that is a multiple of this gives whole vectors, any other an odd leading dimension


@dataclass(frozen=True, slots=True)
class Coverage:
    """Limits on the size of the full verification, in products m * n * k. The CPU emulator has lower limits."""

    products: float  # sum over the problems with remainders, for each index width, tiles counted whole
    long_products: float  # of each problem with a long extent
    repeated_products: float  # of the problem that is launched many times
    launches: int  # number of repeated launches
    large_offsets: bool  # whether calls with large offsets are made
    every_call: bool  # on `edge_problems`: all calls, else a trial's calls with the other index width
    deep_products: float  # of each problem with many k tiles, with many output tiles, or with k = 1
    launch_products: float  # of each problem with another number of splits
    watched_products: float = 0.0  # sum over `edge_problems` with race detection, tiles counted whole


ON_GPU = Coverage(
    products=1e12,
    long_products=3e11,
    repeated_products=1e11,
    launches=2000,
    large_offsets=True,
    every_call=True,
    deep_products=1e11,
    launch_products=1e9,
)
EMULATED = Coverage(
    products=3e6,
    long_products=3e6,
    repeated_products=1e4,
    launches=40,
    large_offsets=False,
    every_call=False,
    deep_products=3e6,
    launch_products=3e6,
    watched_products=4e7,
)


def full_verification(
    problem: Problem,
    config: KernelConfig,
    entries: tuple[tuple[int, Entry], ...],
    coverage: Coverage,
    *,
    seed: int,
    watched: Entry | None = None,
) -> FullVerification:
    """Return the request for the full verification of a configuration's kernel.

    `entries` contains pairs of an index width in bits and the kernel compiled for it. `watched` is the kernel that
    was compiled with race detection; None for no race detection.
    """
    repeated = repeated_problem(problem, config, coverage) if coverage.launches else None
    runs = [
        Run(
            f"with {bits}-bit indices",
            entry,
            bits,
            tuple(calls_for(problem, config, coverage, bits)),
            repeated,
            coverage.launches,
        )
        for bits, entry in entries
    ]
    if watched is not None:
        runs.append(Run(WATCHED, watched, INDEX_BITS[0], tuple(watched_calls(problem, config, coverage))))
    return FullVerification(problem, tuple(runs), seed)


def calls_for(asked: Problem, config: KernelConfig, coverage: Coverage, bits: int) -> Iterator[Call]:
    """Yield the calls of the full verification whose offsets `bits`-bit indices can represent."""
    return (
        call for call in _calls(asked, config, coverage, bits) if call.problem.index_bits_of(call.padding) <= bits
    )


def _calls(asked: Problem, config: KernelConfig, coverage: Coverage, bits: int) -> Iterator[Call]:
    for number, problem in enumerate(edge_problems(config, asked)):
        if coverage.every_call:
            yield Call("edges", problem, every_check(problem))
        elif bits != asked.index_bits:
            yield Call("edges", problem, probe_checks(problem, number))
    for problem in least_problems(config, asked):
        yield Call("first in memory", problem, first_checks(problem))
    for problem in deep_problems(config, asked, most_products=coverage.deep_products):
        yield Call("long k", problem, deep_checks(problem))
    for problem in many_tile_problems(config, asked, most_products=coverage.deep_products):
        yield Call("many tiles", problem, sweep_checks(problem, 0)[:2])
    for splits, problem in launch_problems(config, asked, most_products=coverage.launch_products):
        yield Call("other splits", problem, sweep_checks(problem, 0)[:2], splits=splits)
    for problem in precise_problems(config, asked, most_products=coverage.deep_products):
        yield Call("one product", problem, precise_checks(problem))
    for number, problem in enumerate(remainder_problems(config, asked, most_products=coverage.products)):
        yield Call("remainders", problem, sweep_checks(problem, number))
    for problem in long_problems(config, asked, most_products=coverage.long_products):
        is_slow = products_of_a_block(config, asked, problem) >= SLOW_PRODUCTS
        yield Call("long extents", problem, long_checks(problem, bits), is_large=True, is_slow=is_slow)
    small, deep = long_line_problems(config, asked)
    most_elements = min(coverage.long_products, PAST_32_BITS)
    for problem, lengths in product((*small, *deep), (LONG_LINES, LONG_WHOLE_LINES)):
        lines_of = ((name, problem.batch * lines) for name, (_, lines) in problem.stored.items())
        if sum(lines * lengths[name] for name, lines in lines_of) <= most_elements:
            check = replace(overwriting(problem), padding=lengths)
            yield Call("long lines", problem, (check,), lengths, is_large=problem in deep)
    if coverage.large_offsets:
        for problem in small:
            yield from _at_large_offsets(problem, bits)


def watched_calls(asked: Problem, config: KernelConfig, coverage: Coverage) -> Iterator[Call]:
    """Yield calls on `edge_problems` for race detection, alternately with vector and with odd leading dimensions."""
    problems = edge_problems(config, asked)
    for number, problem in enumerate(within(config, problems, most_products=coverage.watched_products)):
        check = overwriting(problem) if number % 2 == 0 else checks_of(problem)[1]
        yield Call("edges", problem, (check,))


def _at_large_offsets(problem: Problem, bits: int) -> Iterator[Call]:
    """Yield calls in which one operand's leading dimension is so large that offsets need `bits`-bit indices."""
    for name, (contiguous, lines) in problem.stored.items():
        if lines == 1:
            continue
        if bits == 32:
            apart = (LARGEST_32_BIT_OFFSET // lines - contiguous - PADDING_ROWS - 1) // WHOLE * WHOLE
        else:
            apart = (PAST_32_BITS // (lines - 1) // WHOLE + 1) * WHOLE
        for others, more in ((WHOLE, 0), (0, 1)):  # leading dimensions of whole vectors, then odd ones
            padding = dict.fromkeys("ABC", others) | {name: apart + more}
            check = replace(overwriting(problem), padding=padding)
            yield Call("large offsets", problem, (check,), padding, is_large=True)


def repeated_problem(asked: Problem, config: KernelConfig, coverage: Coverage) -> Problem:
    """Return the largest of `edge_problems` with at most `coverage.repeated_products` products, else the smallest."""
    edges = sorted(edge_problems(config, asked), key=lambda one: one.m * one.n * one.k)
    fitting = [one for one in edges if one.m * one.n * one.k <= coverage.repeated_products]
    return (fitting or edges[:1])[-1]
