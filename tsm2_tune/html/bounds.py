"""Limits of the amount of data in an HTML page, so that it opens quickly, and the choice of the data to keep."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_WINNERS = 2000  # rows of the table of winners, and dots of the chart of gains
MOST_PROBLEMS = 500  # rows of the table of searches
MOST_LOSSES = 100
MOST_POINTS = 3000  # of the roofline chart: a browser draws so many SVG elements in under a second
MOST_SEARCHES = 100  # lines of the convergence chart
MOST_OF_MAPS = 20_000  # trials in all heat maps
MOST_TRIALS = 5000  # rows of the table of trials
MOST_CHARACTERS = 500  # of a text in a table cell


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Return a list of groups of items with equal keys, in the order in which the keys first occur."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def share(sizes: Sequence[int], most: int) -> int:
    """Return how many items each group may keep, at least 1, so that all groups keep at most `most` together."""
    low, high = 1, max([1, *sizes])
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in sizes) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def first_of_each(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """Return the first items of each group, at most `most` items in all. No group gets more than an equal share."""
    each = share([len(group) for group in groups], most)
    return [item for group in groups for item in group[:each]][:most]


def spread_of_each(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """Return items spread evenly over each group, including its first and last item, at most `most` items in all."""
    each = share([len(group) for group in groups], most)
    return [item for group in groups for item in _spread(group, each)][:most]


def _spread(group: Sequence[T], most: int) -> Sequence[T]:
    if len(group) <= most or most == 1:
        return group[:most]
    return [group[round(place * (len(group) - 1) / (most - 1))] for place in range(most)]


def cut(text: str) -> str:
    """Return the text. If it is too long, return its beginning and the number of omitted characters."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… ({len(text) - MOST_CHARACTERS} more characters)"


def left_out(what: str, kept: int, total: int, which: str) -> str:
    """Return a note that only `kept` of `total` items are shown, and `which`; "" if all are shown."""
    if kept >= total:
        return ""
    return f"{kept:,} of {total:,} {what}: {which}. The command's options choose others."
