"""Comparisons of the winners with cuBLAS, in sentences and tables by device, element type and problem."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    groups = sorted(grouped(winners, lambda row: (row.device, row.dtype)), key=lambda one: one[0].dtype)
    columns: dict[str, Callable[[tuple[BestRow, Gain]], Cell]] = {
        "element type": lambda one: one[0].dtype,
        "device": lambda one: one[0].device,
        "problems": lambda one: count(one[1].winners),
        "compared": lambda one: count(one[1].compared),
        "over 3 % faster": lambda one: count(one[1].faster),
        "within 3 %": lambda one: count(one[1].close),
        "over 3 % slower": lambda one: count(one[1].slower),
        "median x cuBLAS": lambda one: fixed(one[1].median, 2),
        "mean": lambda one: fixed(one[1].mean, 2),
        "least": lambda one: fixed(one[1].least, 2),
        "most": lambda one: fixed(one[1].most, 2),
        "median % of floor": lambda one: fixed(one[1].percent_of_floor, 0),
    }
    caption = "Winners beside cuBLAS by element type; the mean is geometric"
    return Table.of(caption, [(group[0], gain_of(group)) for group in groups], columns, constant=("device",))


def lost(winners: Sequence[BestRow]) -> Table:
    """Return a table of the problems for which cuBLAS is faster by more than CLOSE, the largest loss first."""
    losses = sorted((row for row in winners if row.x_cublas is not None and row.x_cublas < 1 - CLOSE), key=_factor)
    columns: dict[str, Callable[[BestRow], Cell]] = {
        "problem": lambda row: row.problem.text,
        "device": lambda row: row.device,
        "winner us": lambda row: fixed(row.median_us, 1),
        "cuBLAS us": lambda row: fixed(row.vendor_us, 1),
        "x cuBLAS": lambda row: fixed(row.x_cublas, 2),
        "routine": table_cells.routine,
    }
    rows = losses[:MOST_LOSSES]
    note = left_out("losses", len(rows), len(losses), "the largest first")
    constant = () if len({row.device for row in winners}) > 1 else ("device",)
    return Table.of("Problems that cuBLAS computes faster by over 3 %", rows, columns, note=note, constant=constant)


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
    columns: dict[str, Callable[[BestRow], Cell]] = {
        "problem": lambda row: row.problem.text,
        "device": lambda row: row.device,
        "L2": lambda row: row.cache if row.compute_capability else "-",
        "configuration": lambda row: row.config,
        "median us": lambda row: fixed(row.median_us, 1),
        "spread %": lambda row: fixed(spread_percent(row), 1),
        "% of floor": lambda row: fixed(row.percent_of_floor, 1),
        "cuBLAS us": _vendor_cell,
        "x cuBLAS": lambda row: fixed(row.x_cublas, 2),
        "ties": lambda row: count(row.ties),
        "state": state_text,
    }
    rows = winners[:MOST_WINNERS]
    note = left_out("winners", len(rows), len(winners), "the first problems by device, op, type and shape")
    caption = "The fastest verified configuration of each problem"
    constant = ("device",) if any(map(state_text, winners)) else ("device", "state")
    return Table.of(caption, rows, columns, note=note, is_sortable=True, constant=constant)


def _vendor_cell(row: BestRow) -> Number:
    vendor = fixed(row.vendor_us, 1)
    is_wrong = row.vendor_us is not None and not row.vendor_right
    return Number(row.vendor_us, f"{vendor.text} (wrong)") if is_wrong else vendor


def devices(runs: Sequence[TuningRun], winners: Sequence[BestRow], ended: Mapping[str, Sequence[str]]) -> Table:
    """Return a table of the devices: tools, memory bandwidth, and the dates of their trials, which `ended` has."""

    def vendor(run: TuningRun) -> str:
        of_device = (row for row in winners if row.device == run.identity.name)
        versions = sorted({row.vendor_version for row in of_device if row.vendor_version})
        return ", ".join(map(version_text, versions)) or "-"

    columns: dict[str, Callable[[TuningRun], Cell]] = {
        "device": lambda run: run.identity.name,
        "compute capability": lambda run: run.identity.compute_capability or "host",
        "driver": lambda run: run.identity.driver,
        "compiler": lambda run: run.identity.toolkit,
        "cuBLAS": vendor,
        "tsm2-tune": lambda run: run.version,
        "tried": lambda run: _days(ended.get(run.identity.name, ())),
        "read GB/s": lambda run: rounded(run.ceilings.read_gbytes_per_s),
        "copy GB/s": lambda run: rounded(run.ceilings.copy_gbytes_per_s),
        "trials": lambda run: count(len(ended.get(run.identity.name, ()))),
    }
    return Table.of("Devices, with the tools and measured ceilings of their last runs", runs, columns)


def _days(times: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((min(times)[:10], max(times)[:10]))) if times else "-"


def outcomes(counted: Mapping[str, int]) -> Table:
    """Return a table of how many trials had each outcome."""
    total = sum(counted.values())
    rows = tuple(
        (name, count(number), fixed(100 * number / total, 1)) for name, number in Counter(counted).most_common()
    )
    return Table("How trials ended", ("outcome", "trials", "%"), rows)
