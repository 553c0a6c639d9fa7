"""Data of heat maps: the least time for each pair of values of two tunables of a family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsm2_tune.html.bounds import MOST_OF_MAPS, grouped, left_out
from tsm2_tune.html.contents import TrialRow

LEAST_TRIALS = 4  # least number of trials in a map
UNSET = "-"  # value of a tunable that an older version's configuration lacks


def maps(trials: Sequence[TrialRow]) -> tuple[list[dict[str, Any]], str]:
    """Return the data of the heat maps, those with most trials first, and a note on omitted trials.

    There is one map for each problem and kernel family of which at least two tunables have several values. A map
    contains its name, the trials' times as `us` and, for each tunable, its sorted values and the index of each
    trial's value.
    """
    timed = [one for one in trials if one.is_compared]
    groups = grouped(timed, lambda one: (one.device, one.problem, one.cache, one.family))
    found, room, total = list[dict[str, Any]](), MOST_OF_MAPS, 0
    for group in sorted(groups, key=len, reverse=True):
        varied = _varied(group)
        if len(group) < LEAST_TRIALS or len(varied) < 2:
            continue
        total += len(group)
        kept = sorted(group, key=lambda one: one.median_us or 0.0)[:room]  # the fastest: a map shows the least times
        if len(kept) == len(group) or not found:
            room -= len(kept)
            found.append(_map(kept, varied))
    drawn = MOST_OF_MAPS - room
    return found, left_out("trials are in heat maps", drawn, total, "the families and problems with the most trials")


def _varied(group: Sequence[TrialRow]) -> list[str]:
    """Return the names of the tunables that have several values in these trials, those with most values first."""
    names = dict.fromkeys(name for one in group for name in one.tunables)
    counts = {name: len({one.tunables.get(name, UNSET) for one in group}) for name in names}
    return sorted((name for name in names if counts[name] > 1), key=lambda name: -counts[name])


def _map(group: Sequence[TrialRow], varied: Sequence[str]) -> dict[str, Any]:
    first, tunables = group[0], dict[str, Any]()
    for name in varied:
        at = [one.tunables.get(name, UNSET) for one in group]
        values = sorted(set(at), key=_in_order)
        places = {value: place for place, value in enumerate(values)}
        tunables[name] = {"values": [str(value) for value in values], "at": [places[value] for value in at]}
    return {
        "name": f"{first.family}, {first.problem.text} on {first.device}, L2 {first.cache}",
        "us": [float(f"{one.median_us or 0.0:.4g}") for one in group],
        "tunables": tunables,
    }


def _in_order(value: int | str) -> tuple[bool, int, str]:
    """Return a sort key for a tunable's value that puts numbers before words."""
    return (isinstance(value, str), value if isinstance(value, int) else 0, str(value))
