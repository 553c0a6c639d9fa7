"""Data about searches: how many trials and seconds each needed to find its best kernel, and how much it tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tsm2_tune.generator.families import parse_config
from tsm2_tune.html.bounds import MOST_PROBLEMS, MOST_SEARCHES, grouped, left_out
from tsm2_tune.html.contents import TrialRow
from tsm2_tune.html.table_data import Table, count, fixed, rounded
from tsm2_tune.tuner.search.candidates import Why

NEAR = 1.05  # a time is near the best if it is at most this many times as long
ENDED: Mapping[str | None, str] = {Why.MAX_TRIALS: "--max-trials", Why.BUDGET: "--budget", Why.GAIN: "--gain"}


@dataclass(frozen=True, slots=True)
class Step:
    """The best time of a search after a number of trials."""

    trials: int  # ended so far
    seconds: float  # their total time
    best_us: float


@dataclass(frozen=True, slots=True)
class Search:
    """A search, with its best time so far after each improvement."""

    name: str
    steps: tuple[Step, ...]  # one for each improvement of the best time, and one for the end
    trials: int
    seconds: float

    @property
    def best_us(self) -> float:
        return self.steps[-1].best_us


def name_of(trial: TrialRow) -> str:
    """Return the name of the search to which the trial belongs: problem, device and L2 state."""
    return f"{trial.problem.text} on {trial.device}, L2 {trial.cache}"


def by_search(trials: Sequence[TrialRow]) -> tuple[list[list[TrialRow]], str]:
    """Return the trials of each search, and a sentence about imported trials, which belong to no search.

    A search consists of the trials of one problem on one device, in one L2 state and with one compiler. Imported
    trials have no durations.
    """
    with_strategy = {(one.device, one.problem, one.cache) for one in trials if one.strategy}
    own = [
        one
        for one in trials
        if not (one.is_between or one.superseded)
        # If some trials have a strategy, a trial without a strategy timed another shape's winner: not in the search.
        and (one.strategy or (one.device, one.problem, one.cache) not in with_strategy)
    ]
    groups = grouped(own, lambda one: (one.device, one.problem, one.cache, one.basis))
    timed = [group for group in groups if sum(one.total_seconds for one in group) > 0]
    untimed = len(groups) - len(timed)
    note = (
        f"{untimed:,} problems were imported from a text, which does not contain the order and the seconds of trials."
        if untimed
        else ""
    )
    return timed, note


def searches(groups: Sequence[Sequence[TrialRow]]) -> tuple[list[Search], str]:
    """Return the searches that found a working kernel, with most trials first, and a note on omitted searches."""
    found = [search for group in groups for search in _search(group)]
    found.sort(key=lambda one: -one.trials)
    note = left_out("searches", min(len(found), MOST_SEARCHES), len(found), "the searches with the most trials")
    return found[:MOST_SEARCHES], note


def _search(group: Sequence[TrialRow]) -> Iterator[Search]:
    """Yield the search with these trials, or nothing if no trial has a time."""
    steps, seconds = list[Step](), 0.0
    for number, one in enumerate(group, 1):
        seconds += one.total_seconds
        if one.median_us is not None and (not steps or one.median_us < steps[-1].best_us):
            steps.append(Step(number, seconds, one.median_us))
    if steps:
        steps.append(Step(len(group), seconds, steps[-1].best_us))
        yield Search(name_of(group[0]), tuple(steps), len(group), seconds)


def lines(found: Sequence[Search]) -> list[dict[str, Any]]:
    """Return the chart's data: one dictionary for each step of each search."""
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


def convergence_table(found: Sequence[Search]) -> Table:
    """Return a table with the trials and seconds that each search needed to find its best time."""
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


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of the configurations in its search space a search has tried."""

    search: str
    tried: int
    configurations: int
    ended: str | None  # the stored reason for the end of the search


def coverages(searches: Sequence[Sequence[TrialRow]]) -> list[Coverage]:
    """Return how much of its space each search has tried, the most first, of searches whose space is known."""
    found = [one for trials in searches for one in _coverage(trials)]
    return sorted(found, key=lambda one: -one.tried)


def _coverage(trials: Sequence[TrialRow]) -> Iterator[Coverage]:
    configs = filter(None, (parse_config(one.config) for one in trials))
    tried = len({config.early for config in configs})  # does not count the variants that a search tries last
    configurations = max(one.space_configurations or 0 for one in trials)
    if 0 < tried <= configurations:
        yield Coverage(name_of(trials[0]), tried, configurations, trials[-1].search_ended)


def completeness(found: Sequence[Coverage], searches: int) -> str:
    """Return sentences on how many configurations the searches tried; "" if this is unknown for all."""
    if not found:
        return ""
    tried, configurations = sum(one.tried for one in found), sum(one.configurations for one in found)
    whole = sum(one.tried == one.configurations for one in found)
    text = f"Configurations tried: {tried:,} of {configurations:,} ({rounded(100 * tried / configurations).text} %)"
    text += f" in {len(found):,} searches, of which {whole:,} tried all."
    if len(found) < searches:
        text += f" The number of configurations is unknown for {searches - len(found):,} more."
    return text


def completeness_table(found: Sequence[Coverage]) -> Table:
    """Return a table with the number of configurations that each search tried, and why the search ended."""
    rows = tuple(
        (
            one.search,
            count(one.tried),
            count(one.configurations),
            rounded(100 * one.tried / one.configurations),
            ENDED.get(one.ended, one.ended or "interrupted, or not stored"),
        )
        for one in found[:MOST_PROBLEMS]
    )
    note = left_out("searches", len(rows), len(found), "the searches that tried the most configurations")
    heads = ("search", "configurations tried", "in the search space", "% tried", "ended by")
    return Table("Completeness of each search", heads, rows, note=note)
