"""Compile, verify and time the configurations of a list, each for its problem."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu import gpu
from benchmarks.result_file import ResultFile, require_new, run_facts
from tsm2_tune.errors import DeviceError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.device.target import HOST, find_target
from tsm2_tune.tuner.results.trial import Cache, Outcome, Trial
from tsm2_tune.tuner.search.candidates import Search
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.strategies.strategy import InOrder

COMPILED_AHEAD = 12  # number of problems whose kernels are compiled ahead
Listed = Sequence[tuple[Problem, Sequence[KernelConfig]]]


def candidates_of(problem: Problem, configs: Sequence[KernelConfig], limits: DeviceLimits) -> list[Candidate]:
    return [Candidate(family_named(one.family), one, problem, limits, Guidelines()) for one in configs]


def row_of(problem: Problem, trial: Trial) -> dict[str, Any]:
    """Return a row of the result file."""
    measured = trial.measurement if trial.outcome is Outcome.OK else None
    return {
        "problem": problem.text,
        "configuration": trial.config.text,
        "outcome": trial.outcome.value,
        "measured_us": measured and measured.median_us,
    }


def time_pairs(listed: Listed, spec: str, output: Path, *, time_limit: float | None) -> None:
    """Time the configurations of each problem one after another with a clean L2, and write a row for each."""
    require_new(output, "name another --output")
    start = time.monotonic()
    target = find_target(HOST) if spec == HOST else gpu(spec)
    every = [candidates_of(problem, configs, target.limits) for problem, configs in listed]
    options = Options(cache=Cache.CLEAN)
    with Tuner(target, options) as tuner:
        facts = run_facts("python -m benchmarks.leave_one_out run", target, tuner.ceilings)
        result = ResultFile(output, {**facts, "complete": False})
        for of in every[:COMPILED_AHEAD]:
            tuner.compile_ahead(of)
        for place, (problem, _) in enumerate(listed):
            if time_limit is not None and time.monotonic() - start > time_limit:
                click.echo(f"stopped by the time limit before {problem.text}")
                break
            for of in every[place + COMPILED_AHEAD : place + COMPILED_AHEAD + 1]:
                tuner.compile_ahead(of)
            try:
                rows = [row_of(problem, trial) for trial in tuner.tune(Search(InOrder(every[place])))]
            except DeviceError as error:
                click.echo(f"{problem.text}  skipped: {error}")
                continue
            result.rows.extend(rows)
            result.write()
            click.echo(f"{place + 1}/{len(listed)} {problem.text} {len(rows)} configurations")
        else:
            result.facts["complete"] = True
    result.write()
