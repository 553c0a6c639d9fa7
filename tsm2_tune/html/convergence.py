"""Searches: the trials and seconds that each took to find its best time, and how much of its space it tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tsm2_tune.generator.families import parse_config
from tsm2_tune.html.bounds import MOST_PROBLEMS, MOST_SEARCHES, grouped, left_out
from tsm2_tune.html.contents import TrialRow
from tsm2_tune.html.table_data import Table, count, fixed, rounded
from tsm2_tune.tuner.search.candidates import Why

NEAR = 1.05  # of the best time
ENDED: Mapping[str | None, str] = {Why.MAX_TRIALS: "--max-trials", Why.BUDGET: "--budget", Why.GAIN: "--gain"}


@dataclass(frozen=True, slots=True)
class Step:
    """The best time after some trials."""

    trials: int  # ended so far
    seconds: float  # their total time
    best_us: float


@dataclass(frozen=True, slots=True)
class Search:
    """The best time so far over the trials of a search."""

    name: str
    steps: tuple[Step, ...]  # one for each change of the best time, and one for the end
    trials: int
    seconds: float

    @property
    def best_us(self) -> float:
        return self.steps[-1].best_us


def name_of(trial: TrialRow) -> str:
    """Return the name of the trial's search."""
    return f"{trial.problem.text} on {trial.device}, L2 {trial.cache}"


def by_search(trials: Sequence[TrialRow]) -> tuple[list[list[TrialRow]], str]:
    """Return the trials of each search, and a sentence on trials of none: those imported from a text have no seconds.

    A search has the trials of one problem on one device, in one state of the L2 and with one compiler.
    """
    with_strategy = {(one.device, one.problem, one.cache) for one in trials if one.strategy}
    own = [
        one
        for one in trials
        if not (one.is_between or one.is_superseded)
        # If a search marked its own trials, the others are of kernels timed at shapes that they did not win.
        and (one.strategy or (one.device, one.problem, one.cache) not in with_strategy)
    ]
    groups = grouped(own, lambda one: (one.device, one.problem, one.cache, one.basis))
    timed = [group for group in groups if sum(one.total_seconds for one in group) > 0]
    untimed = len(groups) - len(timed)
    note = f"{untimed:,} problems were imported from a text, which has no order and no seconds." if untimed else ""
    return timed, note


def searches(groups: Sequence[Sequence[TrialRow]]) -> tuple[list[Search], str]:
    """Return the searches with a result, most trials first, and a sentence on what is left out."""
    found = [search for group in groups for search in _search(group)]
    found.sort(key=lambda one: -one.trials)
    note = left_out("searches", min(len(found), MOST_SEARCHES), len(found), "those with most trials")
    return found[:MOST_SEARCHES], note


def _search(group: Sequence[TrialRow]) -> Iterator[Search]:
    """Yield the search of these trials, if one of them has a time."""
    steps, seconds = list[Step](), 0.0
    for number, one in enumerate(group, 1):
        seconds += one.total_seconds
        if one.median_us is not None and (not steps or one.median_us < steps[-1].best_us):
            steps.append(Step(number, seconds, one.median_us))
    if steps:
        steps.append(Step(len(group), seconds, steps[-1].best_us))
        yield Search(name_of(group[0]), tuple(steps), len(group), seconds)


def lines(found: Sequence[Search]) -> list[dict[str, Any]]:
    """Return the steps of all searches, with each time also as a multiple of its search's best."""
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
    """Return a table with a row for each search."""
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
    """Configurations that a search tried, of all in its space."""

    search: str
    tried: int
    configurations: int
    ended: str | None  # the stored reason for the end of the search


def coverages(searches: Sequence[Sequence[TrialRow]]) -> list[Coverage]:
    """Return the coverage of each search, given its trials; searches with most configurations first.

    A search is left out if the size of its space is not stored, or if several spaces were searched and none has all
    that was tried.
    """
    found = [one for trials in searches for one in _coverage(trials)]
    return sorted(found, key=lambda one: -one.tried)


def _coverage(trials: Sequence[TrialRow]) -> Iterator[Coverage]:
    configs = filter(None, (parse_config(one.config) for one in trials))
    tried = len({config.early for config in configs})  # without the variants that a search tries late
    configurations = max(one.space_configurations or 0 for one in trials)
    if 0 < tried <= configurations:
        yield Coverage(name_of(trials[0]), tried, configurations, trials[-1].search_ended)


def completeness(found: Sequence[Coverage], searches: int) -> str:
    """Say how many configurations these searches tried, of the number of all searches."""
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
    """Return a table with a row for each search."""
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
    note = left_out("searches", len(rows), len(found), "those that tried most configurations")
    heads = ("search", "configurations tried", "in the search space", "% tried", "ended by")
    return Table("Completeness of each search", heads, rows, note=note)
