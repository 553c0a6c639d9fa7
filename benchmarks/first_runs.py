"""Compile, verify and time the first choices for a list of problems, beside the roofline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.cells import Cell
from benchmarks.gpu import gpu
from benchmarks.headline import markdown, number
from benchmarks.result_file import (
    ResultFile,
    is_text,
    is_time,
    program_facts,
    read_json,
    require_new,
    unusable_field,
)
from benchmarks.versus_cublas import measure_cells
from benchmarks.winner import Prospects, Skipped, planned, planners
from tsm2_tune.errors import DeviceError, InputError
from tsm2_tune.generator.predict.expected_time import START_US, expected_us
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.device.target import HOST, Target, find_target
from tsm2_tune.tuner.results.trial import Cache, Outcome
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Options, Tuner
from tsm2_tune.tuner.search.strategies.strategy import InOrder

MOST_PROBLEMS = 10_000
OF_A_ROW: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("problem", "configuration", "outcome", "detail", "regime", "layout", "dtype", "op"), is_text),
    **dict.fromkeys(("m", "n", "k"), lambda value: type(value) is int and value > 0),
    **dict.fromkeys(("measured_us", "expected_us", "floor_us"), is_time),
}


def problems_in(path: Path) -> tuple[Problem, ...]:
    """Return the problems of a list, one per line.

    Raise InputError if there are none or too many, or if a line is no problem.
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no list of problems ({error}): name one that --problems wrote") from None
    if not 1 <= len(lines) <= MOST_PROBLEMS:
        raise InputError(f"{path} has {len(lines)} problems, expected 1 to {MOST_PROBLEMS}: name another list")
    return tuple(dict.fromkeys(map(Problem.parse, lines)))


def read_runs(path: Path) -> dict[str, Any]:
    """Return the content of a file that `run_problems` wrote. Raise InputError for another file."""
    found = read_json(path)
    for number_, row in enumerate(found["rows"], start=1):
        if (unusable := unusable_field(row, OF_A_ROW)) is not None:
            raise InputError(f"{path} has no usable {unusable} in row {number_}: name a file of --run")
    return found


def facts_of(target: Target, tuner: Tuner, command: str) -> dict[str, Any]:
    """Return the facts of the run: device, driver, compiler."""
    identity, ceilings = target.identity, tuner.ceilings
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "device": identity.name,
        "driver": identity.driver,
        "toolkit": identity.toolkit,
        "flags": identity.flags,
        **program_facts(),
        "read_gbytes_per_s": ceilings.read_gbytes_per_s,
        "copy_gbytes_per_s": ceilings.copy_gbytes_per_s,
        "gflops": dict(ceilings.gflops),
        "complete": False,
    }


def row_of(tuner: Tuner, cell: Cell, prospects: Prospects) -> dict[str, Any]:
    """Try the first choice for a problem, and return its row. Raise Skipped if the device fails."""
    first = prospects.candidates[:1]
    try:
        (trial,) = tuner.tune(Search(InOrder(first)))
    except DeviceError as error:
        raise Skipped(str(error)) from None
    measured = trial.measurement if trial.outcome is Outcome.OK else None
    return {
        **cell.record,
        "problem": cell.problem.text,
        "configuration": trial.config.text,
        "outcome": trial.outcome.value,
        "detail": trial.detail,
        "measured_us": measured and measured.median_us,
        "samples_us": measured and [round(us, 3) for us in measured.samples_us],
        "expected_us": float(expected_us(first[0], tuner.ceilings)),
        "floor_us": trial.floor_us,
    }


def times_the_roofline(row: dict[str, Any]) -> float | None:
    """Return the measured time divided by the roofline time with start-up, or None if it is not measured."""
    us: float | None = row["measured_us"]
    return us and us / (row["floor_us"] + START_US)


def line_of(row: dict[str, Any]) -> str:
    """Return a problem's line for the terminal."""
    said = row["outcome"] if row["measured_us"] is None else f"{row['measured_us']:.1f} us"
    return f"{row['problem']:34} {said:>14}, expected {row['expected_us']:.1f} us  {row['configuration']}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the problems, the furthest from the roofline first."""
    heads = ("problem", "measured us", "expected us", "roofline us", "times", "configuration", "outcome")
    ordered = sorted(rows, key=lambda row: -(times_the_roofline(row) or float("inf")))
    lines = [
        (
            row["problem"],
            number(row["measured_us"]),
            number(row["expected_us"]),
            number(row["floor_us"]),
            number(times_the_roofline(row), 1),
            f"`{row['configuration']}`",
            row["outcome"],
        )
        for row in ordered
    ]
    return markdown(heads, lines, texts=("problem", "configuration", "outcome"))


def run_problems(
    path: Path, spec: str, part: tuple[int, int], output: Path, *, resume: bool, time_limit: float | None
) -> None:
    """Time the first choice for each problem of a part of the list, and print its distance from the roofline."""
    start = time.monotonic()
    number_, parts = part
    cells = [Cell("S", "column", problem) for problem in problems_in(path)[number_ - 1 :: parts]]
    if resume and output.exists():
        read_runs(output)  # raises now, not after the run
    else:
        require_new(output, "name another --output, or go on with --resume")
    target = find_target(HOST) if spec == HOST else gpu(spec)
    command = f"python -m benchmarks.first_choices --run {path.name} --part {number_}/{parts}"
    with (
        Tuner(target, Options(budget_seconds=0.1, least_trials=1, cache=Cache.CLEAN)) as tuner,
        planners() as pool,
    ):
        result = ResultFile(output, facts_of(target, tuner, command))
        if resume and output.exists():
            result.go_on(read_runs)
        todo = [cell for cell in cells if not result.measured(cell.record)]
        result.facts["complete"] = measure_cells(
            tuner.phases,
            lambda cell, prospects: row_of(tuner, cell, prospects),
            result,
            planned(tuner, todo, pool),
            time_limit=time_limit,
            start=start,
            line=line_of,
        )
    result.write()
    click.echo(f"\n{table(result.rows)}")
    failed = [row["problem"] for row in result.rows if row["measured_us"] is None]
    if failed:
        raise SystemExit(f"{len(failed)} first choices gave no time: {', '.join(failed)}")
