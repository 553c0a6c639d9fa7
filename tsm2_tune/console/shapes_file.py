"""Write the matrix products that a program computed with cuBLAS as a file for the option --shapes."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tsm2_tune.api.products import MOST_PROBLEMS, MOST_SHAPES_BYTES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.journal import REASONS, Seen, Written, total_us
from tsm2_tune.tuner.results.trial import count_text, in_a_line

ROOM_FOR_THE_REST = 100  # bytes reserved for the last comment
LEAST_OF_SERIES = 4  # least number of products in a series
STEP = 2  # least ratio of neighbouring extents of a series that are kept
NO_PRODUCTS = (  # reasons for which cuBLAS computes a product even if a tuned kernel exists
    "it has an epilogue",
    "cuBLASLt computes more than a product in place",
    "its matrices are given by pointers in device memory",
)


def recorded(written: Written, program: Sequence[str], worth: float = 0.0) -> Iterator[str]:
    """Yield the lines of a shapes file: one problem per line, most GPU time first, with its calls and its time.

    `written` are the recorded products of the command `program`. Problems with a smaller share of the time than
    `worth` become comments. The lines do not exceed the limits of a shapes file.
    """
    head = [f"# Products of {in_a_line(shlex.join(program))}, by cuBLAS, most GPU time first."]
    head += [f"# {in_a_line(sentence)}" for sentence in written.besides]
    if written.is_empty:
        head.append(f"# {written.none_seen}")
    room = MOST_SHAPES_BYTES - sum(len(line.encode()) + 1 for line in head) - ROOM_FOR_THE_REST
    yield from head
    for count, line in enumerate(_lines(written.seen, worth)):
        room -= len(line.encode()) + 1
        if room < 0 or count == MOST_PROBLEMS:
            rest = count_text(len(written.seen) - count, "product")
            yield f"# left out because the file for --shapes is full: {rest} with less time"
            return
        yield line


def _lines(seen: Sequence[Seen], worth: float) -> Iterator[str]:
    """Yield a line for each product: a problem, or a comment that says why the product is left out."""
    whole, totals = total_us(seen), totals_of(seen)
    captured = {one.problem for one in seen if one.captured}
    of_series = stand_for_series({one: us for one, us in totals.items() if one not in captured}, worth * whole)
    for one in seen:
        problem = one.problem
        about = f"{count_text(one.calls, 'time')}, {one.total_us:.1f} us in all"
        if whole:
            about += f", {100 * one.total_us / whole:.1f} %"
        about += f", {one.routine} {one.op}" + (", unaligned lines" if one.has_unaligned_lines else "")
        if one.captured:
            about += f", {one.captured} of them into a CUDA graph, whose launches are not counted"
        if problem is None or not is_computed(problem):
            yield f"# left out because no kernel family computes it: {one.shape_text} {one.dtype}: {about}"
        elif is_more_than_product(one):
            yield f"# left out because {one.reason}: {problem.text}: {about}"
        elif problem in of_series:
            yield f"{problem.text}  # {about}, for {of_series[problem]} that differ in one extent"
        elif whole and totals[problem] < worth * whole and problem not in captured:
            yield f"# left out because of its small share: {problem.text}: {about}"
        else:
            yield f"{problem.text}  # {about}"


def is_computed(problem: Problem) -> bool:
    return any(family.supports(problem) for family in FAMILIES.values())


def is_more_than_product(one: Seen) -> bool:
    """Return whether every call of this product does more than multiply, such as an epilogue."""
    return sum(one.left[REASONS.index(reason)] for reason in NO_PRODUCTS) == one.calls


def totals_of(seen: Sequence[Seen]) -> dict[Problem, float]:
    """Return the total microseconds of each problem, over all cuBLAS routines and leading dimensions."""
    totals = defaultdict[Problem, float](float)
    for one in seen:
        problem = one.problem
        if problem is not None and is_computed(problem) and not is_more_than_product(one):
            totals[problem] += one.total_us
    return totals


def stand_for_series(totals: Mapping[Problem, float], worth_us: float) -> dict[Problem, str]:
    """Return the products to tune for each series of products, with a text that says how many products it has.

    The products of a series differ in only one of m, n and k. Each product takes less than `worth_us`, but all
    products of the series together take at least `worth_us`. A kernel tuned for one shape is also used for the shapes
    between, so a few products stand for the series.
    """
    series = defaultdict[tuple[object, ...], dict[int, Problem]](dict)
    for problem in (one for one, us in totals.items() if us < worth_us):
        m, n, k = extents = problem.m, problem.n, problem.k
        for extent, others in zip(extents, ((n, k, "m"), (m, k, "n"), (m, n, "k")), strict=True):
            series[problem.dtype_name, problem.op, problem.batch, *others][extent] = problem
    found = dict[Problem, str]()
    for members in series.values():
        if len(members) < LEAST_OF_SERIES or sum(totals[one] for one in members.values()) < worth_us:
            continue
        last, largest = 0, max(members)
        for extent in sorted(members):
            if extent >= STEP * last or extent == largest:
                found[members[extent]] = count_text(len(members), "product")
                last = extent
    return found
