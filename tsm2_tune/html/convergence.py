"""How each search came to its best time: by trials and by seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tsm2_tune.html.bounds import MOST_SEARCHES, grouped, left_out
from tsm2_tune.html.reading import TrialRow
from tsm2_tune.html.tables import Table, count, fixed

NEAR = 1.05  # of the best time


@dataclass(frozen=True, slots=True)
class Step:
    """The best time so far."""

    trials: int  # that had ended
    seconds: float  # that they had taken
    best_us: float


@dataclass(frozen=True, slots=True)
class Search:
    """The trials of one problem on one device, in one state of the L2 and with one compiler, in their order."""

    problem: str
    device: str
    cache: str
    steps: tuple[Step, ...]  # where the best time changes, and the end
    trials: int
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.problem} on {self.device}, L2 {self.cache}"

    @property
    def best_us(self) -> float:
        return self.steps[-1].best_us


def searches(trials: Sequence[TrialRow]) -> tuple[list[Search], str]:
    """Those that found something, with most trials first; and what is left out.

    Trials that were imported from a text have no seconds: they are of no search.
    """
    with_strategy = {(one.device, one.problem, one.cache) for one in trials if one.strategy}
    own = [
        one
        for one in trials
        if not (one.is_between or one.is_superseded)
        # Where a search has said which trials are its own, others were made beside: at shapes of others' winners.
        and (one.strategy or (one.device, one.problem, one.cache) not in with_strategy)
    ]
    groups = grouped(own, lambda one: (one.device, one.problem, one.cache, one.basis))
    timed = [group for group in groups if sum(one.total_seconds for one in group) > 0]
    found = [search for group in timed for search in _search(group)]
    found.sort(key=lambda one: -one.trials)
    note = left_out("searches", min(len(found), MOST_SEARCHES), len(found), "those with most trials")
    if len(timed) < len(groups):
        note += (
            f" {len(groups) - len(timed):,} problems were imported from a text, which tells no order and no seconds."
        )
    return found[:MOST_SEARCHES], note.strip()


def _search(group: Sequence[TrialRow]) -> Iterator[Search]:
    """The search of these trials, if one of them has a time."""
    steps, seconds = list[Step](), 0.0
    for number, one in enumerate(group, 1):
        seconds += one.total_seconds
        if one.median_us is not None and (not steps or one.median_us < steps[-1].best_us):
            steps.append(Step(number, seconds, one.median_us))
    if steps:
        steps.append(Step(len(group), seconds, steps[-1].best_us))
        first = group[0]
        yield Search(first.problem.text, first.device, first.cache, tuple(steps), len(group), seconds)


def lines(found: Sequence[Search]) -> list[dict[str, Any]]:
    """The steps of all searches, each time also as a multiple of its search's best."""
    return [
        {
            "search": search.name,
            "trial": step.trials,
            "seconds": step.seconds,
            "us": step.best_us,
            "over": step.best_us / search.best_us,
        }
        for search in found
        for step in search.steps
    ]


def table(found: Sequence[Search]) -> Table:
    """A row for each search."""
    rows = []
    for search in found:
        best = next(step for step in search.steps if step.best_us == search.best_us)
        near = next(step for step in search.steps if step.best_us <= NEAR * search.best_us)
        counts = (count(search.trials), count(near.trials), count(best.trials))
        times = (fixed(near.seconds, 1), fixed(best.seconds, 1), fixed(search.seconds, 1))
        ends = (fixed(search.steps[0].best_us, 1), fixed(search.best_us, 1))
        rows.append((search.name, *counts, *times, *ends))
    heads = (
        "search", "trials", "until within 5 %", "until best", "seconds until within 5 %", "until best", "in all",
        "first us", "best us",
    )  # fmt: skip
    return Table("Trials and seconds until each search found its best", heads, tuple(rows))
