"""Data of the roofline chart: arithmetic intensities and rates of trials, winners and cuBLAS, and peak rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsm2_tune.html.bounds import MOST_POINTS, grouped, left_out, spread_of_each
from tsm2_tune.html.contents import TrialRow
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import TuningRun

MARGIN = 2.0  # factor by which the axis extends past the outermost points


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
