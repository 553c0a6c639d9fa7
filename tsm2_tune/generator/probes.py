"""Probes: problems other than the tuned shape, on which a kernel is verified.

Most of them have shapes at the edges of a configuration's tiles, or every remainder of m, n and k modulo a tile's
extent, or extents or block counts that exceed 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from math import gcd

from tsm2_tune.generator.config import GROUP_SPLITS, SHARED, KernelConfig, Periods
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem

MOST_REMAINDERS = 1024  # the most remainders tested of m, n or k; longer periods are sampled evenly
LONG_BITS = (16, 12, 8)  # a long extent exceeds 2**bits, where bits is the first of these within the limit of work
# Steps from one tested remainder of m, n and k to the next, as fractions of the period. They are the fractional parts
# of the golden ratio, 2**0.5 and 3**0.5: even the first few remainders are spread evenly, and the sequences differ if
# m, n and k have equal periods.
STRIDES = (0.6180339887, 0.4142135624, 0.7320508076)
# Numbers of whole periods added to a remainder. Each remainder of k is tested without whole periods and with some.
TURNS_DOWN, TURNS_ACROSS, TURNS_ALONG_K = (0, 1, 2), (1, 0), (1, 4, 2)
FEW, FEW_MORE = 5, 7  # the other extents if one extent is long
FEW_LAUNCHED = (2, 3)  # small numbers of splits, tested with every kernel that has a workspace
THREAD_PRODUCTS = 16  # starting and ending an emulated thread takes as long as this many multiply-adds
TURNS_WHERE_LONG = 2  # k tiles if m or n is long, and the other of them is a whole tile
PAST_8_BITS = 2**8
VECTOR_ELEMENTS = 8  # a multiple of a 16-byte vector, for every element type
PAST_A_VECTOR = VECTOR_ELEMENTS + 1  # more than a 16-byte vector, for every element type
MORE_PRODUCTS = 5  # than a vector for each block: then the last group of products is no whole vector
FEWEST_STAGES = 2  # assumed pipeline stages of a family without the tunable `stages`
BATCHES = (2, 1, 3)  # products of small problems
LONG_BATCHES = (2**16, 2**16 + 1, 2_000_003)
LONGEST = 2**25  # the largest k: with the largest element type, A and B then occupy 6.4 GB


def edge_problems(config: KernelConfig, problem: Problem) -> tuple[Problem, ...]:
    """Return small problems whose shapes end just before or after a tile of this configuration.

    A Gram matrix is square: each of the shapes gives a problem whose m and n are the shape's m, and another whose m
    and n are the shape's n.
    """
    shapes = family_named(config.family).probe_shapes(config, problem)
    if problem.is_gram:
        shapes = tuple(dict.fromkeys((size, size, k) for m, n, k in shapes for size in (m, n)))
    return _of_shapes(config, problem, shapes)


def remainder_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return small problems that together have every remainder of m, n and k modulo the configuration's tile.

    The first problem consists of whole tiles. The next problems exceed whole tiles by 1 in m, n or k. The list ends
    before the multiply-adds of all problems, padded to whole tiles, exceed `most_products`. If the list ends early,
    its remainders are spread evenly.
    """
    periods = family_named(config.family).periods(config, problem)
    steps = Periods(*map(_step, (periods.m, periods.n, periods.k), STRIDES))
    shapes = _one_past_whole(periods, problem)
    products = sum(_products(shape, periods) for shape in shapes)
    count = min(max(periods.m, periods.n, periods.k), MOST_REMAINDERS)
    for number, again in ((number, again) for number in range(count) for again in (0, 1)):
        m = _extent(number * steps.m, periods.m, TURNS_DOWN[(number + again) % len(TURNS_DOWN)])
        n = _extent(number * steps.n, periods.n, TURNS_ACROSS[(number + again) % len(TURNS_ACROSS)])
        k = _extent(number * steps.k, periods.k, TURNS_ALONG_K[number % len(TURNS_ALONG_K)] * again)
        shape = (m, m, k) if problem.is_gram else (m, n, k)
        products += _products(shape, periods)
        if products > most_products:
            break
        shapes.append(shape)
    return _of_shapes(config, problem, dict.fromkeys(shapes))


def _one_past_whole(periods: Periods, problem: Problem) -> list[tuple[int, int, int]]:
    m, n, k = periods.m, periods.n, 2 * periods.k
    if problem.is_gram:
        return [(m, m, k), (m + 1, m + 1, k), (m, m, k + 1)]
    return [(m, n, k), (m + 1, n, k), (m, n + 1, k), (m, n, k + 1)]


def long_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return problems in which an extent, the k tiles of a split-k slice, or the blocks of C exceed 2**16.

    The extents that are not long are small, or are whole tiles so that kernels load vectors. If m or n is long and
    consists of whole tiles, k is two k tiles in one problem and one k tile in another, since some kernels have a
    special path for such a small k. If a problem would need more than `most_products` multiply-adds, its long extent
    or count exceeds only 2**12 or 2**8. A problem that would need too many multiply-adds even so is omitted. Of a
    batch of tiny products, the number of products is long too.
    """
    periods = family_named(config.family).periods(config, problem)
    by_bits = [_long_shapes(config, problem, bits) for bits in LONG_BITS]
    fitting = (
        next((one for one in same if one[2] <= LONGEST and _products(one, periods) <= most_products), None)
        for same in zip(*by_bits, strict=True)
    )
    shapes = [*filter(None, fitting)]
    shapes += [
        (m, n, periods.k)
        for m, n, k in shapes
        if k == TURNS_WHERE_LONG * periods.k and m % periods.m == n % periods.n == 0
    ]
    found = _of_shapes(config, problem, dict.fromkeys(shapes))
    if not family_named(config.family).is_batched:  # a grid's z has at most 16 bits
        return found
    tiny = replace(problem, m=2, n=2 if problem.is_gram else 3, k=2)
    batches = (replace(tiny, batch=batch) for batch in LONG_BATCHES)
    return (*found, *within(config, batches, most_products=most_products))


def products_of_a_block(config: KernelConfig, asked: Problem, problem: Problem) -> float:
    """Return the multiply-adds of one block when the kernel for problem `asked` computes `problem`.

    The extents of `problem` count as padded to whole tiles.
    """
    family = family_named(config.family)
    blocks, splits = family.launch(config, asked).grid(problem.m, problem.n)
    return products_of(config, problem) / (blocks * splits)


def _long_shapes(config: KernelConfig, problem: Problem, bits: int) -> list[tuple[int, int, int]]:
    """Return the shapes of `long_problems` that exceed 2**bits, however many multiply-adds they need."""
    family = family_named(config.family)
    periods, launch, past = family.periods(config, problem), family.launch(config, problem), 2**bits
    long_m, long_n, long_k = (past + 2 * period + 1 for period in (periods.m, periods.n, periods.k))
    many_turns = past * periods.k + 1
    shapes = [(FEW, FEW, k) for k in (long_k, launch.splits * long_k, many_turns, launch.splits * many_turns)]
    if problem.is_gram:
        wide, wider = periods.m + FEW, PAST_8_BITS + 2 * periods.m + 1  # other code computes tiles off the diagonal
        shapes += [(wide, wide, many_turns), (wider, wider, FEW_MORE), (long_m, long_m, FEW)]
        return shapes + [(periods.m, periods.m, k) for k in _just_past(past, periods.k)]
    blocks_down, blocks_across = (past * size + 1 for size in (launch.rows_per_block, launch.columns_per_block))
    m, n, k = periods.m, periods.n, periods.k
    few = min(FEW_MORE, k)
    shapes += [(long_m, FEW, few), (FEW, long_n, few), (blocks_down, FEW, few), (FEW, blocks_across, few)]
    turns = TURNS_WHERE_LONG * k
    shapes += [(long, n, turns) for long in _just_past(past, m)] + [(m, long, turns) for long in _just_past(past, n)]
    return shapes + [(m, n, long) for long in _just_past(past, k)]


def _just_past(past: int, period: int) -> tuple[int, int]:
    """Return two extents above `past`: the least multiple of the period, and `past + 1`."""
    return (past // period + 1) * period, past + 1


def deep_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return problems with a large k that need at most `most_products` multiply-adds each, padded to whole tiles.

    In the first kind each split-k slice has more k tiles than the pipeline has stages, so that shared memory is
    reused. There is a problem for each stage that can contain the last k tile.

    In the second kind k exceeds m and n, so that a kernel that confuses k with m or n fails. C is smaller than a tile
    by more rows or columns than a 16-byte vector has elements, so that reads past the end of an operand are detected
    on the host too.
    """
    family = family_named(config.family)
    periods, splits = family.periods(config, problem), family.launch(config, problem).splits
    stages = int(config.tunables.get("stages", FEWEST_STAGES))
    m, n = periods.m, periods.m if problem.is_gram else periods.n
    longer = (2 * max(m, n) // periods.k + 1) * periods.k
    shapes = [(m, n, (stages + 2 + more) * splits * periods.k + 1) for more in range(stages)]
    fewer_rows, fewer_columns = (max(size - PAST_A_VECTOR, size // 2) for size in (m, n))
    shapes += (
        [(fewer_rows,) * 2 + (longer,)] if problem.is_gram else [(fewer_rows, n, longer), (m, fewer_columns, longer)]
    )
    fitting = (one for one in shapes if min(one) > 0 and _products(one, periods) <= most_products)
    return _of_shapes(config, problem, fitting)


def many_tile_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return a problem with more tiles of C than blocks, for a persistent kernel, whose grid does not depend on C.

    If blocks share a batch, each block takes one group of products more than it has stages, as large as possible.

    The result is empty for other kernels, and if the problem needs more than `most_products` multiply-adds.
    """
    family = family_named(config.family)
    periods, launch = family.periods(config, problem), family.launch(config, problem)
    if not launch.persistent:
        return ()
    m, n = periods.m, periods.m if problem.is_gram else periods.n
    if launch.batched == SHARED:
        several = replace(problem, m=m, n=n, k=periods.k)
        stages, _ = family.block_plan(config, several).matrices_in_smem
        groups = launch.splits * (stages + 1)
        several = replace(several, batch=groups * family.products_per_block(config, several) - 1)
        fits = family.computes(config, several) and products_of(config, several) <= most_products
        return (several,) if fits else ()
    while launch.tiles(m, n) <= launch.splits:
        m += periods.m
        n = m if problem.is_gram else n
    shape = (m, n, 2 * periods.k)
    return _of_shapes(config, problem, [shape] if _products(shape, periods) <= most_products else [])


def launch_problems(
    config: KernelConfig, problem: Problem, *, most_products: float
) -> tuple[tuple[int, Problem], ...]:
    """Return (splits, problem) pairs for a kernel with a workspace, which may be launched with any number of splits.

    The numbers of splits are 1, 2, 3, the configuration's own number, and one more than the number of splits whose
    sums the kernel adds up in a single step. Each number is combined with two problems. The first has one whole tile
    of C, work for every split, and a partial last k tile. The second has several tiles of C and work for only a few
    splits. Omit pairs that need more than `most_products` multiply-adds.
    """
    family = family_named(config.family)
    periods, launch = family.periods(config, problem), family.launch(config, problem)
    if not launch.has_workspace:
        return ()
    m, n, k = periods.m, periods.m if problem.is_gram else periods.n, periods.k
    many = 1 + (GROUP_SPLITS if launch.persistent else launch.flat_splits)
    wide = (2 * m + 1,) * 2 if problem.is_gram else (2 * m + 1, n + 1)
    most_turns = max(int(most_products) // (m * n * k), 1)

    def is_small(splits: int, shape: tuple[int, int, int]) -> bool:
        threads = launch.with_splits(splits).blocks(*shape[:2]) * launch.threads
        return max(_products(shape, periods), THREAD_PRODUCTS * threads) <= most_products

    return tuple(
        (splits, replace(problem, m=shape[0], n=shape[1], k=shape[2]))
        for splits in sorted({1, *FEW_LAUNCHED, many, launch.splits})
        for shape in ((m, n, (min(2 * splits, most_turns) - 1) * k + 1), (*wide, 2 * k + 1))
        if is_small(splits, shape)
    )


def least_problems(config: KernelConfig, problem: Problem) -> tuple[Problem, ...]:
    """Return the problem with m = n = k = 1, and problems in which only one extent is 1.

    In the latter, the extents that are not 1 are a whole tile.
    """
    periods = family_named(config.family).periods(config, problem)
    m, n, k = periods.m, periods.n, periods.k
    if problem.is_gram:
        return _of_shapes(config, problem, dict.fromkeys([(1, 1, 1), (1, 1, k), (m, m, 1)]))
    return _of_shapes(config, problem, dict.fromkeys([(1, 1, 1), (1, n, k), (m, 1, k), (m, n, 1)]))


def precise_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return the problem of one whole tile of C and k = 1, in which no sum hides the error of a product.

    The result is empty if the problem needs more than `most_products` multiply-adds.
    """
    periods = family_named(config.family).periods(config, problem)
    shape = (periods.m, periods.m if problem.is_gram else periods.n, 1)
    return _of_shapes(config, problem, [shape] if _products(shape, periods) <= most_products else [])


def within(config: KernelConfig, problems: Iterable[Problem], *, most_products: float) -> tuple[Problem, ...]:
    """Return the smallest problems that together need at most `most_products` multiply-adds, in the given order.

    The extents count as padded to whole tiles. The smallest problem is always returned.
    """
    problems = tuple(problems)
    costs = {one: products_of(config, one) for one in problems}
    kept, left = set[Problem](), most_products
    for one in sorted(costs, key=lambda one: costs[one]):
        left -= costs[one]
        if left >= 0 or not kept:
            kept.add(one)
    return tuple(one for one in problems if one in kept)


def products_of(config: KernelConfig, problem: Problem) -> float:
    """Return the multiply-adds of the problem with its extents padded to whole tiles of the configuration."""
    periods = family_named(config.family).periods(config, problem)
    return problem.batch * _products((problem.m, problem.n, problem.k), periods)


def long_line_problems(config: KernelConfig, problem: Problem) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Return small problems, and a deep one, that are to be verified with large leading dimensions.

    The first small problem has a few elements. The second is a whole tile. The third is a few elements longer than a
    whole tile in each extent, and its k exceeds a k tile by a multiple of 16 bytes. The deep problem is a whole tile
    with several k tiles in each split-k slice. Problems that the kernel does not compute are left out. A batch has at
    most two products: an index counts within a product.
    """
    family = family_named(config.family)
    periods, splits = family.periods(config, problem), family.launch(config, problem).splits
    m, n, k = periods.m, periods.n, periods.k
    deep = 2 * splits * k + FEW
    few, whole, both = (FEW, FEW_MORE, FEW), (m, n, k), (m + FEW, n + FEW_MORE, k + VECTOR_ELEMENTS)
    all_turns = (m, n, deep)
    if problem.is_gram:
        few, whole, both, all_turns = (
            (FEW, FEW, FEW_MORE),
            (m, m, k),
            (m + FEW, m + FEW, k + VECTOR_ELEMENTS),
            (m, m, deep),
        )
    small, large = (
        tuple(replace(one, batch=min(one.batch, 2)) for one in _of_shapes(config, problem, shapes))
        for shapes in ((few, whole, both), (all_turns,))
    )
    return small, large


def _of_shapes(config: KernelConfig, problem: Problem, shapes: Iterable[tuple[int, int, int]]) -> tuple[Problem, ...]:
    """Return the problems with these shapes that the configuration's kernel computes.

    A batch has these numbers of products in turn: BATCHES; if blocks share it, 3, 1, and more than a vector for each
    block.
    """
    family = family_named(config.family)
    many = VECTOR_ELEMENTS * family.launch(config, problem).splits + MORE_PRODUCTS
    of_batch = (3, 1, many) if family.is_batched else BATCHES
    batches = cycle(of_batch if problem.is_batched else (1,))
    every = (replace(problem, m=m, n=n, k=k, batch=batch) for (m, n, k), batch in zip(shapes, batches, strict=False))
    return tuple(one for one in every if family.computes(config, one))


def _step(period: int, stride: float) -> int:
    """Return a number near `stride * period` that is coprime to the period.

    The multiples of such a number have every remainder modulo the period.
    """
    step = max(round(stride * period), 1)
    while gcd(step, period) != 1:
        step += 1
    return step


def _extent(number: int, period: int, turns: int) -> int:
    """Return `number % period` plus `turns` whole periods; return one period if this sum is 0."""
    return number % period + turns * period or period


def _products(shape: tuple[int, int, int], periods: Periods) -> float:
    """Return the multiply-adds of the shape with its extents padded to whole tiles."""
    m, n, k = shape
    return float(-(-m // periods.m) * periods.m) * (-(-n // periods.n) * periods.n) * (-(-k // periods.k) * periods.k)
