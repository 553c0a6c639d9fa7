"""Bounds on how much of a database a page holds, so that it opens quickly, and the choice of what is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_WINNERS = 2000  # rows of the table of winners, and dots of gains
MOST_PROBLEMS = 500  # rows of the tables behind charts
MOST_LOSSES = 100
MOST_POINTS = 3000  # of the roofline: SVG elements, which a browser draws in under a second
MOST_SEARCHES = 100  # lines of convergence
MOST_OF_MAPS = 20_000  # trials in heat maps
MOST_TRIALS = 5000  # rows of the table of trials
MOST_CHARACTERS = 500  # of a text in a cell


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Return the items with equal keys together, in the order in which the keys first occur."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def share(sizes: Sequence[int], most: int) -> int:
    """Return how many items each group may keep so that all groups together keep at most `most`; at least one."""
    low, high = 1, max([1, *sizes])
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in sizes) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def first_of_each(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """Return the first items of each group, equally many of each large group, at most `most` in all."""
    each = share([len(group) for group in groups], most)
    return [item for group in groups for item in group[:each]][:most]


def spread_of_each(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """Return items spread evenly over each group, with its first and last, at most `most` in all."""
    each = share([len(group) for group in groups], most)
    return [item for group in groups for item in _spread(group, each)][:most]


def _spread(group: Sequence[T], most: int) -> Sequence[T]:
    if len(group) <= most or most == 1:
        return group[:most]
    return [group[round(place * (len(group) - 1) / (most - 1))] for place in range(most)]


def cut(text: str) -> str:
    """Return the text. If it is too long, return its beginning and the number of characters left out."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… ({len(text) - MOST_CHARACTERS} more characters)"


def left_out(what: str, kept: int, total: int, which: str) -> str:
    """Return a sentence on what is left out, or an empty text if nothing is."""
    if kept >= total:
        return ""
    return f"{kept:,} of {total:,} {what}: {which}. The command's options choose others."
