"""How much of its search space each search tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tsm2_tune.generator.families import config_spelt
from tsm2_tune.html.bounds import MOST_PROBLEMS, left_out
from tsm2_tune.html.convergence import name_of
from tsm2_tune.html.reading import TrialRow
from tsm2_tune.html.tables import Table, count, rounded
from tsm2_tune.tuner.search.candidates import Why

ENDED: Mapping[str | None, str] = {Why.MAX_TRIALS: "--max-trials", Why.BUDGET: "--budget", Why.GAIN: "--gain"}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Configurations that a search tried, of all in its space."""

    search: str
    tried: int
    configurations: int
    ended: str | None  # why, as the tuner stores it


def coverages(searches: Sequence[Sequence[TrialRow]]) -> list[Coverage]:
    """Return the coverage of each search, given its trials, those that tried most first.

    A search is left out if the size of its space is not stored, or if several spaces were searched and none has all
    that was tried.
    """
    found = [one for trials in searches for one in _coverage(trials)]
    return sorted(found, key=lambda one: -one.tried)


def _coverage(trials: Sequence[TrialRow]) -> Iterator[Coverage]:
    configs = filter(None, (config_spelt(one.config) for one in trials))
    tried = len({config.early for config in configs})  # without the variants that a search tries late
    configurations = max(one.space_configurations or 0 for one in trials)
    if 0 < tried <= configurations:
        yield Coverage(name_of(trials[0]), tried, configurations, trials[-1].search_ended)


def sentence(found: Sequence[Coverage], searches: int) -> str:
    """Say how many configurations these searches tried, of the number of all searches."""
    if not found:
        return ""
    tried, configurations = sum(one.tried for one in found), sum(one.configurations for one in found)
    whole = sum(one.tried == one.configurations for one in found)
    said = f"Configurations tried: {tried:,} of {configurations:,} ({rounded(100 * tried / configurations).text} %)"
    said += f" in {len(found):,} searches, of which {whole:,} tried all."
    if len(found) < searches:
        said += f" How many configurations there are is not known for {searches - len(found):,} more."
    return said


def table(found: Sequence[Coverage]) -> Table:
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
