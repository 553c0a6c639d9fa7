"""Data of the parts of the page that show each trial: the roofline chart, the heat maps and the list of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsm2_tune.html.bounds import (
    MOST_OF_MAPS,
    MOST_POINTS,
    MOST_TRIALS,
    cut,
    first_of_each,
    grouped,
    left_out,
    spread_of_each,
)
from tsm2_tune.html.contents import TrialRow
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import TuningRun

MARGIN = 2.0  # factor by which the axis extends past the outermost points
LEAST_TRIALS = 4  # least number of trials in a map
UNSET = "-"  # value of a tunable that an older version's configuration lacks
HEADS = {  # headings of the columns, and whether the columns contain numbers
    "trial": ("trial", True),
    "problem": ("problem", False),
    "device": ("device", False),
    "cache": ("L2", False),
    "config": ("configuration", False),
    "outcome": ("outcome", False),
    "us": ("us", True),
    "spread": ("spread %", True),
    "registers": ("registers", True),
    "spills": ("spilled bytes", True),
    "smem": ("shared bytes", True),
    "blocks": ("blocks per SM", True),
    "strategy": ("strategy", False),
    "why": ("reason", False),
}


# --- The roofline chart: arithmetic intensities and rates of trials, winners and cuBLAS, and peak rates ---


def points(trials: Sequence[TrialRow], winners: Sequence[BestRow]) -> tuple[list[dict[str, Any]], str]:
    """Return a point for each timed trial, winner and compared cuBLAS routine, and a note on omitted trials."""
    timed = [one for one in trials if one.is_compared]
    kept = spread_of_each(_by_problem(timed), MOST_POINTS)
    note = left_out(
        "trials are drawn",
        len(kept),
        len(timed),
        "the fastest, the slowest and some trials between them for each problem",
    )
    found = [_point("trial", one.device, one.problem, one.config, one.cache, one.median_us or 0.0) for one in kept]
    for row in winners[:MOST_POINTS]:
        found.append(_point("winner", row.device, row.problem, row.config, row.cache, row.median_us))
        if row.vendor_us is not None and row.vendor_right:
            routine = row.vendor_routine or ""
            found.append(_point("cuBLAS", row.device, row.problem, routine, row.cache, row.vendor_us))
    return found, note


def _by_problem(timed: Sequence[TrialRow]) -> list[list[TrialRow]]:
    """Return a list of the trials of each device and problem, the fastest first."""
    in_order = sorted(timed, key=lambda one: one.median_us or 0.0)
    return grouped(in_order, lambda one: (one.device, one.problem))


def _point(what: str, device: str, problem: Any, config: str, cache: str, us: float) -> dict[str, Any]:
    return {
        "what": what,
        "device": device,
        "dtype": problem.dtype_name,
        "problem": problem.text,
        "config": config,
        "cache": cache,
        "intensity": problem.flops / problem.least_bytes,
        "gflops": problem.flops / us * 1e-3,
        "us": us,
    }


def ceilings(runs: Sequence[TuningRun], drawn: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ends and the ridge of each line of measured peak rates, for the devices and types of the points."""
    found = []
    for run in runs:
        rates, read = dict(run.ceilings.gflops), run.ceilings.read_gbytes_per_s
        for dtype in sorted({one["dtype"] for one in drawn if one["device"] == run.identity.name} & rates.keys()):
            at = [one["intensity"] for one in drawn if (one["device"], one["dtype"]) == (run.identity.name, dtype)]
            ridge = rates[dtype] / read
            ends = (min([*at, ridge]) / MARGIN, ridge, max([*at, ridge]) * MARGIN)
            for intensity in ends:
                gflops = min(read * intensity, rates[dtype])
                found.append({"device": run.identity.name, "dtype": dtype, "intensity": intensity, "gflops": gflops})
    return found


# --- Heat maps: the least time for each pair of values of two tunables of a family ---


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


# --- The list of trials ---


def listed(trials: Sequence[TrialRow]) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of the list, if needed only the fastest of each problem and outcome, and a note on the rest."""
    in_order = sorted(trials, key=lambda one: (one.median_us is None, one.median_us or 0.0, one.id))
    groups = grouped(in_order, lambda one: (one.device, one.problem, one.cache, one.outcome))
    kept = sorted(first_of_each(groups, MOST_TRIALS), key=lambda one: one.id)
    which = "the first trials of each problem and outcome, fastest first"
    note = left_out("trials are listed", len(kept), len(trials), which)
    return [_row(one) for one in kept], f"{note} tsm2-tune show lists all." if note else ""


def heads(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    """Return the columns to show: name -> heading, and whether it contains numbers.

    The device is shown only if there are several, the search strategy only if it is known for some trial.
    """
    is_shown = {"device": len({row["device"] for row in rows}) > 1, "strategy": any(row["strategy"] for row in rows)}
    return {name: head for name, head in HEADS.items() if is_shown.get(name, True)}


def _row(one: TrialRow) -> dict[str, Any]:
    spread = None
    if one.median_us is not None and one.low_us is not None and one.high_us is not None:
        spread = 100 * max(one.high_us / one.median_us - 1, 1 - one.low_us / one.median_us)
    return {
        "trial": one.id,
        "problem": one.problem.text,
        "device": one.device,
        "cache": one.cache,
        "config": one.config,
        "outcome": one.outcome.value,
        "us": one.median_us,
        "spread": spread,
        "registers": one.registers,
        "spills": one.spill_bytes,
        "smem": one.smem_bytes,
        "blocks": one.blocks_per_sm,
        "strategy": one.strategy,
        "why": cut(_why(one)),
    }


def _why(one: TrialRow) -> str:
    """Return the reasons why the trial's kernel cannot become the winner, as a text; "" if there are none."""
    reasons = [] if one.outcome == "ok" else [one.detail]
    if one.superseded:
        reasons.append("superseded: this version generates other code")
    if one.guideline_broken is not None:
        reasons.append(f"breaks the guideline {one.guideline_broken} by its real occupancy")
    return "; ".join(reasons)
