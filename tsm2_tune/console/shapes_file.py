"""Write a program's products as a file for --shapes."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tsm2_tune.api.parse import MOST_PROBLEMS, MOST_SHAPES_BYTES
from tsm2_tune.generator.families import FAMILIES
from tsm2_tune.generator.problem import Problem
from tsm2_tune.interpose.journal import REASONS, Seen, Written, count_of, total_us
from tsm2_tune.tuner.results.trial import in_a_line

ROOM_FOR_THE_REST = 100  # bytes of a comment
LEAST_OF_SERIES = 4  # products that differ in one extent alone
STEP = 2  # least ratio of neighbouring kept extents of a series
NO_PRODUCTS = (  # reasons for which cuBLAS computes a product even if a kernel is tuned
    "an epilogue is asked for",
    "cuBLASLt is asked for more than a product in place",
)


def recorded(written: Written, program: Sequence[str], worth: float = 0.0) -> Iterator[str]:
    """Yield the lines of a shapes file: problems, most time first, each with its calls and its share of the time.

    They fit the size and the number of problems that a shapes file may have.
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
            rest = count_of(len(written.seen) - count, "product")
            yield f"# left out, as a file for --shapes can hold no more: {rest} of less time"
            return
        yield line


def _lines(seen: Sequence[Seen], worth: float) -> Iterator[str]:
    """Yield a line for each product."""
    whole, totals = total_us(seen), totals_of(seen)
    captured = {one.problem for one in seen if one.captured}
    of_series = stand_for_series({one: us for one, us in totals.items() if one not in captured}, worth * whole)
    for one in seen:
        problem = one.problem
        about = f"{count_of(one.calls, 'time')}, {one.total_us:.1f} us in all"
        if whole:
            about += f", {100 * one.total_us / whole:.1f} %"
        about += f", {one.routine} {one.op}" + (", odd lines" if one.has_odd_lines else "")
        if one.captured:
            about += f", {one.captured} of them into a CUDA graph, whose runs are not counted"
        if problem is None or not is_computed(problem):
            m, n, k = one.shape
            yield f"# left out, as no kernel family computes it: {m}x{n}x{k} {one.dtype}: {about}"
        elif is_more_than_product(one):
            yield f"# left out, as {one.reason}: {problem.text}: {about}"
        elif problem in of_series:
            yield f"{problem.text}  # {about}, for {of_series[problem]} that differ in one extent"
        elif whole and totals[problem] < worth * whole and problem not in captured:
            yield f"# left out, as it is worth little: {problem.text}: {about}"
        else:
            yield f"{problem.text}  # {about}"


def is_computed(problem: Problem) -> bool:
    return any(family.supports(problem) for family in FAMILIES.values())


def is_more_than_product(one: Seen) -> bool:
    """Return whether every call asks cuBLAS for more than a product, such as an epilogue."""
    return sum(one.left[REASONS.index(reason)] for reason in NO_PRODUCTS) == one.calls


def totals_of(seen: Sequence[Seen]) -> dict[Problem, float]:
    """Return the total time of each problem, over all routines and leading dimensions."""
    totals = defaultdict[Problem, float](float)
    for one in seen:
        problem = one.problem
        if problem is not None and is_computed(problem) and not is_more_than_product(one):
            totals[problem] += one.total_us
    return totals


def stand_for_series(totals: Mapping[Problem, float], worth_us: float) -> dict[Problem, str]:
    """Return the products to keep of each series, each with a text that describes the series.

    A series is products that differ in one extent alone, such as a vector times 1, 2, ... 50 others. Each is worth
    too little, but all of them together are worth enough. Kernels of the kept shapes serve the shapes between.
    """
    series = defaultdict[tuple[object, ...], dict[int, Problem]](dict)
    for problem in (one for one, us in totals.items() if us < worth_us):
        m, n, k = extents = problem.m, problem.n, problem.k
        for extent, others in zip(extents, ((n, k, "m"), (m, k, "n"), (m, n, "k")), strict=True):
            series[problem.dtype_name, problem.op, *others][extent] = problem
    found = dict[Problem, str]()
    for members in series.values():
        if len(members) < LEAST_OF_SERIES or sum(totals[one] for one in members.values()) < worth_us:
            continue
        last, largest = 0, max(members)
        for extent in sorted(members):
            if extent >= STEP * last or extent == largest:
                found[members[extent]] = count_of(len(members), "product")
                last = extent
    return found
