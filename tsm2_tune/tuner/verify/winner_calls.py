"""Which calls a kernel has to pass before it is a winner, of all that a program may make.

They take too long for each configuration that is tried. For each width of index:

- small problems with every remainder of m, n and k by the lengths into which the kernel divides them, with more turns
  along k than it has stages, with more tiles than blocks where their number is fixed, and with a single product,
  whose error is the least;
- a kernel that leaves sums to be added up, with other splits than its configuration's: one, few, more than it adds up
  at once, more than k has chunks for;
- at the edges of its configuration all calls, of which a trial does some;
- problems in which an extent is 1 and a host has nothing before the operands that may be read;
- extents, blocks, turns along k and leading dimensions of more than 16 bits, as far as memory goes;
- the largest offsets for which a program calls a kernel with an index of 32 bits, and larger ones with 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    with_padding,
)
from tsm2_tune.tuner.worker.protocol import WATCHED, Call, FullVerification, Run

PAST_32_BITS = 2**32  # elements from the first line of an operand to its last one
SLOW_PRODUCTS = 1e8  # of a block: it takes some milliseconds
WHOLE = 4  # lines that are longer by a multiple of it are made whole vectors, others of an odd number of elements


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of it is done: where kernels are emulated, a thousand times slower, less."""

    products: float  # of all problems with remainders, in whole tiles, for each width of index
    long_products: float  # of each problem with a long extent
    repeated_products: float  # of the problem that is repeated
    launches: int  # one after another
    large_offsets: bool  # for each width of index
    every_call: bool  # of the edges: else those of a trial, for the width of index that was not timed
    deep_products: float  # of the problem with many turns along k, of that with many tiles, and of one product
    launch_products: float  # of each problem that is tried with other splits
    watched_products: float = 0.0  # of all problems at the edges, in whole tiles, on which the kernel is watched


ON_GPU = Extent(
    products=1e12,
    long_products=3e11,
    repeated_products=1e11,
    launches=2000,
    large_offsets=True,
    every_call=True,
    deep_products=1e11,
    launch_products=1e9,
)
EMULATED = Extent(
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
    extent: Extent,
    *,
    seed: int,
    watched: Entry | None = None,
) -> FullVerification:
    """The request for a configuration's kernel.

    `entries`: bits of the index, and the kernel with it. `watched`: of a host, the kernel in which races are told.
    """
    repeated = repeated_problem(problem, config, extent) if extent.launches else None
    runs = [
        Run(
            f"with {bits}-bit indices",
            entry,
            bits,
            tuple(calls_for(problem, config, extent, bits)),
            repeated,
            extent.launches,
        )
        for bits, entry in entries
    ]
    if watched is not None:
        runs.append(Run(WATCHED, watched, INDEX_BITS[0], tuple(watched_calls(problem, config, extent))))
    return FullVerification(problem, tuple(runs), seed)


def calls_for(asked: Problem, config: KernelConfig, extent: Extent, bits: int) -> Iterator[Call]:
    """Yield those for which a program would call the kernel with an index of so many bits."""
    return (call for call in _calls(asked, config, extent, bits) if call.problem.index_bits_of(call.padding) <= bits)


def _calls(asked: Problem, config: KernelConfig, extent: Extent, bits: int) -> Iterator[Call]:
    for number, problem in enumerate(edge_problems(config, asked)):
        if extent.every_call:
            yield Call("edges", problem, every_check(problem))
        elif bits != asked.index_bits:
            yield Call("edges", problem, probe_checks(problem, number))
    for problem in least_problems(config, asked):
        yield Call("first in memory", problem, first_checks(problem))
    for problem in deep_problems(config, asked, most_products=extent.deep_products):
        yield Call("long k", problem, deep_checks(problem))
    for problem in many_tile_problems(config, asked, most_products=extent.deep_products):
        yield Call("many tiles", problem, sweep_checks(problem, 0)[:2])
    for splits, problem in launch_problems(config, asked, most_products=extent.launch_products):
        yield Call("other splits", problem, sweep_checks(problem, 0)[:2], splits=splits)
    for problem in precise_problems(config, asked, most_products=extent.deep_products):
        yield Call("one product", problem, precise_checks(problem))
    for number, problem in enumerate(remainder_problems(config, asked, most_products=extent.products)):
        yield Call("remainders", problem, sweep_checks(problem, number))
    for problem in long_problems(config, asked, most_products=extent.long_products):
        is_slow = products_of_a_block(config, asked, problem) >= SLOW_PRODUCTS
        yield Call("long extents", problem, long_checks(problem, bits), is_large=True, is_slow=is_slow)
    few, whole, both, deep = long_line_problems(config, asked)
    most_elements = min(extent.long_products, PAST_32_BITS)
    for problem, lengths in product((few, whole, both, deep), (LONG_LINES, LONG_WHOLE_LINES)):
        if sum(lines * lengths[name] for name, (_, lines) in problem.stored.items()) <= most_elements:
            check = with_padding(overwriting(problem), lengths)
            yield Call("long lines", problem, (check,), lengths, is_large=problem is deep)
    if extent.large_offsets:
        for problem in (few, whole, both):
            yield from _at_large_offsets(problem, bits)


def watched_calls(asked: Problem, config: KernelConfig, extent: Extent) -> Iterator[Call]:
    """Calls at the edges, in whole vectors and in none in turns: the numbers do not matter."""
    problems = edge_problems(config, asked)
    for number, problem in enumerate(within(config, problems, most_products=extent.watched_products)):
        check = overwriting(problem) if number % 2 == 0 else checks_of(problem)[1]
        yield Call("edges", problem, (check,))


def _at_large_offsets(problem: Problem, bits: int) -> Iterator[Call]:
    """Calls with lines of one operand so far apart that only an index of so many bits reaches the last one."""
    for name, (contiguous, lines) in problem.stored.items():
        if lines == 1:
            continue
        if bits == 32:
            apart = (LARGEST_32_BIT_OFFSET // lines - contiguous - PADDING_ROWS - 1) // WHOLE * WHOLE
        else:
            apart = (PAST_32_BITS // (lines - 1) // WHOLE + 1) * WHOLE
        for others, more in ((WHOLE, 0), (0, 1)):  # lines of whole vectors, and of none
            padding = dict.fromkeys("ABC", others) | {name: apart + more}
            check = with_padding(overwriting(problem), padding)
            yield Call("large offsets", problem, (check,), padding, is_large=True)


def repeated_problem(asked: Problem, config: KernelConfig, extent: Extent) -> Problem:
    """The largest of those at the edges that is not too large, or the smallest."""
    edges = sorted(edge_problems(config, asked), key=lambda one: one.m * one.n * one.k)
    fitting = [one for one in edges if one.m * one.n * one.k <= extent.repeated_products]
    return (fitting or edges[:1])[-1]
