"""How much of a database a page holds, so that it opens quickly, and how what is left out is chosen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_WINNERS = 2000  # rows of the table of winners, and dots of gains
MOST_PROBLEMS = 500  # rows of the tables behind charts
MOST_LOSSES = 100
MOST_POINTS = 3000  # of the roofline: SVG elements, which a browser draws in under a second
MOST_SEARCHES = 100  # lines of convergence
MOST_OF_MAPS = 20_000  # trials behind heat maps
MOST_TRIALS = 5000  # rows of the table of trials
MOST_CHARACTERS = 500  # of a text in a cell


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items by their keys, in the order in which these come first."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def share(sizes: Sequence[int], most: int) -> int:
    """How many each group may keep, so that all together are at most so many; at least one."""
    low, high = 1, max([1, *sizes])
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in sizes) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def first_of_each(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """The first ones of each group, equally many where groups are large enough; so many together at the most."""
    each = share([len(group) for group in groups], most)
    return [item for group in groups for item in group[:each]][:most]


def spread_of_each(groups: Sequence[Sequence[T]], most: int) -> list[T]:
    """The same, but evenly over each group, its first and last included."""
    each = share([len(group) for group in groups], most)
    return [item for group in groups for item in _spread(group, each)][:most]


def _spread(group: Sequence[T], most: int) -> Sequence[T]:
    if len(group) <= most or most == 1:
        return group[:most]
    return [group[round(place * (len(group) - 1) / (most - 1))] for place in range(most)]


def cut(text: str) -> str:
    """The text, or its beginning with a word on how much is left out."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… ({len(text) - MOST_CHARACTERS} more characters)"


def left_out(what: str, kept: int, total: int, which: str) -> str:
    """A sentence on what is left out; empty where nothing is."""
    if kept >= total:
        return ""
    return f"{kept:,} of {total:,} {what}: {which}. The command's options choose others."
