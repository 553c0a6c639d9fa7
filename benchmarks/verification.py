"""Measure the cost of verification: per trial of a compiled kernel, and of fully verifying a winner.

python -m benchmarks.verification --output benchmarks/results/h200-verification.json
"""

from __future__ import annotations

import json
import time
from concurrent.futures import wait
from itertools import islice
from pathlib import Path
from typing import Any

import click

from benchmarks.result_file import device_facts, write_json
from tsm2_tune.commands.errors import Command
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import parse_thresholds
from tsm2_tune.generator.space.order import ordered
from tsm2_tune.generator.space.space import search_space
from tsm2_tune.tuner.device.target import find_target
from tsm2_tune.tuner.packs.candidate_times import candidate_times_us
from tsm2_tune.tuner.results.trial import Outcome, Trial
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.strategy import InOrder

PROBLEMS = (
    "20480x16x20480:f32",
    "20480x8x20480:f64",
    "10000000x8x8:f32",
    "1000000x16x16:f64:ttt",
    "16x16x10000000:f64:tn",
    "8x8x100000:f32:tn",
    "15360x8x15360:c64",
    "1024x1024x1024:f32",
)
VERIFICATION = ("verification on probes", "verification")  # phases of a trial


def row(tuner: Tuner, problem: Problem, trials: int) -> dict[str, Any]:
    """Return the cost of the first trials of a problem, and of fully verifying the fastest kernel among them."""
    space = search_space(problem, tuner.target.limits, guidelines=parse_thresholds(""))
    candidates = list(islice(ordered(space, 0, candidate_times_us), trials))
    wait(tuner.compile_ahead(candidates))
    _ = tuner.ceilings  # measured here, before the clock starts
    tuner.phases.taken()
    start = time.perf_counter()
    tried = list(tuner.tune(Search(InOrder(candidates))))
    seconds, phases = time.perf_counter() - start, tuner.phases.taken()
    right = [one for one in tried if one.outcome is Outcome.OK]
    found = {
        "problem": problem.text,
        "trials": len(tried),
        "right": len(right),
        "ms_a_trial": round(1e3 * seconds / len(tried), 2),
        "verification_ms_a_trial": round(1e3 * sum(phases.get(name, 0.0) for name in VERIFICATION) / len(tried), 2),
    }
    return found | (full(tuner, min(right, key=_median_us)) if right else {})


def _median_us(trial: Trial) -> float:
    assert trial.measurement is not None
    return trial.measurement.median_us


def full(tuner: Tuner, fastest: Trial) -> dict[str, Any]:
    """Return the seconds of a full verification, without compiling, and its result."""
    tuner.verify_in_full(fastest.problem, fastest.config)  # compiles the kernel for the other index width
    start = time.perf_counter()
    result = tuner.verify_in_full(fastest.problem, fastest.config)
    seconds = time.perf_counter() - start
    detail = result.verdict.detail if result.verdict is not None else result.detail
    return {
        "fastest": fastest.config.text,
        "full_seconds": round(seconds, 3),
        "full_outcome": result.outcome.value,
        "full_detail": detail,
    }


@click.command(cls=Command)
@click.option("--device", default="0", show_default=True)
@click.option("--trials", default=30, show_default=True, help="Of each problem.")
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(device: str, trials: int, output: Path) -> None:
    """Measure, print a line per problem, and write the file."""
    target = find_target(device)
    rows = []
    for text in PROBLEMS:
        with Tuner(target, Options()) as tuner:
            found = row(tuner, Problem.parse(text), trials)
        rows.append(found)
        click.echo(json.dumps(found))
    write_json(output, {**device_facts("python -m benchmarks.verification", target), "rows": rows})


if __name__ == "__main__":
    main()
