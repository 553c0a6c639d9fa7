"""Compare the winners of one device or database with the winners of another, problem by problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from tsm2_tune.html.bounds import MOST_WINNERS
from tsm2_tune.tuner.results.best_view import BestRow

MOST_SIDES = 4  # most sides that are compared with the first


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: the winners of one device in one database."""

    name: str
    winners: tuple[BestRow, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of winners, with the problems that both have measured in the same state of the L2 cache."""

    first: Side
    other: Side
    pairs: tuple[tuple[BestRow, BestRow], ...]  # winners of first and other; first's largest gain first
    other_states: int  # number of shared problems that were measured in different L2 states

    @property
    def mean(self) -> float:
        """The geometric mean of the time of `other` divided by the time of `first`."""
        return geometric_mean(map(factor, self.pairs))


def factor(pair: tuple[BestRow, BestRow]) -> float:
    """Return the second winner's time divided by the first winner's. Above 1, the first is faster."""
    return pair[1].median_us / pair[0].median_us


def sides(name: str, winners: Sequence[BestRow]) -> list[Side]:
    """Return the winners of each device in the database `name` as a Side, the device with most winners first."""
    counts = Counter(row.device for row in winners)
    devices = sorted(counts, key=lambda one: (-counts[one], one))
    return [Side(f"{device} ({name})", tuple(row for row in winners if row.device == device)) for device in devices]


def comparisons(every: Sequence[Side]) -> list[Comparison]:
    """Compare the first side with each of the next four. Omit a side that has no problem in common with the first."""
    if not every:
        return []
    first, *others = every
    by_problem = {row.problem: row for row in first.winners}
    found = []
    for other in others[:MOST_SIDES]:
        both = [(by_problem[row.problem], row) for row in other.winners if row.problem in by_problem]
        pairs = sorted((pair for pair in both if pair[0].cache == pair[1].cache), key=factor, reverse=True)
        if both:
            found.append(Comparison(first, other, tuple(pairs), len(both) - len(pairs)))
    return found


def sentence(one: Comparison) -> str:
    """Return the sentence about a comparison: its shared problems, and the mean ratio of their times."""
    states = f" {one.other_states:,} more were measured in different states of the L2." if one.other_states else ""
    if not one.pairs:
        return (
            f"{one.first.name} and {one.other.name} share no problem that was measured in the same state of the"
            f" L2.{states}"
        )
    faster = sum(factor(pair) > 1 for pair in one.pairs)
    shown = f" The chart has the {MOST_WINNERS:,} with the largest gains of the first."
    return (
        f"{one.first.name} beside {one.other.name}: {len(one.pairs):,} shared problems, {faster:,} of them faster"
        f" on the first; times on the other are {one.mean:.2f} times as long in the geometric mean.{states}"
        f"{shown if len(one.pairs) > MOST_WINNERS else ''}"
    )


def dots(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the chart's data: one dictionary for each shared problem of each comparison."""
    return [
        {
            "other": one.other.name,
            "problem": pair[0].problem.text,
            "cache": pair[0].cache if pair[0].compute_capability else "-",
            "rank": rank,
            "x": factor(pair),
            "us": pair[0].median_us,
            "other_us": pair[1].median_us,
            "config": pair[0].config,
            "other_config": pair[1].config,
        }
        for one in found
        for rank, pair in enumerate(one.pairs[:MOST_WINNERS], 1)
    ]
