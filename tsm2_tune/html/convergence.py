"""Data about searches: how many trials and seconds each needed to find its best kernel, and how much it tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tsm2_tune.generator.families import parse_config
from tsm2_tune.html.bounds import MOST_PROBLEMS, MOST_SEARCHES, grouped, left_out
from tsm2_tune.html.contents import TrialRow
from tsm2_tune.html.table_data import Cell, Table, count, fixed, rounded
from tsm2_tune.tuner.search.candidates import Why

NEAR = 1.05  # a time is near the best if it is at most this many times as long
ENDED: Mapping[str | None, str] = {Why.MAX_TRIALS: "--max-trials", Why.BUDGET: "--budget", Why.GAIN: "--gain"}


@dataclass(frozen=True, slots=True)
class Step:
    """The best time of a search after a number of trials."""

    trials: int | None  # ended so far
    seconds: float | None  # their total time
    best_us: float


NO_STEP = Step(None, None, inf)  # of a search without a time


@dataclass(frozen=True, slots=True)
class Search:
    """A search, with its best time so far after each improvement, and how much of its space it has tried."""

    name: str
    steps: tuple[Step, ...]  # one for each improvement of the best time, and one for the end; () without a time
    trials: int
    seconds: float
    tried: int  # configurations
    configurations: int | None  # in its search space; None if unknown
    ended: str | None  # the stored reason for the end of the search

    @property
    def best_us(self) -> float:
        """The best time; infinite if no trial has a time."""
        return self.steps[-1].best_us if self.steps else inf

    def within(self, factor: float) -> Step:
        """Return the first step whose time is at most `factor` times the best; NO_STEP if no trial has a time."""
        return next((step for step in self.steps if step.best_us <= factor * self.best_us), NO_STEP)


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


def searches(groups: Sequence[Sequence[TrialRow]]) -> list[Search]:
    """Return the searches with a time or a space of known size, those with most trials first."""
    found = [one for one in map(_search, groups) if one.steps or one.configurations is not None]
    return sorted(found, key=lambda one: -one.trials)


def drawn(found: Sequence[Search]) -> tuple[list[Search], str]:
    """Return the searches to draw, and a note on omitted searches."""
    timed = [one for one in found if one.steps]
    kept = timed[:MOST_SEARCHES]
    return kept, left_out("searches", len(kept), len(timed), "the searches with the most trials")


def _search(group: Sequence[TrialRow]) -> Search:
    steps, seconds = list[Step](), 0.0
    for number, one in enumerate(group, 1):
        seconds += one.total_seconds
        if one.median_us is not None and (not steps or one.median_us < steps[-1].best_us):
            steps.append(Step(number, seconds, one.median_us))
    if steps:
        steps.append(Step(len(group), seconds, steps[-1].best_us))
    configs = filter(None, (parse_config(one.config) for one in group))
    tried = len({config.early for config in configs})  # does not count the variants that a search tries last
    configurations = max(one.space_configurations or 0 for one in group)
    known = configurations if 0 < tried <= configurations else None
    return Search(name_of(group[0]), tuple(steps), len(group), seconds, tried, known, group[-1].search_ended)


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


def completeness(found: Sequence[Search], searches: int) -> str:
    """Return sentences on how many configurations the searches tried; "" if this is unknown for all."""
    known = [(one.tried, one.configurations) for one in found if one.configurations is not None]
    if not known:
        return ""
    tried, configurations = map(sum, zip(*known, strict=True))
    whole = sum(one == of for one, of in known)
    text = f"Configurations tried: {tried:,} of {configurations:,} ({rounded(100 * tried / configurations).text} %)"
    text += f" in {len(known):,} searches, of which {whole:,} tried all."
    if len(known) < searches:
        text += f" The number of configurations is unknown for {searches - len(known):,} more."
    return text


def table(found: Sequence[Search]) -> Table:
    """Return a table of the searches: trials and seconds until the best, configurations tried, reason of the end."""
    columns: dict[str, Callable[[Search], Cell]] = {
        "search": lambda one: one.name,
        "trials": lambda one: count(one.trials),
        "trials until within 5 %": lambda one: count(one.within(NEAR).trials),
        "trials until best": lambda one: count(one.within(1.0).trials),
        "seconds": lambda one: fixed(one.seconds, 1),
        "seconds until within 5 %": lambda one: fixed(one.within(NEAR).seconds, 1),
        "seconds until best": lambda one: fixed(one.within(1.0).seconds, 1),
        "best us": lambda one: fixed(one.best_us if one.steps else None, 1),
        "configurations tried": lambda one: count(None if one.configurations is None else one.tried),
        "in the search space": lambda one: count(one.configurations),
        "ended by": lambda one: ENDED.get(one.ended, one.ended or "interrupted, or not stored"),
    }
    rows = found[:MOST_PROBLEMS]
    note = left_out("searches", len(rows), len(found), "the searches with the most trials")
    return Table.of("Trials, seconds and configurations of each search", rows, columns, note=note)
