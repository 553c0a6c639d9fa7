"""Small problems on which a kernel is verified, so that it is right for every shape and not for one.

Three kinds: at the edges of a configuration, which its family names; with every remainder of every extent; and with
more of something than 16 bits count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd

from tsm2_tune.generator.config import GROUP_SPLITS, KernelConfig, Periods
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem

MOST_REMAINDERS = 1024  # of one extent: of longer periods so many, evenly
LONG_BITS = (16, 12, 8)  # an extent has more bits than the largest of these for which there is time
# Of a period, from one remainder of m, n and k to the next: the first few are spread evenly already. The fractions of
# the golden ratio, of 2**0.5 and of 3**0.5, so that remainders of equal periods do not go together.
STRIDES = (0.6180339887, 0.4142135624, 0.7320508076)
# Whole periods beside the remainder: each remainder of k comes with none, and again with some.
TURNS_DOWN, TURNS_ACROSS, TURNS_ALONG_K = (0, 1, 2), (1, 0), (1, 4, 2)
FEW, FEW_MORE = 5, 7  # of the other extents where one is long
FEW_LAUNCHED = (2, 3)  # splits with which any kernel is tried that has a workspace
THREAD_PRODUCTS = 16  # products that take an emulated thread as long as its start and end
TURNS_WHERE_LONG = 2  # along k, where m or n is long and the other one is whole
PAST_8_BITS = 2**8
VECTOR_ELEMENTS = 8  # of every type whole vectors
PAST_A_VECTOR = VECTOR_ELEMENTS + 1  # of every type more bytes than a vector has
FEWEST_STAGES = 2  # of a family that names none
LONGEST = 2**25  # of k: A and B have 6.4 GB then, of the largest type


def edge_problems(config: KernelConfig, problem: Problem) -> tuple[Problem, ...]:
    """Return small problems that meet the edges of this configuration.

    For a Gram matrix, which is square, both extents in turn.
    """
    shapes = family_named(config.family).probe_shapes(config, problem)
    if problem.is_gram:
        shapes = tuple(dict.fromkeys((size, size, k) for m, n, k in shapes for size in (m, n)))
    return _of_shapes(problem, shapes)


def remainder_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return small problems that have every remainder of m, n and k by the periods of this configuration.

    The first have one extent that is not whole, and others that are. All together multiply at most `most_products`,
    in whole tiles: then they are the first of so many, spread evenly.
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
    return _of_shapes(problem, dict.fromkeys(shapes))


def _one_past_whole(periods: Periods, problem: Problem) -> list[tuple[int, int, int]]:
    m, n, k = periods.m, periods.n, 2 * periods.k
    if problem.is_gram:
        return [(m, m, k), (m + 1, m + 1, k), (m, m, k + 1)]
    return [(m, n, k), (m + 1, n, k), (m, n + 1, k), (m, n, k + 1)]


def long_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return the problems that have more than 16 bits of one extent, of turns along k (of each split), or of blocks
    of C.

    The others are few, or whole, so that loads are too. Where m or n is long and whole, k is two periods, and again
    one: some kernels are fast, or hold an operand, only where it is no longer. Each is of at most `most_products` in
    whole tiles, for which some have fewer than 16 bits, or are left out.
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
    return _of_shapes(problem, dict.fromkeys(shapes))


def products_of_a_block(config: KernelConfig, asked: Problem, problem: Problem) -> float:
    """Return how many products, in whole tiles, a block of the asked problem's kernel makes on another problem."""
    family = family_named(config.family)
    blocks, splits = family.launch(config, asked).grid(problem.m, problem.n)
    return _products((problem.m, problem.n, problem.k), family.periods(config, asked)) / (blocks * splits)


def _long_shapes(config: KernelConfig, problem: Problem, bits: int) -> list[tuple[int, int, int]]:
    """As `long_problems` says, of more than so many bits."""
    family = family_named(config.family)
    periods, launch, past = family.periods(config, problem), family.launch(config, problem), 2**bits
    long_m, long_n, long_k = (past + 2 * period + 1 for period in (periods.m, periods.n, periods.k))
    many_turns = past * periods.k + 1
    shapes = [(FEW, FEW, k) for k in (long_k, launch.splits * long_k, many_turns, launch.splits * many_turns)]
    if problem.is_gram:
        wide, wider = periods.m + FEW, PAST_8_BITS + 2 * periods.m + 1  # beside the diagonal there is another way
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
    """Extents of more than so many: the first that is whole, and one whose lower bits are as few as can be."""
    return (past // period + 1) * period, past + 1


def deep_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return those in which every split takes more turns along k than it has stages, by so many that each stage is
    the last of one; and with a longer k than m and n are, one that lacks rows of a whole tile and one that lacks
    columns. Each only where it is not too large.

    Staged chunks are overwritten only in the first; and k taken for m or n shows only in the others. They lack more
    than a vector, so that what is read past the end of an operand is past what a host lets be read behind it.
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
    return _of_shapes(problem, fitting)


def many_tile_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return the problem with more tiles of C than the grid has blocks, if the grid does not depend on C.

    Return no problem if the grid depends on C, or if the problem is too large.
    """
    family = family_named(config.family)
    periods, launch = family.periods(config, problem), family.launch(config, problem)
    if not launch.persistent:
        return ()
    m, n = periods.m, periods.m if problem.is_gram else periods.n
    while launch.tiles(m, n) <= launch.splits:
        m += periods.m
        n = m if problem.is_gram else n
    shape = (m, n, 2 * periods.k)
    return _of_shapes(problem, [shape] if _products(shape, periods) <= most_products else [])


def launch_problems(
    config: KernelConfig, problem: Problem, *, most_products: float
) -> tuple[tuple[int, Problem], ...]:
    """Return the splits, and a problem to be tried with them, for a kernel that may be started with any number of
    them.

    They are 1 and few, one more than are added up at once or by one block, and the configuration's. With each a whole
    tile of C, of which every split has a part and the last of them a rest; and several tiles, of which all but a few
    splits have nothing. Each only where it is not too large.
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
    """Return those in which one extent is 1, of a whole tile otherwise, and in which all are."""
    periods = family_named(config.family).periods(config, problem)
    m, n, k = periods.m, periods.n, periods.k
    if problem.is_gram:
        return _of_shapes(problem, dict.fromkeys([(1, 1, 1), (1, 1, k), (m, m, 1)]))
    return _of_shapes(problem, dict.fromkeys([(1, 1, 1), (1, n, k), (m, 1, k), (m, n, 1)]))


def precise_problems(config: KernelConfig, problem: Problem, *, most_products: float) -> tuple[Problem, ...]:
    """Return a whole tile of C whose elements are of one product each; none where that is too large."""
    periods = family_named(config.family).periods(config, problem)
    shape = (periods.m, periods.m if problem.is_gram else periods.n, 1)
    return _of_shapes(problem, [shape] if _products(shape, periods) <= most_products else [])


def within(config: KernelConfig, problems: Iterable[Problem], *, most_products: float) -> tuple[Problem, ...]:
    """Return the smallest problems, in this order, that together multiply at most `most_products` in whole tiles."""
    problems = tuple(problems)
    costs = {one: products_of(config, one) for one in problems}
    kept, left = set[Problem](), most_products
    for one in sorted(costs, key=lambda one: costs[one]):
        left -= costs[one]
        if left >= 0 or not kept:
            kept.add(one)
    return tuple(one for one in problems if one in kept)


def products_of(config: KernelConfig, problem: Problem) -> float:
    """Products that the configuration's kernel computes if all its tiles are whole."""
    return _products((problem.m, problem.n, problem.k), family_named(config.family).periods(config, problem))


def long_line_problems(config: KernelConfig, problem: Problem) -> tuple[Problem, Problem, Problem, Problem]:
    """Return the problems for lines that are far apart in memory.

    Of few elements; of a whole tile; of one and some more, along k whole vectors; and of several turns a split.
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
    first, second, third, fourth = _of_shapes(problem, (few, whole, both, all_turns))
    return first, second, third, fourth


def _of_shapes(problem: Problem, shapes: Iterable[tuple[int, int, int]]) -> tuple[Problem, ...]:
    return tuple(replace(problem, m=m, n=n, k=k) for m, n, k in shapes)


def _step(period: int, stride: float) -> int:
    """From one remainder to the next: prime to the period, so that all of them come."""
    step = max(round(stride * period), 1)
    while gcd(step, period) != 1:
        step += 1
    return step


def _extent(number: int, period: int, turns: int) -> int:
    """Return an extent of so many whole periods and a remainder, at least 1."""
    return number % period + turns * period or period


def _products(shape: tuple[int, int, int], periods: Periods) -> float:
    """Return the number of products that a kernel with only whole tiles computes."""
    m, n, k = shape
    return float(-(-m // periods.m) * periods.m) * (-(-n // periods.n) * periods.n) * (-(-k // periods.k) * periods.k)
