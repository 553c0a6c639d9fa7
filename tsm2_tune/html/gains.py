"""Comparisons of the winners with cuBLAS, in sentences and tables by device, element type and problem."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tsm2_tune.console.winner_columns import spread_percent, state_text
from tsm2_tune.html.bounds import MOST_LOSSES, MOST_WINNERS, grouped, left_out
from tsm2_tune.html.table_data import Cell, Number, Table, count, fixed, rounded
from tsm2_tune.tuner.measure.vendor import table_cells
from tsm2_tune.tuner.measure.vendor.libraries import version_text
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.trial import TuningRun

CLOSE = 0.03  # relative difference of times up to which they count as equal


@dataclass(frozen=True, slots=True)
class Gain:
    """Statistics of a group of winners compared with cuBLAS."""

    winners: int
    compared: int  # winners for which cuBLAS gave a right result
    wrong: int  # winners for which cuBLAS's result is outside the error bound
    faster: int  # by more than CLOSE
    close: int
    slower: int
    mean: float | None  # geometric mean of cuBLAS's time over ours; None if no winner is compared
    median: float | None
    least: float | None
    most: float | None
    percent_of_floor: float  # median over the winners


def gain_of(winners: Sequence[BestRow]) -> Gain:
    """Return the statistics of these winners compared with cuBLAS. There must be at least one winner."""
    factors = [row.x_cublas for row in winners if row.x_cublas is not None]
    faster, slower = sum(one > 1 + CLOSE for one in factors), sum(one < 1 - CLOSE for one in factors)
    return Gain(
        winners=len(winners),
        compared=len(factors),
        wrong=sum(row.vendor_us is not None and not row.vendor_right for row in winners),
        faster=faster,
        close=len(factors) - faster - slower,
        slower=slower,
        mean=statistics.geometric_mean(factors) if factors else None,
        median=statistics.median(factors) if factors else None,
        least=min(factors, default=None),
        most=max(factors, default=None),
        percent_of_floor=statistics.median(row.percent_of_floor for row in winners),
    )


def sentence(device: str, gain: Gain) -> str:
    """Return sentences that compare the winners on the device with cuBLAS."""
    problems = f"{gain.winners:,} problem{'s' if gain.winners != 1 else ''}"
    floor = f"The median winner reaches {gain.percent_of_floor:.0f} % of the floor."
    if gain.mean is None:
        return f"{device}: {problems} with a winner, and no time of cuBLAS to compare them with. {floor}"
    untimed = gain.winners - gain.compared - gain.wrong
    rest = f" {untimed:,} were not compared." if untimed else ""
    rest += f" cuBLAS gave a wrong result for {gain.wrong:,}." if gain.wrong else ""
    return (
        f"{device}: {gain.median:.2f} x cuBLAS in the median of {gain.compared:,} of {problems}, {gain.mean:.2f}"
        f" in the geometric mean:"
        f" {gain.faster:,} faster by over 3 %, {gain.close:,} within 3 %, {gain.slower:,} slower by over 3 %.{rest}"
        f" {floor}"
    )


def by_type(winners: Sequence[BestRow]) -> Table:
    """Return a table that compares the winners with cuBLAS, with one row for each device and element type."""
    rows = list[tuple[Cell, ...]]()
    for group in sorted(grouped(winners, lambda row: (row.device, row.dtype)), key=lambda one: one[0].dtype):
        gain = gain_of(group)
        rows.append(
            (
                group[0].dtype,
                group[0].device,
                *map(count, (gain.winners, gain.compared, gain.faster, gain.close, gain.slower)),
                *(fixed(one, 2) for one in (gain.median, gain.mean, gain.least, gain.most)),
                fixed(gain.percent_of_floor, 0),
            )
        )
    heads = (
        "element type", "device", "problems", "compared", "over 3 % faster", "within 3 %", "over 3 % slower",
        "median x cuBLAS", "mean", "least", "most", "median % of floor",
    )  # fmt: skip
    return Table("Winners beside cuBLAS by element type; the mean is geometric", heads, tuple(rows)).without_one(
        "device"
    )


def lost(winners: Sequence[BestRow]) -> Table:
    """Return a table of the problems for which cuBLAS is faster by more than CLOSE, the largest loss first."""
    losses = sorted((row for row in winners if row.x_cublas is not None and row.x_cublas < 1 - CLOSE), key=_factor)
    rows = tuple(
        (
            row.problem.text,
            row.device,
            fixed(row.median_us, 1),
            fixed(row.vendor_us, 1),
            fixed(row.x_cublas, 2),
            table_cells.routine(row),
        )
        for row in losses[:MOST_LOSSES]
    )
    note = left_out("losses", len(rows), len(losses), "the largest first")
    heads = ("problem", "device", "winner us", "cuBLAS us", "x cuBLAS", "routine")
    found = Table("Problems that cuBLAS computes faster by over 3 %", heads, rows, note=note)
    return found if len({row.device for row in winners}) > 1 else found.without_one("device")


def _factor(row: BestRow) -> float:
    return row.x_cublas if row.x_cublas is not None else math.inf


def dots(winners: Sequence[BestRow]) -> list[dict[str, Any]]:
    """Return a dictionary for each winner compared with cuBLAS, with its rank on its device by gain, from 1."""
    found = []
    for group in grouped((row for row in winners if row.x_cublas is not None), lambda row: row.device):
        for rank, row in enumerate(sorted(group, key=_factor, reverse=True), 1):
            one = {"problem": row.problem.text, "device": row.device, "dtype": row.dtype, "rank": rank}
            times = {"x": row.x_cublas, "us": row.median_us, "vendor_us": row.vendor_us}
            found.append({**one, **times, "config": row.config, "routine": row.vendor_routine or ""})
    return found[:MOST_WINNERS]


def best_by_shape(winners: Sequence[BestRow]) -> Table:
    """Return a table of the winners, one row for each problem, device and L2 state."""
    rows = tuple(_best_cells(row) for row in winners[:MOST_WINNERS])
    heads = (
        "problem", "device", "L2", "configuration", "median us", "spread %", "% of floor", "cuBLAS us", "x cuBLAS",
        "ties", "state",
    )  # fmt: skip
    note = left_out("winners", len(rows), len(winners), "the first problems by device, op, type and shape")
    caption = "The fastest verified configuration of each problem"
    table = Table(caption, heads, rows, is_sortable=True, note=note).without_one("device")
    return table if any(map(state_text, winners)) else table.without_one("state")


def _best_cells(row: BestRow) -> tuple[Cell, ...]:
    vendor = fixed(row.vendor_us, 1)
    if row.vendor_us is not None and not row.vendor_right:
        vendor = Number(row.vendor_us, f"{vendor.text} (wrong)")
    return (
        row.problem.text,
        row.device,
        row.cache if row.compute_capability else "-",
        row.config,
        fixed(row.median_us, 1),
        fixed(spread_percent(row), 1),
        fixed(row.percent_of_floor, 1),
        vendor,
        fixed(row.x_cublas, 2),
        count(row.ties),
        state_text(row),
    )


def devices(runs: Sequence[TuningRun], winners: Sequence[BestRow], ended: Mapping[str, Sequence[str]]) -> Table:
    """Return a table of the devices: tools, memory bandwidth, and the dates of their trials, which `ended` has."""
    rows = list[tuple[Cell, ...]]()
    for run in runs:
        one = run.identity
        versions = sorted({row.vendor_version for row in winners if row.device == one.name and row.vendor_version})
        times = ended.get(one.name, ())
        rows.append(
            (
                one.name,
                one.compute_capability or "host",
                one.driver,
                one.toolkit,
                ", ".join(map(version_text, versions)) or "-",
                run.version,
                _days(times),
                rounded(run.ceilings.read_gbytes_per_s),
                rounded(run.ceilings.copy_gbytes_per_s),
                count(len(times)),
            )
        )
    heads = (
        "device", "compute capability", "driver", "compiler", "cuBLAS", "tsm2-tune", "tried", "read GB/s",
        "copy GB/s", "trials",
    )  # fmt: skip
    return Table("Devices, with the tools and measured ceilings of their last runs", heads, tuple(rows))


def _days(times: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((min(times)[:10], max(times)[:10]))) if times else "-"


def outcomes(counted: Mapping[str, int]) -> Table:
    """Return a table of how many trials had each outcome."""
    total = sum(counted.values())
    rows = tuple(
        (name, count(number), fixed(100 * number / total, 1)) for name, number in Counter(counted).most_common()
    )
    return Table("How trials ended", ("outcome", "trials", "%"), rows)
